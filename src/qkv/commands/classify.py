"""qkv classify and qkv tag: what a fine-tuned model says of texts, files, a pipe, or what is typed."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from qkv import storage
from qkv.command_line.answer_output import as_object, as_row, line, picture
from qkv.command_line.model_opening import (
    Machine,
    ModelName,
    check_not_read,
    check_place,
    forgiving,
    note,
    note_unknown,
    open_model,
    typed_lines,
)
from qkv.data.sources.examples import TWO_TEXTS, Example, in_line, open_examples
from qkv.evaluation import report
from qkv.evaluation.label_scores import check_label, confusion_of, scores_of
from qkv.generation.classify import Answer, answers, example_of
from qkv.models import TaskModel
from qkv.models.configs import HeadConfig
from qkv.text import Tokenizer

Texts = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[TEXT ...]")]
BLOCK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ClassifyInputs:
    data: tuple[str, ...] = ()
    """Files to answer: tables (.tsv, .csv, .jsonl, .parquet), .conllu, or plain text with one on
    each line; -.tsv is a table through a pipe."""
    text: str | None = None
    """With data: the column that has the text; the usual names are looked for unless given."""
    label: str | None = None
    """With score: the column that has the true answer; in .conllu upos unless given."""
    score: bool = False
    """With data that has labels: say how many answers are right instead of the answers, which --out
    still gets.
    """
    out: Path | None = None
    """Write the answers to this file, which is there whole or not at all."""
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False
    """A line of JSON for each answer, with the probability of everything that could have been said.
    """


def classify(
    model: ModelName,
    texts: Texts = (),
    pair: str | None = None,
    asked: tyro.conf.OmitArgPrefixes[ClassifyInputs] = ClassifyInputs(),  # noqa: B008 - tyro reads the defaults
    machine: tyro.conf.OmitArgPrefixes[Machine] = Machine(),  # noqa: B008
) -> None:
    """Say what a fine-tuned model thinks of texts: a class, a number, or one of several choices.

    qkv classify runs/sst-2 "a film to remember"

    qkv classify runs/rte "It rained all day." --pair "The day was dry."

    qkv classify runs/choices "She opened the door and" "went in." "ate it."

    qkv classify runs/sst-2 --data dev.tsv --score

    cat reviews.txt | qkv classify runs/sst-2 > answers.tsv

    Args: model: The folder of a model that qkv finetune made. texts: The texts; of a model that
        chooses, the context and then the choices. Without texts or data, the lines of a pipe, or
        what you type; the two texts of a pair have a tab between them. pair: The second text of a
        pair; with data, the column that has it. asked: What is answered, and where the answers go.
        machine: Where and how it computes.
    """
    run("classify", model, texts, pair, asked, machine)


def tag(
    model: ModelName,
    texts: Texts = (),
    asked: tyro.conf.OmitArgPrefixes[ClassifyInputs] = ClassifyInputs(),  # noqa: B008 - tyro reads the defaults
    machine: tyro.conf.OmitArgPrefixes[Machine] = Machine(),  # noqa: B008
) -> None:
    """Give each word of a sentence its tag, such as its part of speech.

    qkv tag runs/tagger "The cat sat on the mat ."

    qkv tag runs/tagger --data test.conllu --score

    Args: model: The folder of a model that qkv finetune made with --task tag. texts: The sentences,
        with spaces between their words. Without texts or data, the lines of a pipe, or what you
        type. asked: What is answered, and where the answers go. machine: Where and how it computes.
    """
    run("tag", model, texts, None, asked, machine)


def run(
    verb: str,
    name: str,
    texts: Sequence[str],
    pair: str | None,
    asked: ClassifyInputs,
    machine: Machine,
) -> None:
    check(texts, pair, asked)
    opened = open_model(name, machine, TaskModel)
    model, tokenizer = opened.model, opened.tokenizer
    assert isinstance(model, TaskModel)
    head = model.config.head
    if (head.task == "tag") != (verb == "tag"):
        does = (
            "it tags words: use qkv tag"
            if head.task == "tag"
            else f"its task is {head.task}: use qkv classify"
        )
        raise ValueError(f"{name}: {does}")

    if pair is not None and head.task not in (*TWO_TEXTS, "regress"):
        raise ValueError(
            f"pair: {name} reads one text at a time (its task is {head.task}); leave it out"
        )

    told = AnswerWriter(model, tokenizer, asked)
    if texts:
        examples = given(head.task, texts, pair)
        note_unknown(tokenizer, [text for example in examples for text in example.texts])
        told.tell(examples, alone=len(examples) == 1)
    elif asked.data or head.task == "choice":
        told.tell_all(asked.data or ("-",), pair)
    elif sys.stdin.isatty():
        for typed in typed_lines():
            with forgiving():
                note_unknown(tokenizer, [typed])
                told.tell([in_line(typed, head.task, "text")], alone=True)
    else:
        for some in piped(head.task):
            told.tell(some)

    told.end()


def check(texts: Sequence[str], pair: str | None, asked: ClassifyInputs) -> None:
    """What is wrong before the model is read."""
    if texts and asked.data:
        raise ValueError("text: files are given, too; leave one of them out")
    if pair is not None and not texts and not asked.data:
        raise ValueError(
            "pair: expected the first text, too; through a pipe, a tab stands between the two"
        )

    for given, flag in (
        (asked.text, "text"),
        (asked.label, "label"),
        (asked.score or None, "score"),
    ):
        if given is not None and not asked.data:
            raise ValueError(f"{flag}: it is about the rows of --data, which is not given")

    if asked.label is not None and not asked.score:
        raise ValueError("label: true answers are read with --score")

    check_place("out", asked.out)


# What is asked


def given(task: str, texts: Sequence[str], pair: str | None) -> list[Example]:
    """The arguments: each a text, or all of them a context and its choices."""
    if task == "choice":
        return [example_of(task, texts, "text")]
    if task in TWO_TEXTS and pair is None:
        raise ValueError(
            "pair: this model reads two texts together; give the second one with --pair"
        )

    numbers = [
        f"text {number}" if len(texts) > 1 else "text" for number in range(1, len(texts) + 1)
    ]
    if task == "tag":
        return [example_of(task, text, where) for text, where in zip(texts, numbers, strict=True)]

    return [
        example_of(task, (text,) if pair is None else (text, pair), n)
        for text, n in zip(texts, numbers, strict=True)
    ]


def piped(task: str) -> Iterator[list[Example]]:
    """The lines of standard input, as many as are there already: who writes slowly is answered line
    by line.
    """
    number, begun, nothing = 1, b"", True
    while block := sys.stdin.buffer.read1(BLOCK):  # type: ignore[union-attr]
        *whole, begun = (begun + block).split(b"\n")
        yield [as_example(raw, task, at) for at, raw in enumerate(whole, number)]
        number, nothing = number + len(whole), False

    if begun:
        yield [as_example(begun, task, number)]

    if nothing:
        raise ValueError("standard input: it is empty; expected a text on each line")


def as_example(raw: bytes, task: str, number: int) -> Example:
    where = f"standard input:{number}"
    try:
        return in_line(raw.decode("utf-8"), task, where)
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: not UTF-8 text ({error})") from error


# What is answered


@dataclass
class AnswerWriter:
    """Answers on their way to a person, a pipe or a file; and what is to be said of all of them."""

    model: TaskModel
    tokenizer: Tokenizer
    asked: ClassifyInputs
    made: list[str] = field(default_factory=list)
    cut: int = 0
    words_cut: int = 0
    console: Console = field(default_factory=lambda: Console(highlight=False))

    @property
    def head(self) -> HeadConfig:
        return self.model.config.head

    def answers(self, examples: Iterable[Example]) -> Iterator[Answer]:
        def hear(texts: int, words: int) -> None:
            self.cut, self.words_cut = self.cut + texts, self.words_cut + words

        return answers(self.model, self.tokenizer, examples, cut=hear)

    def tell(self, examples: Sequence[Example], alone: bool = False) -> None:
        for example, answer in zip(examples, self.answers(examples), strict=True):
            self.put(example, answer, alone)

        sys.stdout.flush()

    def put(self, example: Example, answer: Answer, alone: bool = False) -> None:
        if self.asked.out is not None:
            self.made.append(
                as_object(example, answer) if self.asked.as_json else as_row(example, answer)
            )
        elif self.asked.as_json or not self.console.is_terminal:
            print(as_object(example, answer) if self.asked.as_json else as_row(example, answer))
        elif alone:
            self.console.print(picture(example, answer, self.console.width))
        else:
            self.console.print(line(example, answer, self.head.labels, self.console.width))

    def tell_all(self, data: Sequence[str], pair: str | None) -> None:
        """Rows of files. All of them are read once before the first is answered: what is wrong is
        known early.
        """
        asked, head = self.asked, self.head
        source = open_examples(
            data, head.task, text=asked.text, pair=pair, label=asked.label, labelled=asked.score
        )
        check_not_read(asked.out, (Path(part.name) for part in source.parts), "answered")
        total = 0

        for example in source:
            if asked.score:
                check_label(head, example)

            total += 1

        quiet = asked.score and asked.out is None
        labelled: list[Example] = []
        found: list[Answer] = []
        answered = zip(source, self.answers(source), strict=True)

        for example, answer in self.watched(
            answered, total, hidden=not quiet and asked.out is None
        ):
            if asked.score:
                labelled.append(example)
                found.append(answer)

            if not quiet:
                self.put(example, answer)

        if asked.score:
            self.say_scores(labelled, found)

    def watched(self, answered: Iterable[Any], total: int, hidden: bool) -> Iterator[Any]:
        """With a line of progress, at a terminal that shows nothing else."""
        hidden = (hidden and self.console.is_terminal) or not sys.stderr.isatty()
        columns = (
            TextColumn("answering"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )

        with Progress(
            *columns, console=Console(stderr=True), transient=True, disable=hidden
        ) as progress:
            yield from progress.track(answered, total=total)

    def say_scores(self, examples: Sequence[Example], found: Sequence[Answer]) -> None:
        from qkv.insight.render.figures.confusion_matrix import (
            confusion_table,  # which can draw, and takes long to import
        )

        words = sum(len(each.tags or ()) for each in found)
        rows = (
            f"{words:,} words of {len(found):,} sentences"
            if self.head.task == "tag"
            else f"{len(found):,} rows"
        )
        if self.head.labels:
            counts = confusion_of(self.head, examples, found)
            if counts.sum():
                self.console.print(confusion_table(counts, self.head.labels))

            if self.head.task == "tag" and (unknown := words - int(counts.sum())):
                note(
                    f"{unknown:,} of {words:,} words have a tag that the model does not know: wrong, and not above"
                )

        for score in scores_of(self.head, examples, found):
            print(f"{score.name} {report.shown(score)}, {rows}; [ ]: 95% interval")

    def end(self) -> None:
        if self.asked.out is not None:
            storage.write_text(self.asked.out, "".join(f"{each}\n" for each in self.made))

        if self.cut:
            words = f"; {self.words_cut:,} words have no tag" if self.words_cut else ""
            who = "1 text was" if self.cut == 1 else f"{self.cut:,} texts were"
            note(
                f"{who} longer than the model's context of {self.model.config.context:,} tokens and cut to it{words}"
            )
