"""Labelled examples for fine-tuning: padded batches of examples of similar length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from qkv.data.batches.batch import IGNORE, Batch
from qkv.data.batches.framing import Frame, Framed, FramedExamples
from qkv.data.batches.order import check_seed, epoch_and_index, random_generator
from qkv.data.batches.padding import pad_rows, up_to

Targets = Sequence[Any] | np.ndarray
"""The class or the correct choice of each example; for sentences, the tag of each word."""

BUCKET = 50
"""Batches whose examples are sorted by length together: large enough to reduce padding, small
enough to shuffle well.
"""
VALIDATION_FACTOR = 4
"""How much larger validation batches are: without gradients they need less memory."""


@dataclass(eq=False, repr=False)
class LabelledData:
    """Labelled batches: `batch(step)` for training, `ordered()` for validation.

    An epoch has every example once, `rows` per step; its last batch may be smaller. Examples of
    similar length share a batch to reduce padding, and the batches come in random order.
    """

    framed: FramedExamples
    targets: Targets | None
    numbers: Sequence[float] | np.ndarray | None
    frame: Frame
    rows: int
    seed: int = 0
    multiple: int = field(default=1, kw_only=True)
    order: Int[np.ndarray, "n"] = field(init=False)
    """The numbers of the examples in the order of `ordered`."""
    order_version: int = field(default=1, init=False)

    def __post_init__(self) -> None:
        check_seed(self.seed)
        count = len(self.framed)
        if self.rows < 1:
            raise ValueError(f"rows: expected 1 or more, not {self.rows}")
        if not count:
            raise ValueError("examples: expected 1 or more, not 0")

        for name, values in (("targets", self.targets), ("numbers", self.numbers)):
            if values is not None and len(values) != count:
                raise ValueError(
                    f"{name}: expected one for each of {count} examples, not {len(values)}"
                )

        self.order = np.argsort(self.framed.lengths, kind="stable")
        self.steps_per_epoch = -(-count // self.rows)
        self.tokens_per_step = len(self.framed.ids) // self.steps_per_epoch
        self.epoch = lru_cache(maxsize=1)(self.shuffle_epoch)

    def shuffle_epoch(self, epoch: int) -> tuple[Int[np.ndarray, "n"], Int[np.ndarray, "steps"]]:
        """The examples, sorted by length in buckets of batches, and the order of the batches."""
        random = random_generator("examples", self.seed, epoch)
        shuffled = random.permutation(len(self.framed))
        full = len(shuffled) // self.rows  # full batches; the rest is the epoch's last batch

        for first in range(0, full, BUCKET):
            bucket = slice(first * self.rows, min(first + BUCKET, full) * self.rows)
            lengths = self.framed.lengths[shuffled[bucket]]
            shuffled[bucket] = shuffled[bucket][np.argsort(lengths, kind="stable")]

        last = np.arange(full, self.steps_per_epoch)

        return shuffled, np.append(random.permutation(full), last)

    def batch(self, step: int) -> Batch:
        """The batch of a training step."""
        epoch, index = epoch_and_index(step, self.steps_per_epoch)
        examples, batches = self.epoch(epoch)
        number = int(batches[index])
        return self.build(examples[number * self.rows : (number + 1) * self.rows])

    def ordered(self) -> Iterator[Batch]:
        """Every example once, the shortest first."""
        rows = self.rows * VALIDATION_FACTOR
        for first in range(0, len(self.order), rows):
            yield self.build(self.order[first : first + rows])

    def build(self, numbers: Int[np.ndarray, "B"]) -> Batch:
        """A batch of the examples with these numbers."""
        indices = numbers.tolist()
        targets = None
        if self.targets is not None:
            targets = [self.targets[index] for index in indices]

        values = None
        if self.numbers is not None:
            values = [float(self.numbers[index]) for index in indices]

        framed = [self.framed[index] for index in indices]

        return collate(framed, self.frame, targets, values, multiple=self.multiple)


def collate(
    framed: Sequence[Framed],
    frame: Frame,
    targets: Targets | None = None,
    numbers: Sequence[float] | None = None,
    *,
    multiple: int = 1,
) -> Batch:
    """A batch of framed examples; without targets, every target is 0.

    Sequences and target positions are padded to a `multiple`, so that batches have few shapes.
    """
    sequences, seconds = side_by_side(framed)
    B = len(framed)
    G = len(sequences) // B

    # Pad the sequences.
    longest = max(map(len, sequences))
    T = min(up_to(longest, multiple), max(frame.context, longest))
    ids, padding_mask = pad_rows(sequences, frame.padding, width=T, keep_mask=multiple > 1)

    # Mark the tokens of second texts, for models with segment embeddings.
    segments = None
    if frame.segments:
        starts = zip(sequences, seconds, strict=True)
        is_second = [np.arange(len(sequence)) >= second for sequence, second in starts]
        segments = pad_rows(is_second, width=T)[0].reshape(B, G * T)

    values = None
    if numbers is not None:
        values = torch.tensor(numbers, dtype=torch.float64).unsqueeze(1)  # (B, 1)

    target_positions, count = join_positions(framed, frame, G, multiple)

    return Batch(
        ids=ids.reshape(B, G * T),
        targets=join_targets(framed, targets, count),
        target_positions=target_positions,
        padding_mask=None if padding_mask is None else padding_mask.reshape(B, G * T),
        segments=segments,
        numbers=values,
        group=G,
    )


def side_by_side(
    framed: Sequence[Framed],
) -> tuple[list[Int[np.ndarray, "_"]], list[int]]:
    """G sequences of each example, and where their second texts start.

    An example with fewer sequences than another repeats its first one; it has no target there.
    """
    G = max(len(example.sequences) for example in framed)
    sequences: list[Int[np.ndarray, "_"]] = []
    seconds: list[int] = []

    for example in framed:
        count = len(example.sequences)
        for number in (*range(count), *[0] * (G - count)):
            sequences.append(example.sequences[number])
            seconds.append(int(example.seconds[number]))

    return sequences, seconds


def join_positions(
    framed: Sequence[Framed], frame: Frame, group: int, multiple: int
) -> tuple[Int[Tensor, "B N"], int]:
    """The target positions of each example, and the number of targets of a row.

    Positions are -1 for a missing sequence, 0 for a missing word.
    """
    rows = [example.target_positions for example in framed]
    if frame.task != "tag":
        return pad_rows(rows, -1, width=group)[0], 1

    width = up_to(max(1, *map(len, rows)), multiple)
    return pad_rows(rows, width=width)[0], width


def join_targets(
    framed: Sequence[Framed], targets: Targets | None, count: int
) -> Int[Tensor, "B N"]:
    """One target for each row, or one for each word that has a position; IGNORE beyond those."""
    rows = []
    for row, example in enumerate(framed):
        used = min(count, len(example.target_positions))  # a group has one target for several
        rows.append([0] * used if targets is None else np.atleast_1d(targets[row])[:used])

    return pad_rows(rows, IGNORE, width=count)[0]
