"""Labelled examples for fine-tuning, from tables and CoNLL-U; unlabelled ones from plain text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from qkv.data.sources.conllu import COLUMNS, ConlluSentence, read_sentences
from qkv.data.sources.files import File, Format, find_files
from qkv.data.sources.formats import as_label, as_string, columns_of, kind
from qkv.data.sources.lines import read_lines
from qkv.data.sources.source import Source, open_parts, tables
from qkv.data.sources.source_parts import Items, Part, RowReader, file_part, table_part

PAIRS_OF_TEXTS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("text_a", "text_b"),
)
SINGLE_TEXTS = ("sentence", "text")
CONTEXTS = ("context", "ctx", "question", "sentence")
CHOICES = ("choices", "endings")
ANSWERS = ("answer", "label", "gold")
WORDS = ("words", "tokens")
TAGS = ("tags", "labels", "label", "upos")
CLASSES = ("label", "labels", "answer")
NUMBERS = ("label", "labels", "score", "answer")
LABELS_OF_TASK = {"tag": TAGS, "choice": ANSWERS, "similarity": NUMBERS, "regress": NUMBERS}
PAIR_TASKS = ("pair", "similarity")
TASKS = ("classify", "pair", "similarity", "choice", "tag", "regress")


class Example(NamedTuple):
    """One example to fine-tune on, or to classify."""

    texts: tuple[str, ...]
    """One text, the two texts of a pair, a context and its choices, or the words of a sentence."""
    label: str | tuple[str, ...] | None
    """A class, a number or the index of the correct choice, as text; one tag per word; None if it
    is unlabelled.
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
    """Examples from the rows of tables or the sentences of CoNLL-U.

    Columns that are not named are found by their usual names. Without `labelled` no label is read,
    and every line of plain text is an example, too: a pair has a tab between its texts, and a
    sentence to be tagged has spaces between its words.
    """
    if task not in TASKS:
        raise ValueError(f"task: expected one of {', '.join(TASKS)}, not {task!r}")
    if pair is not None and task not in (*PAIR_TASKS, "regress"):
        raise ValueError(f"pair: the task {task} has no second text; leave it out")

    columns = ExampleColumns(task, text, pair, label, labelled)
    readers: dict[str, Items[Example]] = {
        "choice": columns.read_choice,
        "tag": columns.read_tags,
    }
    rows = RowReader(columns.choose, readers.get(task, columns.read_texts), list(columns))

    def open_name(name: str) -> Iterator[Part[Example]]:
        for file in tables(find_files(name, piped=piped_format(task, labelled))):
            if file.format == "conllu":
                yield sentences_part(file, task, label or "upos", labelled)
            elif file.format == "text":
                yield lines_part(file, task, labelled)
            else:
                yield table_part(file, rows)

    named = replace(rows, items=columns.read_named)
    return Source(data, open_parts(data, "labelled rows", rows, open_name, named))


def piped_format(task: str, labelled: bool) -> Format:
    """The format of standard input named -; a name such as -.csv overrides it."""
    if task == "choice":
        return "jsonl"
    if not labelled:
        return "text"

    return "conllu" if task == "tag" else "tsv"


# Rows of a table


class ExampleColumns(NamedTuple):
    """Which columns of a table an example is read from, and how."""

    task: str
    text: str | None
    pair: str | None
    label: str | None
    labelled: bool

    def choose(self, names: list[str], where: str) -> tuple[str, ...]:
        """The columns to read: those of the texts, then the one of the label."""
        texts: tuple[str, ...]
        if self.task == "choice":
            texts = (self.text or first_of(CONTEXTS, names), first_of(CHOICES, names))
        elif self.task == "tag":
            texts = (self.text or first_of(WORDS, names),)
        else:
            texts = self.choose_texts(names, where)

        if not self.labelled:
            return texts

        return (*texts, self.choose_label(names))

    def choose_texts(self, names: list[str], where: str) -> tuple[str, ...]:
        """The columns of one text or two; regression may have either."""
        usual = [pair for pair in PAIRS_OF_TEXTS if set(pair) <= set(names)]
        if usual and self.task != "classify" and self.text is None and self.pair is None:
            return usual[0]
        if self.task in PAIR_TASKS:
            return self.choose_pair(usual, where)

        one = self.text or first_of(SINGLE_TEXTS, names)
        if not self.text and one not in names:
            raise ValueError(
                f"{where}: no column is called {' or '.join(SINGLE_TEXTS)}; "
                "name the one that is the text (--text)"
            )

        return (one,) if self.pair is None else (one, self.pair)

    def choose_pair(self, usual: list[tuple[str, str]], where: str) -> tuple[str, ...]:
        """The columns of two texts; one named column finds its usual partner."""
        one = self.text or None
        other = self.pair or None
        for first, second in usual:
            if one is None and second == self.pair:
                one = first
            if self.pair is None and first == one:
                other = second

        if one is None or other is None:
            known = " or ".join(" and ".join(pair) for pair in PAIRS_OF_TEXTS[:2])
            raise ValueError(
                f"{where}: no columns are called {known}; "
                "name those of the two texts (--text, --pair)"
            )

        return (one, other)

    def choose_label(self, names: list[str]) -> str:
        """The column of the label."""
        if self.label is not None:
            return self.label

        return first_of(LABELS_OF_TASK.get(self.task, CLASSES), names)

    def read_texts(self, row: list[Any], where: str) -> Iterator[Example]:
        """An example of one text or two."""
        values = row[:-1] if self.labelled else row
        texts = tuple(filled(value, "the text", where) for value in values)
        label = None
        if self.labelled:
            label = as_label(row[-1], where)
            if self.task == "regress":
                as_number(label, where)

        yield Example(texts, label, where)

    def read_named(self, row: list[Any], where: str) -> Iterator[Example]:
        """An example of registered data: a text and its class."""
        if self.task != "classify":
            raise ValueError(
                f"{where}: each row is a text and its class, for the task classify, not {self.task}"
            )

        text = filled(row[0], "the text", where)
        yield Example((text,), as_label(row[1], where) if self.labelled else None, where)

    def read_choice(self, row: list[Any], where: str) -> Iterator[Example]:
        """An example of a context and its choices."""
        context = filled(row[0], "the context", where)
        choices = row[1]
        if not isinstance(choices, list | tuple):
            raise ValueError(
                f"{where}: the choices: expected a list of strings, not {kind(choices)}"
            )

        texts = [filled(choice, "a choice", where) for choice in choices]
        if len(texts) < 2:
            raise ValueError(f"{where}: expected two choices or more, not {len(texts)}")

        label = None
        if self.labelled:
            label = str(as_answer(row[2], texts, where))

        yield Example((context, *texts), label, where)

    def read_tags(self, row: list[Any], where: str) -> Iterator[Example]:
        """An example of a sentence whose words are tagged."""
        for name, values in zip(("words", "tags"), row, strict=False):
            if not isinstance(values, list | tuple):
                raise ValueError(f"{where}: the {name}: expected a list, not {kind(values)}")

        words = row[0]
        if not words:
            raise ValueError(f"{where}: the list of words is empty; leave the row out")

        texts = tuple(filled(word, "a word", where) for word in words)
        if not self.labelled:
            yield Example(texts, None, where)
            return

        tags = row[1]
        if len(words) != len(tags):
            raise ValueError(
                f"{where}: {len(words)} words and {len(tags)} tags; expected as many of both"
            )

        yield Example(texts, tuple(as_label(tag, where) for tag in tags), where)


def first_of(usual: Sequence[str], names: list[str]) -> str:
    """The first usual name that a table has; without one the most usual, for the error."""
    for name in usual:
        if name in names:
            return name

    return usual[0]


def filled(value: Any, what: str, where: str) -> str:
    """A string, stripped; raises if it is empty."""
    if text := as_string(value, what, where).strip():
        return text

    raise ValueError(f"{where}: {what} is empty; leave the row out")


def as_number(label: str, where: str) -> float:
    """A label as a finite number."""
    try:
        number = float(label)
    except ValueError:
        number = math.nan

    if not math.isfinite(number):
        raise ValueError(f"{where}: expected a number as the label, not {label!r}")

    return number


def as_answer(value: Any, choices: list[str], where: str) -> int:
    """The index of the correct choice, given as an index or as its text."""
    if isinstance(value, str) and value.strip() in choices:
        return choices.index(value.strip())

    number = as_label(value, where)
    if number.isascii() and number.isdigit() and int(number) < len(choices):
        return int(number)

    raise ValueError(
        f"{where}: the answer: expected a number from 0 to {len(choices) - 1} or a choice, "
        f"not {number!r}"
    )


# CoNLL-U and plain text


def sentences_part(file: File, task: str, column: str, labelled: bool) -> Part[Example]:
    """The sentences of a CoNLL-U file, tagged by one of its columns."""
    if task != "tag":
        raise ValueError(f"{file.name}: CoNLL-U holds tagged words, for the task tag, not {task}")

    column = columns_of((column,), list(COLUMNS[1:]), file.name)[0]

    def example(sentence: ConlluSentence) -> Example:
        words: list[str] = []
        tags: list[str] = []
        for word in sentence.words:
            words.append(word.form)
            if labelled:
                tags.append(as_tag(getattr(word, column), column, file.at(word.line)))

        return Example(tuple(words), tuple(tags) if labelled else None, file.at(sentence.line))

    def read() -> Iterator[Example]:
        return map(example, read_sentences(file))

    return file_part(file, read, "the file has no sentences", columns=[column, labelled])


def as_tag(value: str | int | None, column: str, where: str) -> str:
    if value is None or value == "":
        raise ValueError(f"{where}: the column {column} is empty")

    return str(value)


def lines_part(file: File, task: str, labelled: bool) -> Part[Example]:
    """The lines of a text file as unlabelled examples."""
    if labelled or task == "choice":
        formats = {"choice": ".jsonl or .parquet", "tag": ".conllu or .jsonl"}
        needed = formats.get(task, ".tsv, .csv, .jsonl or .parquet")
        what = "labelled rows" if labelled else "choices"
        raise ValueError(f"{file.name}: {what} are read from {needed}")

    def read() -> Iterator[Example]:
        for number, line in read_lines(file):
            yield example_from_line(line, task, file.at(number))

    return file_part(file, read)


def example_from_line(line: str, task: str, where: str) -> Example:
    """The unlabelled example of a line of plain text."""
    if task == "tag":
        texts = line.split()
    elif task in PAIR_TASKS:
        texts = line.split("\t")
    elif task == "regress":
        texts = line.split("\t", 1)
    else:
        texts = [line]

    texts = list(map(str.strip, texts))
    if not texts or not all(texts):
        raise ValueError(f"{where}: the text is empty; leave the line out")
    if task in PAIR_TASKS and len(texts) != 2:
        raise ValueError(f"{where}: expected two texts with a tab between them, not {len(texts)}")

    return Example(tuple(texts), None, where)
