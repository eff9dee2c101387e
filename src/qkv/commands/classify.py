"""qkv classify and qkv tag: answers of a fine-tuned model to texts, files, pipes, typed lines."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from qkv import storage
from qkv.command_line.answer_output import answer_line, as_object, as_row, single_answer
from qkv.command_line.model_opening import Machine, ModelName, open_model
from qkv.command_line.output_checks import check_not_input, check_writable
from qkv.command_line.terminal_bars import progress_bar
from qkv.command_line.user_input import (
    Texts,
    errors_as_notes,
    note,
    note_unknown,
    reading,
    typed_lines,
)
from qkv.data.sources.examples import PAIR_TASKS, Example, example_from_line, open_examples
from qkv.evaluation import report
from qkv.evaluation.label_scores import check_label, confusion_matrix, score_answers
from qkv.generation.classify import Answer, answers, example_of
from qkv.models import TaskModel
from qkv.models.configs import HeadConfig
from qkv.text import Tokenizer

BLOCK = 1 << 20
"""Bytes read from a pipe at once."""


@dataclass(frozen=True, kw_only=True)
class ClassifyInputs:
    """The rows to answer, and where the answers go."""

    data: tuple[str, ...] = ()
    """Tables (.tsv, .csv, .jsonl, .parquet), .conllu, or a text a line; -.tsv is a piped table."""
    text: str | None = None
    """With --data: the column of the text (default: the usual names)."""
    label: str | None = None
    """With --score: the column of the true answer (default: the usual names; upos in .conllu)."""
    score: bool = False
    """With labelled --data: print scores instead of the answers, which --out still gets."""
    out: Path | None = None
    """Write the answers to this file, which is written completely or not at all."""
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False
    """Print a line of JSON for each answer, with the probability of every class or choice."""


def classify(
    model: ModelName,
    texts: Texts = (),
    pair: str | None = None,
    inputs: tyro.conf.OmitArgPrefixes[ClassifyInputs] = ClassifyInputs(),  # noqa: B008
    machine: tyro.conf.OmitArgPrefixes[Machine] = Machine(),  # noqa: B008
) -> None:
    """Classify texts with a fine-tuned model: a class, a number, or one of several choices.

    qkv classify runs/sst-2 "a film to remember"

    qkv classify runs/rte "It rained all day." --pair "The day was dry."

    qkv classify runs/choices "She opened the door and" "went in." "ate it."

    qkv classify runs/sst-2 --data dev.tsv --score

    cat reviews.txt | qkv classify runs/sst-2 > answers.tsv

    Args:
        model: The folder of a model that qkv finetune made.
        texts: The texts; for a model that chooses, the context and then the choices. Without texts
            or --data, the lines of a pipe, or what you type; a tab separates the two texts of a
            pair.
        pair: The second text of a pair; with --data, the column that has it.
        inputs: The rows to answer, and where the answers go.
        machine: Device and precision.
    """
    run("classify", model, texts, pair, inputs, machine)


def tag(
    model: ModelName,
    texts: Texts = (),
    inputs: tyro.conf.OmitArgPrefixes[ClassifyInputs] = ClassifyInputs(),  # noqa: B008
    machine: tyro.conf.OmitArgPrefixes[Machine] = Machine(),  # noqa: B008
) -> None:
    """Give each word of a sentence its tag, such as its part of speech.

    qkv tag runs/tagger "The cat sat on the mat ."

    qkv tag runs/tagger --data test.conllu --score

    Args:
        model: The folder of a model that qkv finetune made with --task tag.
        texts: The sentences, with spaces between their words. Without texts or --data, the lines
            of a pipe, or what you type.
        inputs: The rows to answer, and where the answers go.
        machine: Device and precision.
    """
    run("tag", model, texts, None, inputs, machine)


def run(
    command: str,
    name: str,
    texts: Sequence[str],
    pair: str | None,
    inputs: ClassifyInputs,
    machine: Machine,
) -> None:
    """Answer the texts, files, pipe or typed lines of either command."""
    check_flags(texts, pair, inputs)
    model, tokenizer = open_model(name, machine, TaskModel)
    task = model.config.head.task
    check_task(command, name, task, pair)
    writer = AnswerWriter(model, tokenizer, inputs)

    if texts:
        examples = examples_of(task, texts, pair)
        note_unknown(tokenizer, chain.from_iterable(example.texts for example in examples))
        writer.answer(examples, single=len(examples) == 1)
    elif inputs.data or task == "choice":
        writer.answer_files(inputs.data or ("-",), pair)
    elif sys.stdin.isatty():
        for line in typed_lines():
            with errors_as_notes():
                note_unknown(tokenizer, [line])
                writer.answer([example_from_line(line, task, "text")], single=True)
    else:
        for examples in read_pipe(task):
            writer.answer(examples)

    writer.finish()


def check_flags(texts: Sequence[str], pair: str | None, inputs: ClassifyInputs) -> None:
    """Refuse flags that do not go together before the model is loaded."""
    if texts and inputs.data:
        raise ValueError("text: files are given as well; leave one of them out")
    if pair is not None and not texts and not inputs.data:
        raise ValueError(
            "pair: expected the first text as well; through a pipe, a tab separates the two"
        )

    about_rows = {
        "text": inputs.text is not None,
        "label": inputs.label is not None,
        "score": inputs.score,
    }
    for flag, used in about_rows.items():
        if used and not inputs.data:
            raise ValueError(f"{flag}: it is about the rows of --data, which is not given")

    if inputs.label is not None and not inputs.score:
        raise ValueError("label: true answers are read with --score")

    check_writable("out", inputs.out)


def check_task(command: str, name: str, task: str, pair: str | None) -> None:
    """Refuse a model of the other command, and a pair for a model that reads single texts."""
    if task == "tag" and command != "tag":
        raise ValueError(f"{name}: it tags words: use qkv tag")
    if task != "tag" and command == "tag":
        raise ValueError(f"{name}: its task is {task}: use qkv classify")
    if pair is not None and task not in (*PAIR_TASKS, "regress"):
        raise ValueError(
            f"pair: {name} reads one text at a time (its task is {task}); leave it out"
        )


# Inputs


def examples_of(task: str, texts: Sequence[str], pair: str | None) -> list[Example]:
    """One example per argument; for a model that chooses, all of them are one example."""
    if task == "choice":
        return [example_of(task, texts, "text")]
    if task in PAIR_TASKS and pair is None:
        raise ValueError(
            "pair: this model reads two texts together; give the second one with --pair"
        )

    examples = []
    for number, text in enumerate(texts, start=1):
        origin = f"text {number}" if len(texts) > 1 else "text"
        if task == "tag":
            examples.append(example_of(task, text, origin))
        elif pair is None:
            examples.append(example_of(task, (text,), origin))
        else:
            examples.append(example_of(task, (text, pair), origin))

    return examples


def read_pipe(task: str) -> Iterator[list[Example]]:
    """The lines of standard input, as many as have arrived: a slow writer is answered by line."""
    number = 1
    begun = b""
    empty = True

    while block := sys.stdin.buffer.read1(BLOCK):  # type: ignore[union-attr]
        *lines, begun = (begun + block).split(b"\n")
        yield [parse_line(line, task, n) for n, line in enumerate(lines, start=number)]
        number += len(lines)
        empty = False

    if begun:
        yield [parse_line(begun, task, number)]

    if empty:
        raise ValueError("standard input: it is empty; expected a text on each line")


def parse_line(line: bytes, task: str, number: int) -> Example:
    origin = f"standard input:{number}"
    with reading(origin):
        return example_from_line(line.decode("utf-8"), task, origin)


# Answers


@dataclass
class AnswerWriter:
    """Computes answers, and prints them or collects them for a file."""

    model: TaskModel
    tokenizer: Tokenizer
    inputs: ClassifyInputs
    lines: list[str] = field(default_factory=list)
    """The lines of the output file."""
    cut_texts: int = 0
    """Texts that were longer than the context."""
    cut_words: int = 0
    """Words beyond the context, which get no tag."""
    console: Console = field(default_factory=lambda: Console(highlight=False))

    @property
    def head(self) -> HeadConfig:
        return self.model.config.head

    def compute(self, examples: Iterable[Example]) -> Iterator[Answer]:
        """The answers, counting what is cut to the context."""

        def count_cut(texts: int, words: int) -> None:
            self.cut_texts += texts
            self.cut_words += words

        return answers(self.model, self.tokenizer, examples, cut=count_cut)

    def answer(self, examples: Sequence[Example], single: bool = False) -> None:
        for example, answer in zip(examples, self.compute(examples), strict=True):
            self.write(example, answer, single)

        sys.stdout.flush()

    def write(self, example: Example, answer: Answer, single: bool = False) -> None:
        """Add an answer to the file or print it: as JSON or a row, or for people at a terminal."""
        to_file = self.inputs.out is not None
        if to_file or self.inputs.as_json or not self.console.is_terminal:
            formatted = as_object if self.inputs.as_json else as_row
            line = formatted(example, answer)
            if to_file:
                self.lines.append(line)
            else:
                print(line)
        elif single:
            self.console.print(single_answer(example, answer, self.console.width))
        else:
            labels = self.head.labels
            self.console.print(answer_line(example, answer, labels, self.console.width))

    def answer_files(self, data: Sequence[str], pair: str | None) -> None:
        """Answer the rows of files, which are all read once before: errors are known early."""
        inputs = self.inputs
        source = open_examples(
            data,
            self.head.task,
            text=inputs.text,
            pair=pair,
            label=inputs.label,
            labelled=inputs.score,
        )
        check_not_input(inputs.out, (Path(part.name) for part in source.parts), "answered")
        total = 0

        for example in source:
            if inputs.score:
                check_label(self.head, example)

            total += 1

        # At a terminal the bar is shown only where no answers are printed.
        printing = inputs.out is None and not inputs.score
        hidden = printing and self.console.is_terminal
        labelled: list[Example] = []
        predictions: list[Answer] = []

        with progress_bar("answering", hidden=hidden) as advance:
            rows = zip(source, self.compute(source), strict=True)
            for done, (example, answer) in enumerate(rows, start=1):
                if inputs.score:
                    labelled.append(example)
                    predictions.append(answer)

                if printing or inputs.out is not None:
                    self.write(example, answer)

                advance(done, total)

        if inputs.score:
            self.print_scores(labelled, predictions)

    def print_scores(self, examples: Sequence[Example], predictions: Sequence[Answer]) -> None:
        """Print the confusion matrix and the scores with their intervals."""
        # Imports matplotlib, which takes long.
        from qkv.insight.render.figures.confusion_matrix import confusion_table

        words = sum(len(answer.tags or ()) for answer in predictions)
        rows = f"{len(predictions):,} rows"
        if self.head.task == "tag":
            rows = f"{words:,} words of {len(predictions):,} sentences"

        if self.head.labels:
            counts = confusion_matrix(self.head, examples, predictions)
            if counts.sum():
                self.console.print(confusion_table(counts, self.head.labels))

            unknown = words - int(counts.sum())
            if self.head.task == "tag" and unknown:
                note(
                    f"{unknown:,} of {words:,} words have a tag that the model does not know: "
                    "they count as wrong and are not in the table"
                )

        for score in score_answers(self.head, examples, predictions):
            print(f"{score.name} {report.format_score(score)}, {rows}; [ ]: 95% interval")

    def finish(self) -> None:
        """Write the file, and note how many texts were cut."""
        if self.inputs.out is not None:
            storage.write_text(self.inputs.out, "".join(f"{line}\n" for line in self.lines))

        if not self.cut_texts:
            return

        subject = "1 text was" if self.cut_texts == 1 else f"{self.cut_texts:,} texts were"
        words = f"; {self.cut_words:,} words have no tag" if self.cut_words else ""
        context = self.model.config.context
        note(
            f"{subject} longer than the model's context of {context:,} tokens and cut to it{words}"
        )
