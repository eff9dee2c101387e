"""Evaluators, one for each kind of task: likelihood, generated lines, perplexity, BLEU and more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from qkv.data.sources.source import open_pairs, open_texts
from qkv.evaluation import masked_accuracy
from qkv.evaluation.bleu import bleu, with_intervals
from qkv.evaluation.intervals import Score, accuracy
from qkv.evaluation.intervals import perplexity as perplexity_score
from qkv.evaluation.likelihood import (
    Likelihood,
    Request,
    likelihoods,
    truncate_requests,
)
from qkv.evaluation.perplexity import (
    text_perplexity,
    translation_perplexity,
    window_and_stride,
)
from qkv.evaluation.protocol import (
    Evaluation,
    Measurement,
    Subject,
    examples_note,
    read_first,
    unknown_note,
)
from qkv.evaluation.question import Question, count_unknown, encode_requests
from qkv.evaluation.task_file import (
    KINDS,
    EvaluationTask,
    Normalise,
    TaskKind,
    fill,
    only_column,
)
from qkv.generation.text import complete
from qkv.generation.translate import translate_texts
from qkv.models import BERT, Model
from qkv.models.model import expect

LONGEST_LINE = 128
"""Maximum number of tokens that a GPT generates for a line."""
BATCH = 8
"""Prompts that a GPT continues at once."""

Evaluator = Callable[[Evaluation], Measurement]


# Log-likelihood of options


def evaluate_likelihoods(evaluation: Evaluation) -> Measurement:
    """Score the options of each question by their log-likelihood after the prompt."""
    task, subject, _, protocol, progress = evaluation
    model = require_language_model(task, subject)
    rows = evaluation.rows()
    questions = evaluation.questions(rows)

    # One request for each option
    pairs: list[tuple[str, str]] = []
    for question in questions:
        pairs += [(question.context, option) for option in question.continuations]

    requests = encode_requests(subject.tokenizer, pairs)
    fitting, truncated = truncate_requests(requests, model)
    results = iter(likelihoods(model, fitting, progress=progress))
    answers = [list(islice(results, len(question.continuations))) for question in questions]

    notes, facts = describe_requests(subject, model, requests, truncated)
    notes = (*examples_note(protocol), *notes)
    if task.kind == "last word":
        scores = last_word_scores(answers, protocol.seed)
        return {"rows": len(rows), "scores": scores, "notes": notes, "facts": facts}

    divisors = f"log-probabilities divided by: {', '.join(task.normalise)}"
    guessing = [1 / len(question.continuations) for question in questions]

    return {
        "rows": len(rows),
        "scores": choice_scores(questions, answers, task.normalise),
        "notes": (*notes, divisors),
        "facts": facts,
        "random_baseline": sum(guessing) / len(questions),
    }


def describe_requests(
    subject: Subject, model: Model, requests: Sequence[Request], truncated: int
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Notes and facts about the requests: truncated contexts and unknown tokens."""
    tokens = 0
    unknown = 0
    for context, continuation in requests:
        tokens += len(context) + len(continuation)
        unknown += count_unknown(subject.tokenizer, context)
        unknown += count_unknown(subject.tokenizer, continuation)

    context_length = model.config.context
    notes = unknown_note(subject.tokenizer, unknown, tokens)
    if truncated:
        cut = (
            f"{truncated:,} of {len(requests):,} contexts were cut from the left "
            f"to {context_length:,} tokens"
        )
        notes = (cut, *notes)

    facts = {
        "requests": len(requests),
        "cut": truncated,
        "context": context_length,
        "unknown": unknown,
    }

    return notes, facts


def last_word_scores(answers: Sequence[Sequence[Likelihood]], seed: int) -> tuple[Score, Score]:
    """Accuracy and perplexity of last words; the perplexity is per word, as in the literature."""
    correct: list[bool] = []
    word_logprobs: list[tuple[float]] = []
    for (answer,) in answers:
        correct.append(answer.greedy)
        word_logprobs.append((answer.log_likelihood,))

    return accuracy(correct), perplexity_score(word_logprobs, seed=seed)


def choice_scores(
    questions: Sequence[Question],
    answers: Sequence[Sequence[Likelihood]],
    normalise: Sequence[Normalise],
) -> tuple[Score, ...]:
    """One accuracy for each way of length normalisation."""
    scores = []
    for divisor in normalise:
        name = "accuracy" if divisor == "none" else f"accuracy by {divisor}"
        correct = [
            prefers_gold(question, options, divisor)
            for question, options in zip(questions, answers, strict=True)
        ]
        scores.append(accuracy(correct, name))

    return tuple(scores)


def require_language_model(task: EvaluationTask, subject: Subject) -> Model:
    if subject.model.predicts != "next" or subject.model.task is not None:
        raise ValueError(
            f"{subject.name}: {task.name} needs a GPT, which predicts the next token, "
            f"not a {type(subject.model).__name__}"
        )

    return subject.model


def prefers_gold(question: Question, answers: Sequence[Likelihood], divisor: Normalise) -> bool:
    """True if the correct option is more likely than every other; a tie counts as wrong."""
    scores = []
    for choice, answer in zip(question.choices, answers, strict=True):
        lengths = {
            "none": 1,
            "characters": len(choice),
            "bytes": len(choice.encode()),
            "tokens": len(answer.token_logprobs),
        }
        scores.append(answer.log_likelihood / lengths[divisor])

    gold = scores.pop(question.gold)

    return gold > max(scores)


# Generated lines


def evaluate_lines(evaluation: Evaluation) -> Measurement:
    """Greedy lines are correct if they equal an accepted answer, up to case and outer spaces."""
    rows = evaluation.rows()
    questions = evaluation.questions(rows)
    lines = list(generate_lines(evaluation, questions))
    correct = []
    for line, question in zip(lines, questions, strict=True):
        correct.append(line.casefold() in map(str.casefold, question.choices))

    return {
        "rows": len(rows),
        "scores": (accuracy(correct),),
        "notes": (
            *examples_note(evaluation.protocol),
            "greedy, to the end of the line; correct if it equals an accepted answer",
        ),
        "facts": {"lines": lines},
    }


def generate_lines(evaluation: Evaluation, questions: Sequence[Question]) -> Iterator[str]:
    """The greedy continuation of each prompt up to the end of the line, stripped."""
    model = require_language_model(evaluation.task, evaluation.subject)
    for start in range(0, len(questions), BATCH):
        batch = questions[start : start + BATCH]
        lines = complete(
            model,
            evaluation.subject.tokenizer,
            [question.context for question in batch],
            length=LONGEST_LINE,
            stop=["\n"],
            temperature=0.0,
        )
        yield from map(str.strip, lines)
        evaluation.progress(start + len(batch), len(questions))


# Perplexity


def evaluate_perplexity(evaluation: Evaluation) -> Measurement:
    """The perplexity of texts under a GPT, or of targets given their sources."""
    task, (name, model, tokenizer), data, protocol, progress = evaluation
    if model.task is not None:
        raise ValueError(
            f"{name}: a fine-tuned model is scored on its own task: qkv classify --data FILE"
        )
    if model.predicts not in ("next", "target"):
        raise ValueError(
            f"{name}: a BERT reads in both directions and has no perplexity; "
            "score its predictions of masked words: --task masked-words"
        )

    counts = ("tokens", "scored", "characters", "bytes", "unknown")
    facts: dict[str, Any] = {}
    if model.predicts == "next":
        gpt = require_language_model(task, evaluation.subject)
        window, stride = window_and_stride(gpt, protocol.window, protocol.stride)
        result = text_perplexity(
            gpt,
            tokenizer,
            open_texts(data, column=task.columns[0]),
            window=window,
            stride=stride,
            limit=protocol.limit,
            seed=protocol.seed,
            progress=progress,
        )
        rows_note = f"rows: windows of {window:,} tokens, stride {stride:,}"
        facts |= {"window": window, "stride": stride, "documents": result.documents}
    else:
        pairs = read_first(open_pairs(data), protocol.limit)
        result = translation_perplexity(model, tokenizer, pairs, seed=protocol.seed)
        rows_note = "targets given their sources"

    return {
        "rows": result.windows,
        "scores": result.scores,
        "notes": (
            rows_note,
            f"{result.tokens:,} tokens, {result.scored:,} scored",
            *unknown_note(tokenizer, result.unknown, result.tokens),
        ),
        "facts": facts | {name: getattr(result, name) for name in counts},
    }


# Masked words


def evaluate_masked_words(evaluation: Evaluation) -> Measurement:
    """How well a BERT predicts masked tokens of a text."""
    task, (name, subject_model, tokenizer), data, protocol, progress = evaluation
    model = expect(
        subject_model,
        BERT,
        f"{name}: {task.name} needs a BERT, which reads in both directions, "
        f"not a {type(subject_model).__name__}",
    )
    result = masked_accuracy.masked_accuracy(
        model,
        tokenizer,
        open_texts(data, column=task.columns[0]),
        limit=protocol.limit,
        seed=protocol.seed,
        progress=progress,
    )
    context = model.config.context

    return {
        "rows": result.rows,
        "scores": result.scores,
        "notes": (
            f"{masked_accuracy.RATE:.0%} of the tokens masked, always the same ones, "
            f"in rows of {context:,} tokens",
            f"{result.tokens:,} tokens, {result.masked:,} masked",
            "intervals by rows",
            *unknown_note(tokenizer, result.unknown, result.tokens),
        ),
        "facts": {
            "mask_rate": masked_accuracy.RATE,
            "context": context,
            "tokens": result.tokens,
            "asked": result.masked,
            "unknown": result.unknown,
        },
    }


# Translations


def evaluate_translations(evaluation: Evaluation) -> Measurement:
    """BLEU and chrF of translations by beam search, or by prompting a GPT."""
    task, (name, model, tokenizer), _, protocol, progress = evaluation
    rows = evaluation.rows()
    references = [fill(task.answer, row) for row in rows]
    if model.predicts not in ("next", "target"):
        raise ValueError(
            f"{name}: a BERT does not translate; expected a transformer, an rnn or a gpt"
        )

    if model.predicts == "next":
        if only_column(task.template) is not None:
            raise ValueError(
                f"{name}: a GPT translates by a prompt; write a task file whose template asks for "
                "it, such as 'English: {source}\\nTurkish:'"
            )

        hypotheses = list(generate_lines(evaluation, evaluation.questions(rows)))
        decoding = ", ".join((*examples_note(protocol), "greedy, to the end of the line"))
        return score_translations(hypotheses, references, protocol.seed, decoding)

    # Translations arrive in the order in which they are finished.
    hypotheses = [""] * len(rows)
    sources = [fill(task.template, row) for row in rows]
    translated = translate_texts([model], tokenizer, sources, beams=protocol.beams)

    for done, (number, best) in enumerate(translated, start=1):
        hypotheses[number] = best[0].text
        progress(done, len(rows))

    return score_translations(hypotheses, references, protocol.seed, f"beam {protocol.beams}")


def score_translations(
    hypotheses: Sequence[str], references: Sequence[str], seed: int, decoding: str
) -> Measurement:
    """BLEU and chrF of translations with confidence intervals; `decoding` is noted as it is."""
    result = bleu(hypotheses, references)

    return {
        "rows": len(hypotheses),
        "scores": tuple(with_intervals(result, hypotheses, references, seed=seed)),
        "notes": (decoding, result.signature),
        "facts": {"signature": result.signature, "hypotheses": list(hypotheses)},
    }


EVALUATORS: dict[str, Evaluator] = {
    "line": evaluate_lines,
    "perplexity": evaluate_perplexity,
    "masked words": evaluate_masked_words,
    "translation": evaluate_translations,
}
"""The evaluators of kinds; every kind not listed compares log-likelihoods."""


def add_kind(
    name: str,
    evaluator: Evaluator,
    *,
    required: tuple[str, ...] = ("template",),
    metrics: tuple[str, ...] = ("accuracy",),
    running_text: bool = False,
) -> None:
    """Add a kind of task, for task files with `kind = "name"`.

    Args:
        name: The name of the kind.
        evaluator: Called with an `Evaluation`; returns its rows, scores, notes and facts.
        required: Fields that its task files must have.
        metrics: Names of its scores.
        running_text: It scores running text instead of the rows of a table.

    Example:
        >>> from qkv.evaluation.intervals import accuracy
        >>> def long_rows(evaluation):
        ...     rows = evaluation.rows()
        ...     scores = (accuracy([len(row["text"]) > 9 for row in rows]),)
        ...     return {"rows": len(rows), "scores": scores, "notes": (), "facts": {}}
        >>> add_kind("long rows", long_rows)
    """
    KINDS[name] = TaskKind(required, metrics, running_text)
    EVALUATORS[name] = evaluator
