"""Labelled examples for fine-tuning: padded batches of examples of similar length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int

from qkv.data.batches.batch import IGNORE, Batch
from qkv.data.batches.documents import as_tensor
from qkv.data.batches.framing import Frame, Framed, FramedExamples
from qkv.data.batches.order import check_seed, random_generator

Targets = Sequence[Any] | np.ndarray
"""The class or the correct choice of each example; for sentences, the tag of each word."""

BUCKET = 50
"""Batches whose examples are sorted by length together: large enough to reduce padding, small
enough to shuffle well.
"""
VALIDATION_FACTOR = 4
"""How much larger validation batches are: without gradients they need less memory."""


class LabelledData:
    """Labelled batches: `batch(step)` for training, `ordered()` for validation.

    An epoch has every example once, `rows` per step; its last batch may be smaller. Examples of
    similar length share a batch to reduce padding, and the batches come in random order.
    """

    order_version = 1
    order: Int[np.ndarray, "n"]
    """The numbers of the examples in the order of `ordered`."""

    def __init__(
        self,
        framed: FramedExamples,
        targets: Targets | None,
        numbers: Sequence[float] | np.ndarray | None,
        frame: Frame,
        rows: int,
        seed: int = 0,
        *,
        multiple: int = 1,
    ) -> None:
        check_seed(seed)
        if rows < 1:
            raise ValueError(f"rows: expected 1 or more, not {rows}")
        if not len(framed):
            raise ValueError("examples: expected 1 or more, not 0")

        for name, values in (("targets", targets), ("numbers", numbers)):
            if values is not None and len(values) != len(framed):
                raise ValueError(
                    f"{name}: expected one for each of {len(framed)} examples, not {len(values)}"
                )

        self.framed = framed
        self.targets = targets
        self.numbers = numbers
        self.frame = frame
        self.rows = rows
        self.seed = seed
        self.multiple = multiple
        self.order = np.argsort(framed.lengths, kind="stable")
        self.steps_per_epoch = -(-len(framed) // rows)
        self.tokens_per_step = len(framed.ids) // self.steps_per_epoch
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
        if step < 0:
            raise ValueError(f"step: expected 0 or more, not {step}")

        epoch, index = divmod(step, self.steps_per_epoch)
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
    lengths = np.fromiter(map(len, sequences), dtype=np.int64)
    longest = int(lengths.max())
    T = min(up_to(longest, multiple), max(frame.context, longest))
    is_token = np.arange(T) < lengths[:, None]  # (B * G, T)
    ids = np.full(is_token.shape, frame.padding, dtype=np.int64)
    ids[is_token] = np.concatenate(sequences)

    # Mark the tokens of second texts, for models with segment embeddings.
    segments = None
    if frame.segments:
        is_second = (np.arange(T) >= np.array(seconds)[:, None]) & is_token  # (B * G, T)
        segments = is_second.astype(np.int64).reshape(B, G * T)

    target_positions = join_positions(framed, frame, G, multiple)
    target_count = target_positions.shape[1] if frame.task == "tag" else 1
    values = None
    if numbers is not None:
        values = torch.tensor(numbers, dtype=torch.float64).unsqueeze(1)  # (B, 1)

    return Batch(
        ids=torch.from_numpy(ids.reshape(B, G * T)),
        targets=torch.from_numpy(join_targets(framed, targets, target_count)),
        target_positions=torch.from_numpy(target_positions),
        padding_mask=optional_mask(is_token.reshape(B, G * T), multiple),
        segments=as_tensor(segments),
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
) -> Int[np.ndarray, "B N"]:
    """The target positions of each example; -1 for a missing sequence, 0 for a missing word."""
    width = group
    filler = -1
    if frame.task == "tag":
        words = max(len(example.target_positions) for example in framed)
        width = up_to(max(1, words), multiple)
        filler = 0

    positions = np.full((len(framed), width), filler, dtype=np.int64)
    for row, example in enumerate(framed):
        positions[row, : len(example.target_positions)] = example.target_positions

    return positions


def join_targets(
    framed: Sequence[Framed], targets: Targets | None, count: int
) -> Int[np.ndarray, "B N"]:
    """One target for each row, or one for each word that has a position; IGNORE beyond those."""
    rows = np.full((len(framed), count), IGNORE, dtype=np.int64)
    for row, example in enumerate(framed):
        used = min(count, len(example.target_positions))  # a group has one target for several
        rows[row, :used] = 0 if targets is None else np.atleast_1d(targets[row])[:used]

    return rows


def optional_mask(padding_mask: Bool[np.ndarray, "B T"], multiple: int) -> torch.Tensor | None:
    """The padding mask, or None if it masks nothing; with few shapes it is always present."""
    if multiple == 1 and padding_mask.all():
        return None

    return torch.from_numpy(padding_mask)


def up_to(length: int, multiple: int) -> int:
    """The length rounded up to a multiple."""
    return -(-length // multiple) * multiple
