"""The labelled objective: an example is read, and its label said."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Int

from qkv.data.batches.batch import IGNORE, Batch
from qkv.data.batches.framing import Frame, Framed, FramedExamples
from qkv.data.batches.order import check_seed, draws

Targets = Sequence[Any] | np.ndarray
"""The class or the right choice of each example; of sentences, the tag of each word."""

STRETCH = 50
"""Batches whose examples are sorted by length together: enough for little padding, few enough to
mix well.
"""
ORDERED = 4
"""Without gradients there is room for batches so many times larger."""


class LabelledData:
    """`batch(step)` to train on, `ordered()` to validate on.

    An epoch has every example once, `rows` a step; its last batch may be smaller. Examples of
    similar length meet in a batch, so that there is little padding, and the batches come in random
    order.
    """

    order_version = 1
    order: Int[np.ndarray, "n"]
    """The numbers of the examples as `ordered` visits them."""

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

        self.framed, self.targets, self.numbers, self.frame = framed, targets, numbers, frame
        self.rows, self.seed, self.multiple = rows, seed, multiple
        self.order = np.argsort(framed.lengths, kind="stable")
        self.steps_per_epoch = -(-len(framed) // rows)
        self.tokens_per_step = len(framed.ids) // self.steps_per_epoch
        self.epoch = lru_cache(maxsize=1)(self.draw_epoch)

    def draw_epoch(self, epoch: int) -> tuple[Int[np.ndarray, "n"], Int[np.ndarray, "steps"]]:
        """The examples, of similar length within each batch, and the order of the batches."""
        random = draws("examples", self.seed, epoch)
        mixed = random.permutation(len(self.framed))
        full = len(mixed) // self.rows  # batches; what is left over makes the epoch's last one

        for first in range(0, full, STRETCH):
            part = slice(first * self.rows, min(first + STRETCH, full) * self.rows)
            mixed[part] = mixed[part][np.argsort(self.framed.lengths[mixed[part]], kind="stable")]

        return mixed, np.append(random.permutation(full), np.arange(full, self.steps_per_epoch))

    def batch(self, step: int) -> Batch:
        if step < 0:
            raise ValueError(f"step: expected 0 or more, not {step}")

        examples, batches = self.epoch(step // self.steps_per_epoch)
        number = int(batches[step % self.steps_per_epoch])
        return self.chosen(examples[number * self.rows : (number + 1) * self.rows])

    def ordered(self) -> Iterator[Batch]:
        """Every example once, the shortest first."""
        rows = self.rows * ORDERED
        for first in range(0, len(self.order), rows):
            yield self.chosen(self.order[first : first + rows])

    def chosen(self, numbers: Int[np.ndarray, "B"]) -> Batch:
        target_positions = numbers.tolist()
        return join(
            [self.framed[place] for place in target_positions],
            self.frame,
            None if self.targets is None else [self.targets[place] for place in target_positions],
            None
            if self.numbers is None
            else [float(self.numbers[place]) for place in target_positions],
            multiple=self.multiple,
        )


def join(
    framed: Sequence[Framed],
    frame: Frame,
    targets: Targets | None = None,
    numbers: Sequence[float] | None = None,
    *,
    multiple: int = 1,
) -> Batch:
    """Examples as the rows of a batch. Without targets there are zeros where something is asked.

    Sequences, and the places of words, are padded to a `multiple`, so that batches have few shapes.
    """
    B, G = len(framed), max(len(each.sequences) for each in framed)
    # A row with fewer sequences than another repeats its first one; its place there is -1.
    chosen = [
        number if number < len(each.sequences) else 0 for each in framed for number in range(G)
    ]
    sequences = [framed[i // G].sequences[number] for i, number in enumerate(chosen)]
    lengths = np.array([len(sequence) for sequence in sequences])
    T = min(up_to(int(lengths.max()), multiple), max(frame.context, int(lengths.max())))
    padding_mask = np.arange(T) < lengths[:, None]  # (B * G, T)
    ids = np.full(padding_mask.shape, frame.padding, dtype=np.int64)
    ids[padding_mask] = np.concatenate(sequences)
    segments = None
    if frame.segments:
        seconds = np.array([framed[i // G].seconds[number] for i, number in enumerate(chosen)])
        segments = (
            ((np.arange(T) >= seconds[:, None]) & padding_mask).astype(np.int64).reshape(B, G * T)
        )

    words = max(1, *(len(each.target_positions) for each in framed))
    N = up_to(words, multiple) if frame.task == "tag" else G
    target_positions = np.full((B, N), 0 if frame.task == "tag" else -1, dtype=np.int64)

    for row, each in enumerate(framed):
        target_positions[row, : len(each.target_positions)] = each.target_positions

    return Batch(
        ids=torch.from_numpy(ids.reshape(B, G * T)),
        targets=torch.from_numpy(asked(framed, targets, N if frame.task == "tag" else 1)),
        target_positions=torch.from_numpy(target_positions),
        padding_mask=None
        if padding_mask.all() and multiple == 1
        else torch.from_numpy(padding_mask.reshape(B, G * T)),
        segments=None if segments is None else torch.from_numpy(segments),
        numbers=None
        if numbers is None
        else torch.tensor(numbers, dtype=torch.float64).unsqueeze(1),  # (B, 1)
        group=G,
    )


def up_to(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple


def asked(framed: Sequence[Framed], targets: Targets | None, N: int) -> Int[np.ndarray, "B N"]:
    """One target a row, or one a word that has a place; IGNORE beyond those."""
    made = np.full((len(framed), N), IGNORE, dtype=np.int64)
    for row, each in enumerate(framed):
        count = min(N, len(each.target_positions))  # of a group one, although it has several places
        made[row, :count] = 0 if targets is None else np.atleast_1d(targets[row])[:count]

    return made
