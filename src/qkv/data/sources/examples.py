"""Examples to fine-tune on: texts with their labels, from tables, CoNLL-U or, to be labelled, plain
text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from qkv.data.sources.conllu import COLUMNS, ConlluSentence, read_sentences
from qkv.data.sources.files import File, Format, find_files
from qkv.data.sources.formats import as_label, as_string, columns_of, kind
from qkv.data.sources.lines import lines
from qkv.data.sources.parts import Part, hub_part, table_part
from qkv.data.sources.source import Source, named, once, split_of, tables, title

PAIRS_OF_TEXTS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("text_a", "text_b"),
)
SINGLE_TEXTS = ("sentence", "text")
CONTEXTS, CHOICES = ("context", "ctx", "question", "sentence"), ("choices", "endings")
WORDS, TAGS = ("words", "tokens"), ("tags", "labels", "label", "upos")
LABELS = ("label", "labels")
TWO_TEXTS = ("pair", "similarity")
TASKS = ("classify", "pair", "similarity", "choice", "tag", "regress")


class Example(NamedTuple):
    texts: tuple[str, ...]
    """One text, or the two of a pair; a context and then its choices; the words of a sentence."""
    label: str | tuple[str, ...] | None
    """A class, a number, or the number of the right choice from 0, as text; a tag a word; None
    where nobody said.
    """
    where: str
    """The file and the line, for errors."""


def open_examples(
    data: Sequence[str | Path],
    task: str,
    *,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    labelled: bool = True,
) -> Source[Example]:
    """The rows of tables, or the sentences of CoNLL-U. Columns that are not named are looked for by
    their usual names.

    Without `labelled` no label is read, and a line of plain text is a text, too: of a pair, two
    with a tab between them; of a sentence to be tagged, its words with spaces between them.
    """
    if task not in TASKS:
        raise ValueError(f"task: expected one of {', '.join(TASKS)}, not {task!r}")
    if pair is not None and task not in (*TWO_TEXTS, "regress"):
        raise ValueError(f"pair: the task {task} has no second text; leave it out")

    wanted = ExampleColumns(task, text, pair, label, labelled)
    read: Callable[[list[Any], str], Iterator[Example]] = {
        "choice": wanted.choice,
        "tag": wanted.tagged,
    }.get(task, wanted.texts)
    said = [task, text, pair, label, labelled]
    parts: list[Part[Example]] = []

    for item in named(data):
        split_of(item, "", "labelled rows")
        if item.startswith("hf:"):
            parts.append(hub_part(item, wanted.choose, read, said))
            continue

        for file in tables(find_files(item, piped=piped_format(task, labelled))):
            if file.format == "conllu":
                parts.append(sentences_part(file, task, label or "upos", labelled))
            elif file.format == "text":
                parts.append(lines_part(file, task, labelled))
            else:
                parts.append(table_part(file, wanted.choose, read, said))

    return Source(title(data, parts), once(parts))


def piped_format(task: str, labelled: bool) -> Format:
    """What - brings; -.csv says another."""
    if task == "choice":
        return "jsonl"

    return "text" if not labelled else "conllu" if task == "tag" else "tsv"


# Rows of a table


class ExampleColumns(NamedTuple):
    """Which columns of a table are read, and what an example makes of them."""

    task: str
    text: str | None
    pair: str | None
    label: str | None
    labelled: bool

    def choose(self, names: list[str], where: str) -> tuple[str, ...]:
        texts: tuple[str, ...]
        if self.task == "choice":
            texts = (self.text or first_of(CONTEXTS, names), first_of(CHOICES, names))
        elif self.task == "tag":
            texts = (self.text or first_of(WORDS, names),)
        else:
            texts = self.choose_texts(names, where)

        return (*texts, self.choose_label(names)) if self.labelled else texts

    def choose_texts(self, names: list[str], where: str) -> tuple[str, ...]:
        two = {
            one: other
            for one, other in PAIRS_OF_TEXTS
            if self.task != "classify" and {one, other} <= set(names)
        }
        if self.text is None and self.pair is None and two:
            return next(iter(two.items()))

        if self.task in TWO_TEXTS:
            one = self.text or next((one for one, other in two.items() if other == self.pair), None)
            other = self.pair or two.get(one or "")
            if one is None or other is None:
                usual = " or ".join(" and ".join(names) for names in PAIRS_OF_TEXTS[:2])
                raise ValueError(
                    f"{where}: no columns are called {usual}; name those of the two texts (--text, --pair)"
                )

            return (one, other)

        one = self.text or next((name for name in SINGLE_TEXTS if name in names), None)
        if one is None:
            usual = " or ".join(SINGLE_TEXTS)
            raise ValueError(
                f"{where}: no column is called {usual}; name the one that is the text (--text)"
            )

        return (one,) if self.pair is None else (one, self.pair)

    def choose_label(self, names: list[str]) -> str:
        if self.label is not None:
            return self.label
        if self.task == "tag":
            return first_of(TAGS, names)
        if self.task == "choice":
            return first_of(("answer", "label", "gold"), names)

        return first_of(
            (*LABELS, *(["score"] if self.task in ("similarity", "regress") else []), "answer"),
            names,
        )

    def texts(self, row: list[Any], where: str) -> Iterator[Example]:
        values = row[:-1] if self.labelled else row
        texts = tuple(filled(value, "the text", where) for value in values)
        label = as_label(row[-1], where) if self.labelled else None
        if self.task == "regress" and label is not None:
            as_number(label, where)

        return iter([Example(texts, label, where)])

    def choice(self, row: list[Any], where: str) -> Iterator[Example]:
        context, choices = filled(row[0], "the context", where), row[1]
        if not isinstance(choices, list | tuple):
            raise ValueError(
                f"{where}: the choices: expected a list of strings, not {kind(choices)}"
            )

        texts = [filled(choice, "a choice", where) for choice in choices]
        if len(texts) < 2:
            raise ValueError(f"{where}: expected two choices or more, not {len(texts)}")

        label = str(as_answer(row[2], texts, where)) if self.labelled else None

        return iter([Example((context, *texts), label, where)])

    def tagged(self, row: list[Any], where: str) -> Iterator[Example]:
        words, tags = row[0], row[1] if self.labelled else None
        for name, value in (("words", words), ("tags", tags)):
            if not isinstance(value, list | tuple) and not (name == "tags" and not self.labelled):
                raise ValueError(f"{where}: the {name}: expected a list, not {kind(value)}")

        if not words:
            raise ValueError(f"{where}: the list of words is empty; leave the row out")

        texts = tuple(filled(word, "a word", where) for word in words)
        if tags is None:
            return iter([Example(texts, None, where)])
        if len(words) != len(tags):
            raise ValueError(
                f"{where}: {len(words)} words and {len(tags)} tags; expected as many of both"
            )

        return iter([Example(texts, tuple(as_label(tag, where) for tag in tags), where)])


def first_of(usual: Sequence[str], names: list[str]) -> str:
    """The first that is there; else the most usual, so that an error names it."""
    return next((name for name in usual if name in names), usual[0])


def filled(value: Any, what: str, where: str) -> str:
    if text := as_string(value, what, where).strip():
        return text

    raise ValueError(f"{where}: {what} is empty; leave the row out")


def as_number(label: str, where: str) -> float:
    try:
        number = float(label)
    except ValueError:
        number = math.nan

    if not math.isfinite(number):
        raise ValueError(f"{where}: expected a number as the label, not {label!r}")

    return number


def as_answer(value: Any, choices: list[str], where: str) -> int:
    """The right choice is named by its number from 0, or by its own text."""
    if isinstance(value, str) and value.strip() in choices:
        return choices.index(value.strip())

    number = as_label(value, where)
    if number.isascii() and number.isdigit() and int(number) < len(choices):
        return int(number)

    raise ValueError(
        f"{where}: the answer: expected a number from 0 to {len(choices) - 1} or a choice, not {number!r}"
    )


# Files of another kind


def sentences_part(file: File, task: str, column: str, labelled: bool) -> Part[Example]:
    if task != "tag":
        raise ValueError(f"{file.name}: CoNLL-U holds tagged words, for the task tag, not {task}")

    column = columns_of((column,), list(COLUMNS[1:]), file.name)[0]

    def example(sentence: ConlluSentence) -> Example:
        words, where = tuple(word.form for word in sentence.words), file.at(sentence.line)
        if not labelled:
            return Example(words, None, where)

        tags = tuple(
            tag_of(getattr(word, column), column, file.at(word.line)) for word in sentence.words
        )
        return Example(words, tags, where)

    def fingerprint() -> dict[str, str]:
        return {file.name: file.sha256(), f"columns of {file.name}": json.dumps([column, labelled])}

    if_empty = None if file.found else "the file has no sentences"

    return Part(file.name, lambda: map(example, read_sentences(file)), fingerprint, if_empty)


def tag_of(value: str | int | None, column: str, where: str) -> str:
    if value is None or value == "":
        raise ValueError(f"{where}: the column {column} is empty")

    return str(value)


def lines_part(file: File, task: str, labelled: bool) -> Part[Example]:
    if labelled or task == "choice":
        kinds = ".jsonl or .parquet" if task == "choice" else ".conllu or .jsonl" if task == "tag" else (
            ".tsv, .csv, .jsonl or .parquet"
        )  # fmt: skip
        raise ValueError(
            f"{file.name}: {'labelled rows are' if labelled else 'choices are'} read from {kinds}"
        )

    def fingerprint() -> dict[str, str]:
        return {file.name: file.sha256()}

    if_empty = None if file.found else "the file is empty"
    return Part(
        file.name,
        lambda: (in_line(line, task, file.at(n)) for n, line in lines(file)),
        fingerprint,
        if_empty,
    )


def in_line(line: str, task: str, where: str) -> Example:
    """The example that a line of plain text is."""
    if task == "tag":
        texts = tuple(line.split())
    else:
        pieces = (
            line.split("\t")
            if task in TWO_TEXTS
            else line.split("\t", 1)
            if task == "regress"
            else [line]
        )

        texts = tuple(piece.strip() for piece in pieces)

    if not texts or not all(texts):
        raise ValueError(f"{where}: the text is empty; leave the line out")
    if task in TWO_TEXTS and len(texts) != 2:
        raise ValueError(f"{where}: expected two texts with a tab between them, not {len(texts)}")

    return Example(texts, None, where)
