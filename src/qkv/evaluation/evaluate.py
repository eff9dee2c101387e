"""One model, one task, one number of examples: scores with their intervals, and how they were come
by.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from qkv.data.sources.source import Source, open_pairs, open_rows, open_texts
from qkv.evaluation import masked_accuracy, perplexity
from qkv.evaluation.bleu import bleu, intervals
from qkv.evaluation.intervals import Score, accuracy
from qkv.evaluation.intervals import perplexity as word_perplexity
from qkv.evaluation.likelihood import Likelihood, likelihoods, shortened
from qkv.evaluation.question import Question, Row, requests, unknown_among, with_examples
from qkv.evaluation.task_file import TEXTS, EvaluationTask, Normalise, fill, parts
from qkv.generation.text import complete
from qkv.generation.translate import translate_texts
from qkv.models import BERT, GPT, TaskModel
from qkv.models.registry import Model
from qkv.nn.config import documented
from qkv.text import Tokenizer

LONGEST_ANSWER, AT_ONCE = 128, 8  # words of a line that a GPT says, and how many it gives at a time


class Subject(NamedTuple):
    """Who is tested."""

    name: str
    model: Model
    tokenizer: Tokenizer


@documented
@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How it is tested; two scores compare only where this is the same."""

    shots: int = 0
    """Answered examples before each question."""
    seed: int = 0
    """Chooses the examples, and draws for the intervals."""
    limit: int | None = None
    """Questions asked, the first ones: rows of a table, pairs, windows of a text (perplexity), or
    rows of a context's length (masked words)."""
    examples: tuple[str, ...] = ()
    """Where the answered examples are from."""
    window: int | None = None
    stride: int | None = None
    beams: int = 4
    """How many translations are followed side by side."""

    def __post_init__(self) -> None:
        for name, least in (("shots", 0), ("seed", 0), ("limit", 1), ("beams", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name}: expected {least} or more, not {value}")


PLAIN = Protocol()


@dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    task: str
    model: str
    shots: int
    rows: int
    scores: tuple[Score, ...]
    said: tuple[str, ...] = ()
    """The protocol in words, and what was cut or left out."""
    facts: dict[str, Any] = field(default_factory=dict)
    """The same as numbers, and what was found on the way."""
    chance: float | None = None
    """The accuracy of guessing."""
    seconds: float = 0.0


Progress = Callable[[int, int], None]


def evaluate(
    task: EvaluationTask,
    subject: Subject,
    data: Sequence[str],
    protocol: Protocol = PLAIN,
    progress: Progress = lambda done, all: None,
) -> EvaluationResult:
    """The scores of one model in one task. `progress` hears how much is done, of how much."""
    data = data or ([task.beside(task.data)] if task.data else [])
    if not data:
        texts = task.kind in (*TEXTS, "translation")
        needs = "files of text" if texts else f"a table with {', '.join(task.columns)} as columns"
        raise ValueError(
            f"data: the task {task.name} has none of its own; give --data FILE, {needs}"
        )

    begin = time.perf_counter()
    ask = ASKED.get(task.kind, by_likelihood)
    shots = protocol.shots if takes_examples(task, subject.model) else 0
    found = ask(task, subject, data, protocol, progress)
    if shots != protocol.shots:
        found["said"] += (
            "no examples: they stand before questions, not before texts to predict or to translate",
        )

    kept = tuple(
        score for score in found["scores"] if score.name.partition(" by ")[0] in task.metrics
    )
    found |= {"scores": kept, "seconds": time.perf_counter() - begin}

    return EvaluationResult(task=task.name, model=subject.name, shots=shots, **found)


def takes_examples(task: EvaluationTask, model: Model) -> bool:
    return task.kind not in TEXTS and (task.kind != "translation" or isinstance(model, GPT))


def first(source: Source[Any], limit: int | None) -> list[Any]:
    return list(islice(source, limit))


def rows_of(task: EvaluationTask, data: Sequence[str], limit: int | None = None) -> list[Row]:
    if task.kind != "translation":
        return first(open_rows(data, task.columns), limit)

    columns = task.columns if len(task.columns) == 2 else ("source", "target")
    named = None if columns == ("source", "target") else (columns[0], columns[1])
    return [
        dict(zip(columns, pair, strict=True))
        for pair in first(open_pairs(data, columns=named), limit)
    ]


def few_shot(
    task: EvaluationTask, rows: Sequence[Row], data: Sequence[str], protocol: Protocol
) -> list[Question]:
    """The rows' questions after examples from where the person, the task, or else the data has
    them.
    """
    given = list(protocol.examples) or (
        [task.beside(task.examples)] if task.examples else list(data)
    )
    pool = rows_of(task, given) if protocol.shots else []
    names = {"name": ", ".join(data), "pool_name": ", ".join(given)}

    return with_examples(task, rows, pool, shots=protocol.shots, seed=protocol.seed, **names)


def unknown_words(tokenizer: Tokenizer, unknown: int, tokens: int) -> tuple[str, ...]:
    """Such a token stands for many words and is easy to guess: scores are better than they should
    be.
    """
    if not unknown or tokenizer.unknown is None:
        return ()

    name = tokenizer.token(tokenizer.unknown).strip()
    return (f"{unknown:,} of {tokens:,} tokens are not in the vocabulary and are read as {name}",)


def choice_of_examples(protocol: Protocol) -> tuple[str, ...]:
    return (f"examples chosen by seed {protocol.seed}",) if protocol.shots else ()


# Which of several texts is the likelier one


def by_likelihood(
    task: EvaluationTask,
    subject: Subject,
    data: Sequence[str],
    protocol: Protocol,
    progress: Progress,
) -> dict[str, Any]:
    model, tokenizer = check_predicts(task, subject), subject.tokenizer
    rows = rows_of(task, data, protocol.limit)
    questions = few_shot(task, rows, data, protocol)
    asked = requests(
        tokenizer, [(each.context, way) for each in questions for way in each.continuations]
    )
    kept, cut = shortened(asked, model)
    found = iter(likelihoods(model, kept, progress=progress))
    answers = [[next(found) for _ in each.continuations] for each in questions]
    said = list(choice_of_examples(protocol))
    if cut:
        said.append(
            f"{cut:,} of {len(asked):,} contexts were cut from the left to {model.config.context:,} tokens"
        )

    tokens = sum(len(context) + len(continuation) for context, continuation in asked)
    unknown = sum(unknown_among(tokenizer, ids) for request in asked for ids in request)
    said += unknown_words(tokenizer, unknown, tokens)
    facts = {
        "requests": len(asked),
        "cut": cut,
        "context": model.config.context,
        "unknown": unknown,
    }

    if task.kind == "last word":
        right = [answer.greedy for (answer,) in answers]
        # Of the word, whatever number of tokens it has: as the literature counts.
        surprise = word_perplexity(
            [(answer.log_probability,) for (answer,) in answers], seed=protocol.seed
        )
        return {
            "rows": len(rows),
            "scores": (accuracy(right), surprise),
            "said": tuple(said),
            "facts": facts,
        }

    scores = []

    for how in task.normalise:
        by = "" if how == "none" else f" by {how}"
        right = [wins(each, answer, how) for each, answer in zip(questions, answers, strict=True)]
        scores.append(accuracy(right, f"accuracy{by}"))

    said.append(f"log-probabilities divided by: {', '.join(task.normalise)}")
    chance = sum(1 / len(each.continuations) for each in questions) / len(questions)

    return {
        "rows": len(rows),
        "scores": tuple(scores),
        "said": tuple(said),
        "facts": facts,
        "chance": chance,
    }


def check_predicts(task: EvaluationTask, subject: Subject) -> GPT:
    name, model, _ = subject
    if not isinstance(model, GPT):
        raise ValueError(
            f"{name}: {task.name} is asked of a GPT, which predicts the next word, not of a {kind(model)}"
        )

    return model


def wins(question: Question, answers: Sequence[Likelihood], how: Normalise) -> bool:
    """Whether the right choice is likelier than every other; a tie is no win."""
    scores = [
        answer.log_probability / length(choice, answer, how)
        for choice, answer in zip(question.choices, answers, strict=True)
    ]
    others = scores[: question.right] + scores[question.right + 1 :]
    return scores[question.right] > max(others)


def length(choice: str, answer: Likelihood, how: Normalise) -> int:
    lengths = {
        "none": 1,
        "characters": len(choice),
        "bytes": len(choice.encode()),
        "tokens": len(answer.words),
    }

    return lengths[how]


# What a model says


def by_line(
    task: EvaluationTask,
    subject: Subject,
    data: Sequence[str],
    protocol: Protocol,
    progress: Progress,
) -> dict[str, Any]:
    """Right is the likeliest line that says one of the accepted answers; case and spaces around it
    do not count.
    """
    check_predicts(task, subject)
    rows = rows_of(task, data, protocol.limit)
    questions = few_shot(task, rows, data, protocol)
    said = list(said_by(subject, [each.context for each in questions], progress))
    right = [line_is_right(line, each.choices) for line, each in zip(said, questions, strict=True)]
    told = (
        *choice_of_examples(protocol),
        "greedy, to the end of the line; right if it says one of the accepted answers",
    )

    return {"rows": len(rows), "scores": (accuracy(right),), "said": told, "facts": {"lines": said}}


def line_is_right(line: str, accepted: Sequence[str]) -> bool:
    return line.casefold() in {each.casefold() for each in accepted}


# How well a text is predicted


def by_surprise(
    task: EvaluationTask,
    subject: Subject,
    data: Sequence[str],
    protocol: Protocol,
    progress: Progress,
) -> dict[str, Any]:
    name, model, tokenizer = subject
    if isinstance(model, TaskModel):
        raise ValueError(
            f"{name}: a fine-tuned model answers its own task; score it with qkv classify --data FILE"
        )
    if isinstance(model, BERT):
        raise ValueError(
            f"{name}: a BERT sees both ways and has no perplexity; score its guesses: --task masked-words"
        )

    if isinstance(model, GPT):
        pieces = open_texts(data, column=task.columns[0])
        window, stride = perplexity.window_and_stride(model, protocol.window, protocol.stride)
        found = perplexity.of_texts(
            model, tokenizer, pieces, window=window, stride=stride, limit=protocol.limit,
            seed=protocol.seed, progress=progress,
        )  # fmt: skip
        said = f"rows: windows of {window:,} tokens, stride {stride:,}"
        facts: dict[str, Any] = {"window": window, "stride": stride, "documents": found.documents}
    else:
        pairs = first(open_pairs(data), protocol.limit)
        found = perplexity.of_pairs(model, tokenizer, pairs, seed=protocol.seed)
        said, facts = "targets given their sources", {}

    facts |= {
        each: getattr(found, each)
        for each in ("tokens", "scored", "characters", "bytes", "unknown")
    }
    told = said, f"{found.tokens:,} tokens, {found.scored:,} scored"
    unknown = unknown_words(tokenizer, found.unknown, found.tokens)

    return {
        "rows": found.windows,
        "scores": found.scores,
        "said": (*told, *unknown),
        "facts": facts,
    }


def by_masking(
    task: EvaluationTask,
    subject: Subject,
    data: Sequence[str],
    protocol: Protocol,
    progress: Progress,
) -> dict[str, Any]:
    name, model, tokenizer = subject
    if not isinstance(model, BERT):
        raise ValueError(
            f"{name}: {task.name} is asked of a BERT, which sees both ways, not of a {kind(model)}"
        )

    found = masked_accuracy.of_texts(
        model, tokenizer, open_texts(data, column=task.columns[0]),
        limit=protocol.limit, seed=protocol.seed, progress=progress,
    )  # fmt: skip
    told = (
        f"{masked_accuracy.RATE:.0%} of the words hidden, always the same ones, in rows of {model.config.context:,} tokens",
        f"{found.tokens:,} tokens, {found.asked:,} asked",
        "intervals by rows",
        *unknown_words(tokenizer, found.unknown, found.tokens),
    )

    facts: dict[str, Any] = {"mask_rate": masked_accuracy.RATE, "context": model.config.context}
    facts |= {each: getattr(found, each) for each in ("tokens", "asked", "unknown")}

    return {"rows": found.rows, "scores": found.scores, "said": told, "facts": facts}


# Translations


def by_translating(
    task: EvaluationTask,
    subject: Subject,
    data: Sequence[str],
    protocol: Protocol,
    progress: Progress,
) -> dict[str, Any]:
    name, model, tokenizer = subject
    rows = rows_of(task, data, protocol.limit)
    references = [fill(task.answer, row) for row in rows]
    if isinstance(model, BERT | TaskModel):
        raise ValueError(
            f"{name}: a BERT does not translate; expected a transformer, an rnn or a gpt"
        )

    if isinstance(model, GPT):
        if len(list(parts(task.template))) == 1 and task.template.startswith("{"):
            raise ValueError(
                f"{name}: a GPT translates by a prompt; write a task file whose template says what is wanted, such as "
                "'English: {source}\\nTurkish:'"
            )

        prompts = [each.context for each in few_shot(task, rows, data, protocol)]
        said = list(said_by(subject, prompts, progress))
        return scored(
            said,
            references,
            protocol.seed,
            ", ".join((*choice_of_examples(protocol), "greedy, to the end of the line")),
        )

    hypotheses = [""] * len(rows)
    translated = translate_texts(
        [model], tokenizer, [fill(task.template, row) for row in rows], beams=protocol.beams
    )

    for done, (number, best) in enumerate(translated, start=1):
        hypotheses[number] = best[0].text
        progress(done, len(rows))

    return scored(hypotheses, references, protocol.seed, f"beam {protocol.beams}")


def said_by(subject: Subject, prompts: Sequence[str], progress: Progress) -> Iterator[str]:
    """A line of each prompt's continuation, the likeliest word at every place, without spaces
    around it.
    """
    assert isinstance(subject.model, GPT)
    for start in range(0, len(prompts), AT_ONCE):
        some = prompts[start : start + AT_ONCE]
        how: dict[str, Any] = {"length": LONGEST_ANSWER, "stop": ["\n"], "temperature": 0.0}
        yield from (
            text.strip() for text in complete(subject.model, subject.tokenizer, some, **how)
        )
        progress(start + len(some), len(prompts))


def scored(
    hypotheses: Sequence[str], references: Sequence[str], seed: int, how: str
) -> dict[str, Any]:
    near = bleu(hypotheses, references)
    scores = tuple(intervals(near, hypotheses, references, seed=seed))
    facts = {"signature": near.signature, "hypotheses": list(hypotheses)}
    return {
        "rows": len(hypotheses),
        "scores": scores,
        "said": (how, near.signature),
        "facts": facts,
    }


def kind(model: Model) -> str:
    return type(model).__name__


ASKED: dict[str, Callable[..., dict[str, Any]]] = {
    "line": by_line,
    "perplexity": by_surprise,
    "masked words": by_masking,
    "translation": by_translating,
}
