"""From a row of data to a question: a context, the ways to go on from it, and which of them is
right.

Every kind of task but perplexity becomes this one form. Zero-, one- and few-shot differ only in
what stands before the context: answered questions of other rows, chosen by a seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qkv.evaluation.likelihood import Request
from qkv.evaluation.task_file import EvaluationTask, fill, only_column
from qkv.text import Tokenizer
from qkv.text.tokenizer import beginning

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Question:
    context: str
    continuations: tuple[str, ...]
    right: int
    choices: tuple[str, ...]
    """As the data has them: what lengths are counted of."""

    @property
    def answered(self) -> str:
        return self.context + self.continuations[self.right]


# Rows


def question(task: EvaluationTask, row: Row, where: str) -> Question:
    """One row, by the kind of its task."""
    for column in task.columns:
        if row[column] is None:
            raise ValueError(f"{where}: {column}: expected a value, not null")

    text = fill(task.template, row)
    if task.kind == "last word":
        before, space, word = text.rpartition(" ")
        if not space or not word:
            raise ValueError(f"{where}: expected a text of two words or more, not {text!r}")

        return Question(before, (space + word,), 0, (word,))

    if task.kind == "line":
        accepted = accepted_of(task, row, where)
        return Question(text, tuple(task.joint + each for each in accepted), 0, accepted)

    if task.kind == "translation":
        target = fill(task.answer, row)
        return Question(text, (task.joint + target,), 0, (target,))

    choices, labels = choices_of(task, row, where)
    if "" in choices and {"characters", "bytes"} & set(task.normalise):
        number = choices.index("")
        raise ValueError(
            f"{where}: choices: number {number} is empty, so nothing can be divided by its length"
        )

    if task.kind == "minimal pair":
        return Question("", choices, 0, choices)

    right = right_choice(answer_of(task, row), choices, labels, where)
    if task.kind == "cloze":
        before, blank, after = text.rpartition(task.blank)
        if not blank:
            raise ValueError(
                f"{where}: blank: there is no {task.blank} in the text to put the choices in place of"
            )

        return Question(
            before.rstrip(),
            tuple(between(before) + each + after for each in choices),
            right,
            choices,
        )

    return Question(text, tuple(task.joint + each for each in choices), right, choices)


def between(before: str) -> str:
    """The spaces at the end of a text: they belong to the word that comes, as tokenizers see it."""
    return before[len(before.rstrip()) :]


def choices_of(
    task: EvaluationTask, row: Row, where: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The texts of the choices and, where they have labels, those."""
    if isinstance(task.choices, Mapping):
        return tuple(fill(text, row) for text in task.choices.values()), tuple(task.choices)
    if not isinstance(task.choices, str):
        return tuple(fill(text, row) for text in task.choices), ()

    found = listed(row[task.choices], f"{where}: {task.choices}")
    if len(found) < 2:
        raise ValueError(f"{where}: {task.choices}: expected two choices or more, not {len(found)}")

    return found, ()


def accepted_of(task: EvaluationTask, row: Row, where: str) -> tuple[str, ...]:
    """The lines that are right: those of the column that the answer is, or its one text."""
    column = only_column(task.answer)
    return listed(
        fill(task.answer, row) if column is None else row[column], f"{where}: {column or 'answer'}"
    )


def listed(found: Any, where: str) -> tuple[str, ...]:
    """A list of texts, without the spaces around them."""
    found = (
        found.split("|") if isinstance(found, str) else found
    )  # as the Children's Book Test writes a list
    if (
        not isinstance(found, list)
        or not found
        or not all(isinstance(each, str) and each.strip() for each in found)
    ):
        raise ValueError(f"{where}: expected a list of texts, not {found!r}")

    return tuple(each.strip() for each in found)


def answer_of(task: EvaluationTask, row: Row) -> str | int:
    """As text, or as the number that the data has."""
    column = only_column(task.answer)
    found = None if column is None else row[column]
    return (
        found if isinstance(found, int) and not isinstance(found, bool) else fill(task.answer, row)
    )


def right_choice(
    answer: str | int, choices: Sequence[str], labels: Sequence[str], where: str
) -> int:
    """By its label; without labels by its place if the answer is a number, by its text or its place
    if it is a text.
    """
    text = str(answer)
    if text in labels:
        return labels.index(text)

    place = int(text) if not labels and text.isdecimal() and int(text) < len(choices) else None
    named = choices.index(text) if text in choices and (labels or isinstance(answer, str)) else None
    if place is not None and named is not None and place != named:
        raise ValueError(
            f"{where}: answer: {text!r} is the text of choice {named} and the number of choice {place}; in JSON, "
            "a number without quotation marks is always a place"
        )

    for found in (named, place):
        if found is not None:
            return found

    expected = (
        ", ".join(labels)
        if labels
        else f"one of the choices or its number, 0 to {len(choices) - 1}"
    )
    raise ValueError(f"{where}: answer: expected {expected}, not {answer!r}")


# Examples before the question


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
    """Each row's question after the description and `shots` answered ones.

    Which of the pool's rows they are is a function of the seed and the question's place; the first
    of five are those of one. A row is never among its own examples.
    """
    asked = [question(task, row, f"{name}, row {place + 1}") for place, row in enumerate(rows)]
    answered: dict[int, str] = {}
    made = []

    for place, (row, each) in enumerate(zip(rows, asked, strict=True)):
        before = [task.description] if task.description else []
        for chosen in drawn(row, pool, pool_name, shots, (seed, place)) if shots else ():
            if chosen not in answered:
                answered[chosen] = question(
                    task, pool[chosen], f"{pool_name}, row {chosen + 1}"
                ).answered

            before.append(answered[chosen])

        made.append(replace(each, context=task.separator.join([*before, each.context])))

    return made


def drawn(
    row: Row, pool: Sequence[Row], pool_name: str, shots: int, seed: tuple[int, int]
) -> list[int]:
    found: list[int] = []
    for chosen in np.random.default_rng(seed).permutation(len(pool)).tolist():
        if len(found) == shots:
            break

        if pool[chosen] != row:
            found.append(chosen)

    if len(found) < shots:
        raise ValueError(
            f"shots: {pool_name} has only {len(found)} other rows for examples, not {shots}"
        )

    return found


# Words


def first_word(tokenizer: Tokenizer) -> int:
    """What the first word of a text comes after."""
    found = tokenizer.start if tokenizer.starts_texts else beginning(tokenizer)
    if found is None:
        raise ValueError(
            "tokenizer: it has no token that starts or ends a text, so nothing can come before the first"
        )

    return found


def unknown_among(tokenizer: Tokenizer, ids: Sequence[int]) -> int:
    """How many of the ids stand for words that the vocabulary does not have."""
    return 0 if tokenizer.unknown is None else ids.count(tokenizer.unknown)


def requests(tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]]) -> list[Request]:
    """Contexts and continuations as ids, cut where the context's own tokens end.

    The harness's way: both are encoded as one text, so that the continuation has the tokens it has
    in real text, and spaces at the end of a context go over to the continuation.
    """
    moved = [(context.rstrip(), between(context) + continuation) for context, continuation in pairs]
    texts = list(
        dict.fromkeys(
            text for context, continuation in moved for text in (context, context + continuation)
        )
    )
    ids = dict(zip(texts, tokenizer.encode_batch(texts), strict=True))
    made = []

    for context, continuation in moved:
        known, whole = ids[context], ids[context + continuation]
        if len(whole) <= len(known):
            raise ValueError(
                f"choices: {continuation!r} adds no token to the text before it, so it cannot be scored"
            )

        begin = [first_word(tokenizer)] if tokenizer.starts_texts or not known else []
        made.append(Request((*begin, *known), tuple(whole[len(known) :])))

    return made
