"""Questions from rows of data: a prompt, its options and the gold label; few-shot examples.

Every kind of task but perplexity becomes this one form. Zero-shot and few-shot differ only in what
precedes the prompt: answered questions of other rows, chosen by a seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from qkv.evaluation.likelihood import Request
from qkv.evaluation.task_file import EvaluationTask, fill, only_column
from qkv.text import Tokenizer
from qkv.text.frame_tokens import start_id, tokens_around

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Question:
    """A prompt with its possible continuations."""

    context: str
    """The prompt, with the examples before it."""
    continuations: tuple[str, ...]
    """The options as they continue the prompt."""
    gold: int
    """The index of the correct option."""
    choices: tuple[str, ...]
    """The options as the data has them; length normalisation uses their lengths."""

    @property
    def answered(self) -> str:
        """The prompt with its correct continuation, as a few-shot example shows it."""
        return self.context + self.continuations[self.gold]


# Rows


def build_question(task: EvaluationTask, row: Row, where: str) -> Question:
    """The question of one row, built by the kind of its task; `where` names the row in errors."""
    for column in task.columns:
        if row[column] is None:
            raise ValueError(f"{where}: {column}: expected a value, not null")

    text = fill(task.template, row)
    if task.kind == "last word":
        return last_word_question(text, where)

    if task.kind == "line":
        accepted = accepted_answers(task, row, where)
        return Question(text, join_options(task, accepted), 0, accepted)

    if task.kind == "translation":
        targets = (fill(task.answer, row),)
        return Question(text, join_options(task, targets), 0, targets)

    choices, labels = read_choices(task, row, where)
    if task.kind == "minimal pair":
        return Question("", choices, 0, choices)

    gold = gold_index(read_answer(task, row), choices, labels, where)
    if task.kind == "cloze":
        return cloze_question(task, text, choices, gold, where)

    return Question(text, join_options(task, choices), gold, choices)


def last_word_question(text: str, where: str) -> Question:
    """A text whose last word is to be predicted."""
    before, space, word = text.rpartition(" ")
    if not space or not word:
        raise ValueError(f"{where}: expected a text of two words or more, not {text!r}")

    return Question(before, (space + word,), 0, (word,))


def cloze_question(
    task: EvaluationTask, text: str, choices: tuple[str, ...], gold: int, where: str
) -> Question:
    """A text whose blank the choices fill; the rest of the text is part of the continuation."""
    before, blank, after = text.rpartition(task.blank)
    if not blank:
        raise ValueError(
            f"{where}: blank: the text has no {task.blank}, which the choices would replace"
        )

    space = trailing_space(before)
    continuations = tuple(space + choice + after for choice in choices)

    return Question(before.rstrip(), continuations, gold, choices)


def join_options(task: EvaluationTask, options: Sequence[str]) -> tuple[str, ...]:
    """Options as they continue a prompt."""
    return tuple(task.joint + option for option in options)


def trailing_space(text: str) -> str:
    """The whitespace at the end of a text, which tokenizers attach to the next word."""
    return text[len(text.rstrip()) :]


def read_choices(
    task: EvaluationTask, row: Row, where: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The texts of the choices, and their labels if they have any."""
    labels: tuple[str, ...] = ()
    if isinstance(task.choices, Mapping):
        labels = tuple(task.choices)
        choices = fill_all(tuple(task.choices.values()), row)
    elif isinstance(task.choices, str):
        choices = text_list(row[task.choices], f"{where}: {task.choices}")
        if len(choices) < 2:
            raise ValueError(
                f"{where}: {task.choices}: expected two choices or more, not {len(choices)}"
            )
    else:
        choices = fill_all(task.choices, row)

    if "" in choices and {"characters", "bytes"} & set(task.normalise):
        raise ValueError(
            f"{where}: choices: number {choices.index('')} is empty, "
            "so its score cannot be divided by its length"
        )

    return choices, labels


def fill_all(templates: Sequence[str], row: Row) -> tuple[str, ...]:
    return tuple(fill(template, row) for template in templates)


def accepted_answers(task: EvaluationTask, row: Row, where: str) -> tuple[str, ...]:
    """The accepted lines: the list in the answer's column, or the answer's one text."""
    column = only_column(task.answer)
    if column is None:
        return text_list(fill(task.answer, row), f"{where}: answer")

    return text_list(row[column], f"{where}: {column}")


def text_list(value: Any, where: str) -> tuple[str, ...]:
    """A list of texts, stripped. A string is split at |, as in the Children's Book Test."""
    texts = value
    if isinstance(value, str):
        texts = value.split("|")

    is_list = isinstance(texts, list) and bool(texts)
    if not is_list or not all(isinstance(text, str) and text.strip() for text in texts):
        raise ValueError(f"{where}: expected a list of texts, not {texts!r}")

    return tuple(map(str.strip, texts))


def read_answer(task: EvaluationTask, row: Row) -> str | int:
    """The answer as text, or as an integer if the data has one."""
    column = only_column(task.answer)
    if column is not None:
        value = row[column]
        if isinstance(value, int) and not isinstance(value, bool):
            return value

    return fill(task.answer, row)


def gold_index(answer: str | int, choices: Sequence[str], labels: Sequence[str], where: str) -> int:
    """The index of the correct choice.

    With labels the answer is a label or the text of a choice. Without labels an integer is an
    index, and a string is the text of a choice or an index.
    """
    text = str(answer)
    if text in labels:
        return labels.index(text)

    index = None
    if not labels and text.isdecimal() and int(text) < len(choices):
        index = int(text)

    named = None
    if text in choices and (labels or isinstance(answer, str)):
        named = choices.index(text)

    if index is not None and named is not None and index != named:
        raise ValueError(
            f"{where}: answer: {text!r} is the text of choice {named} and the number of choice "
            f"{index}; in JSON, a number without quotation marks is always an index"
        )
    if named is not None:
        return named
    if index is not None:
        return index

    expected = ", ".join(labels) or f"one of the choices or its number, 0 to {len(choices) - 1}"
    raise ValueError(f"{where}: answer: expected {expected}, not {answer!r}")


# Few-shot examples


def with_examples(
    task: EvaluationTask,
    rows: Sequence[Row],
    pool: Sequence[Row],
    pool_name: str,
    *,
    name: str,
    shots: int,
    seed: int,
) -> list[Question]:
    """The question of each row after the description and `shots` answered examples.

    The examples depend only on the seed and the number of the question, and fewer shots use the
    first ones of more. A row is never among its own examples.
    """
    answered: dict[int, str] = {}
    questions: list[Question] = []

    for number, row in enumerate(rows):
        questions.append(build_question(task, row, f"{name}, row {number + 1}"))

    for number, row in enumerate(rows):
        prompt: list[str] = []
        if task.description:
            prompt.append(task.description)

        for chosen in draw_examples(row, pool, pool_name, shots, (seed, number)):
            if chosen not in answered:
                example = build_question(task, pool[chosen], f"{pool_name}, row {chosen + 1}")
                answered[chosen] = example.answered

            prompt.append(answered[chosen])

        prompt.append(questions[number].context)
        questions[number] = replace(questions[number], context=task.separator.join(prompt))

    return questions


def draw_examples(
    row: Row, pool: Sequence[Row], pool_name: str, shots: int, seed: tuple[int, int]
) -> list[int]:
    """The numbers of `shots` random rows of the pool that differ from the row itself."""
    order = np.random.default_rng(seed).permutation(len(pool)).tolist()
    others = (number for number in order if pool[number] != row)
    examples = list(islice(others, shots))
    if len(examples) < shots:
        raise ValueError(
            f"shots: {pool_name} has only {len(examples)} other rows for examples, not {shots}"
        )

    return examples


# Token ids


def first_token(tokenizer: Tokenizer) -> int:
    """The id that precedes the first token of a text."""
    id = tokenizer.start if tokenizer.adds_start_token else start_id(tokenizer)
    if id is None:
        raise ValueError(
            "tokenizer: it has no start or end token, so nothing can precede the first token"
        )

    return id


def count_unknown(tokenizer: Tokenizer, ids: Sequence[int]) -> int:
    """The number of unknown tokens, which stand for words outside the vocabulary."""
    return 0 if tokenizer.unknown is None else ids.count(tokenizer.unknown)


def encode_requests(tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]]) -> list[Request]:
    """Contexts and continuations as ids, split where the context's own tokens end.

    As in the lm-evaluation-harness, both are encoded as one text, so that the continuation has the
    tokens it has in running text, and spaces at the end of a context move to the continuation.
    """
    split: list[tuple[str, str]] = []
    texts: dict[str, None] = {}

    for context, continuation in pairs:
        before = context.rstrip()
        whole = before + trailing_space(context) + continuation
        split.append((before, whole))
        texts |= {before: None, whole: None}

    ids = dict(zip(texts, tokenizer.encode_batch(list(texts)), strict=True))
    frame = tokens_around(tokenizer, "prompt")
    requests: list[Request] = []

    for before, whole in split:
        context_ids = ids[before]
        if len(ids[whole]) <= len(context_ids):
            raise ValueError(
                f"choices: {whole[len(before) :]!r} adds no token to the text before it, "
                "so it cannot be scored"
            )

        continuation_ids = tuple(ids[whole][len(context_ids) :])
        prompt = frame.around(context_ids) or [first_token(tokenizer)]
        requests.append(Request(tuple(prompt), continuation_ids))

    return requests
