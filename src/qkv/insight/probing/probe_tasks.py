"""Probe tasks: token positions, columns of CoNLL-U, or labelled texts, as ids and targets.

position             windows from the middle of texts without special tokens; the target is the
                     position of each token
train.conllu:upos    a column of every word, probed at its first piece, or at its last piece in
                     a model that reads left to right
labels.tsv           a class or a number for every text, probed at the mean of its vectors, or
                     at its first or last one
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Int

from qkv.data.batches.framing import Frame
from qkv.data.batches.labels import label_numbers
from qkv.data.sources.source import open_texts
from qkv.data.tokens.prepare import prepare_texts
from qkv.data.tokens.token_arrays import Tokens
from qkv.insight.probing.activations import ProbeData
from qkv.insight.probing.probe_examples import (
    HELD_OUT,
    Parts,
    are_fractions,
    class_numbers,
    split,
)
from qkv.models.configs import Pooling
from qkv.models.model import Model
from qkv.text.tokenizer import Tokenizer

Measure = Literal["accuracy", "distance"]
Row = tuple[Int[np.ndarray, "_"], Int[np.ndarray, "_"]]
"""The ids of a text, and its probed positions."""
LONGEST = 4096
"""Longest text in tokens for a model without a maximum."""


@dataclass(frozen=True, eq=False)
class ProbeTask:
    """Data to train, validate and test probes on; targets are class numbers or numbers."""

    name: str
    parts: tuple[ProbeData, ProbeData, ProbeData]
    labels: tuple[str, ...]
    """Names of the classes; none if the target is a number."""
    measures: tuple[Measure, ...]
    notes: tuple[str, ...] = ()
    """Notes on the data for the user."""

    def __post_init__(self) -> None:
        for part, name in zip(self.parts, ("train", "validate", "test"), strict=True):
            if not len(part.targets):
                raise ValueError(f"{self.name}: there is nothing to {name} on; give more texts")

        targets = self.parts[0].targets
        if len(np.unique(targets)) < 2:
            only = self.labels[0] if self.labels else f"{targets[0]:g}"
            raise ValueError(
                f"{self.name}: every target is {only!r}; expected two different ones or more"
            )

    def baseline(self) -> dict[Measure, float]:
        """The test score of a constant prediction: the majority class, or the median."""
        training = self.parts[0].targets
        test = self.parts[2].targets
        result: dict[Measure, float] = {}
        for measure in self.measures:
            if measure == "accuracy":
                result[measure] = float((test == np.bincount(training).argmax()).mean())
            else:
                result[measure] = float(np.abs(test - np.median(training)).mean())

        return result


def probe_task(
    model: Model,
    tokenizer: Tokenizer,
    target: str,
    *,
    data: Sequence[str] = (),
    validation: Sequence[str] = (),
    test: Sequence[str] = (),
    length: int = 64,
    windows: int = 2000,
    most: int | None = None,
    text: str | None = None,
    label: str | None = None,
    pooling: Pooling = "mean",
    numbers: bool | None = None,
) -> ProbeTask:
    """Open the data of a probe task.

    Args:
        model: The model that is probed.
        tokenizer: Its tokenizer.
        target: "position", file.conllu:column, or a table of labelled texts.
        data: With position: the texts.
        validation: Files for early stopping; by default a tenth of the texts is held out.
        test: Files to test on; by default another tenth.
        length: With position: the number of tokens in a window.
        windows: With position: the number of training windows.
        most: The largest number of training texts.
        text: With a table: the column of the text (default: the usual names); `label` likewise.
        label: With a table: the column of the label.
        pooling: With a table: the vector of a text: the mean, or the first or last token's.
        numbers: With a table: whether labels are numbers; by default if one has a fraction.

    Returns:
        The data of the training, validation and test split.

    Raises:
        ValueError: If the target is unknown, or the data do not fit it or are too few.

    Example:
        >>> import pathlib, tempfile; from qkv import insight, models, text
        >>> tokenizer = text.train("words", ["good bad film"], 20)
        >>> model = models.GPT(models.GPTConfig(vocabulary=20, width=8, heads=2, depth=1))
        >>> path = pathlib.Path(tempfile.mkdtemp(), "films.csv")
        >>> _ = path.write_text("text,label\\n" + "good film,yes\\nbad film,no\\n" * 10)
        >>> insight.probe_task(model, tokenizer, str(path)).labels
        ('no', 'yes')
    """
    check_data(target, data, validation, test)
    if target == "position":
        return about_position(model, tokenizer, data, length, windows)

    file, column = split_target(target)
    files = {"target": [file], "validation": validation, "test": test}
    if column:
        examples = split(files, most, task="tag", label=column)
        return about_words(model, tokenizer, examples, file, column)

    examples = split(files, most, task="classify", text=text, label=label)
    return about_texts(model, tokenizer, examples, file, pooling, numbers)


def check_data(
    target: str, data: Sequence[str], validation: Sequence[str], test: Sequence[str]
) -> None:
    """Raise if the position task has no texts, or a task has data that it would not use."""
    if target != "position" and data:
        raise ValueError(f"data: the texts are those of {target}; leave it out")
    if target != "position":
        return
    if not data:
        raise ValueError("data: expected texts whose token positions are probed")

    for name, files in (("validation", validation), ("test", test)):
        if files:
            raise ValueError(f"{name}: with position a part of the data is held out; leave it out")


def split_target(target: str) -> tuple[str, str]:
    """The file and the column of a CoNLL-U target; other files have no column."""
    file, _, column = target.rpartition(":")
    if ".conllu" in file and column:
        return file, column

    if ".conllu" in Path(target).name:
        file = target.removesuffix(":")
        raise ValueError(f"target: name a column of {file}, such as {file}:upos")

    return target, ""


# Token positions


def about_position(
    model: Model, tokenizer: Tokenizer, data: Sequence[str], length: int, windows: int
) -> ProbeTask:
    """Predict the position of a token in a window of `length` tokens."""
    context = context_of(model)
    if not 2 <= length <= context:
        raise ValueError(
            f"length: expected 2 to {context:,} tokens, which the model reads at most, not "
            f"{length:,}"
        )

    return position_task(prepare_texts(open_texts(data), tokenizer), length, windows)


def context_of(model: Model) -> int:
    """The largest number of tokens that a model reads; LONGEST for an RNN."""
    return getattr(model.config, "context", LONGEST)


def position_task(
    tokens: Tokens, length: int, windows: int, held_out: float = HELD_OUT
) -> ProbeTask:
    """The position task on tokens; the last parts are held out for validation and testing.

    The windows are the same each time: seeds belong to the probes.
    """
    training, rest = tokens.split(2 * held_out)
    validation, test = rest.split(0.5)
    fewer = max(1, round(windows * held_out))
    parts = (
        draw_windows(training, length, windows, 0),
        draw_windows(validation, length, fewer, 1),
        draw_windows(test, length, fewer, 2),
    )
    labels = tuple(map(str, range(length)))

    return ProbeTask("position", parts, labels, ("distance", "accuracy"))


def draw_windows(tokens: Tokens, length: int, count: int, seed: int = 0) -> ProbeData:
    """Draw up to `count` windows of exactly `length` tokens without special tokens.

    No window begins at the beginning of a text, where the first token would reveal its position.
    """
    begins = np.setdiff1d(np.arange(len(tokens) - length + 1), np.append(tokens.ends, 0))
    if not len(begins):
        raise ValueError(
            f"length: a part of the text has {len(tokens):,} tokens, too few for {length:,}; give "
            "more"
        )

    random = np.random.default_rng(seed)
    drawn = random.choice(begins, size=min(count, len(begins)), replace=False).tolist()
    ids = [tokens.read(begin, begin + length) for begin in drawn]
    positions = [np.arange(length)] * len(ids)

    return ProbeData(ids, positions, np.tile(np.arange(length), len(ids)))


# Columns of CoNLL-U


def about_words(
    model: Model, tokenizer: Tokenizer, examples: Parts, file: str, column: str
) -> ProbeTask:
    """Predict a column of CoNLL-U for each word.

    The target of `head` is the distance to the syntactic head in words, negative to the left; roots
    are left out.
    """
    # If a model reads left to right, only the last piece of a word has seen the whole word.
    left_to_right = model.is_causal or not getattr(model.config, "bidirectional", True)
    pooling = "last" if left_to_right else "first"
    frame = frame_of(model, tokenizer, "tag", pooling)
    rows: list[list[Row]] = []
    targets: list[list[Any]] = []
    cut = 0

    for part in examples:
        framed = frame.encode(tokenizer, part)
        cut += framed.words_cut
        rows.append([])
        targets.append([])
        for example, encoded in zip(part, framed, strict=True):
            positions = encoded.target_positions
            # Words that were cut off have no position, and so no tag.
            tags: list[Any] = list(example.label or ())[: len(positions)]
            if column == "head":
                positions, tags = head_distances(positions, tags)

            rows[-1].append((without_end(model, encoded.sequences[0]), positions))
            targets[-1] += tags

    notes: tuple[str, ...] = ()
    if cut:
        notes = (f"{cut:,} words lie beyond {frame.context:,} tokens and are not probed",)

    name = f"{Path(file).name}:{column}"
    return make_task(name, rows, targets, frame.padding, column == "head", notes=notes)


def head_distances(
    positions: Int[np.ndarray, "_"], heads: list[str]
) -> tuple[Int[np.ndarray, "_"], list[int]]:
    """Positions of the words that are no roots, and the distances to their syntactic heads."""
    head = np.array(list(map(int, heads)), dtype=np.int64)
    distance = head - np.arange(1, len(head) + 1)
    return positions[head != 0], distance[head != 0].tolist()


# Labelled texts


def about_texts(
    model: Model,
    tokenizer: Tokenizer,
    examples: Parts,
    file: str,
    pooling: Pooling,
    numbers: bool | None,
) -> ProbeTask:
    """Predict the class or the number of each text.

    By default labels are numbers if all look like numbers and one has a fraction.
    """
    if pooling not in get_args(Pooling):
        raise ValueError(
            f"pooling: expected one of {', '.join(get_args(Pooling))}, not {pooling!r}"
        )

    targets: list[Any] = [[str(example.label) for example in part] for part in examples]
    if numbers is None:
        numbers = are_fractions(set(chain.from_iterable(targets)))
    if numbers:
        targets = [label_numbers(part).tolist() for part in examples]

    frame = frame_of(model, tokenizer, "classify", pooling)
    rows: list[list[Row]] = []
    for part in examples:
        rows.append([])
        for framed in frame.encode(tokenizer, part):
            ids = without_end(model, framed.sequences[0])
            rows[-1].append((ids, np.minimum(framed.target_positions, len(ids) - 1)))

    mean = pooling == "mean"
    return make_task(Path(file).name, rows, targets, frame.padding, numbers, mean=mean)


# The task


def make_task(
    name: str,
    rows: Sequence[Sequence[Row]],
    targets: Sequence[Sequence[Any]],
    padding: int,
    numbers: bool,
    *,
    mean: bool = False,
    notes: tuple[str, ...] = (),
) -> ProbeTask:
    """The task with these rows and targets in each part; targets are numbers, or class names.

    The training part is shuffled, so that a block is a sample of it.
    """
    labels: tuple[str, ...] = ()
    measures: tuple[Measure, ...] = ("distance",)
    if numbers:
        values = [np.array(part, dtype=np.float64) for part in targets]
    else:
        labels, values = class_numbers(name, targets)
        measures = ("accuracy",)

    parts = []
    for part, part_values in zip(rows, values, strict=True):
        ids = [row[0] for row in part]
        positions = [row[1] for row in part]
        parts.append(ProbeData(ids, positions, part_values, padding, mean))

    training, validation, test = parts
    return ProbeTask(name, (training.shuffled(), validation, test), labels, measures, notes)


# Special tokens


def frame_of(model: Model, tokenizer: Tokenizer, task: str, pooling: str) -> Frame:
    """The special tokens around a text: those of the task head, or those of the architecture."""
    if model.task is not None:
        return Frame(**{**model.config.frame, "task": task, "pooling": pooling, "segments": False})

    end = first_id(tokenizer.end, tokenizer.padding, 0)
    start = tokenizer.start
    if model.has_source or (model.is_causal and not tokenizer.adds_start_token):
        start = None

    context = context_of(model)
    if model.has_source and getattr(model.config, "position", None) != "learned":
        context = max(context, LONGEST)

    return Frame(
        task=task,
        start=start,
        delimiter=end,
        extract=end,
        padding=first_id(tokenizer.padding, end),
        segments=False,
        context=context,
        pooling=pooling,
    )


def first_id(*ids: int | None) -> int:
    """The first id that is not None."""
    return next(id for id in ids if id is not None)


def without_end(model: Model, ids: Int[np.ndarray, "_"]) -> Int[np.ndarray, "_"]:
    """Remove the end token for a bare GPT, which reads none: its last token has seen the text."""
    if model.predicts == "next":
        return ids[:-1]

    return ids
