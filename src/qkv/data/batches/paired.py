"""The paired objective: a source is read, its target said word by word (teacher forcing)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import chain, pairwise

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from qkv.data.batches.batch import IGNORE, Batch
from qkv.data.batches.order import check_seed, draws
from qkv.data.tokens.token_arrays import Pairs


class PairedData:
    """Batches of pairs of similar length: `batch(step)` to train on, `ordered()` to validate on.

    A row reads source + [end] and [start] + target, and says target + [end]. A batch holds as many
    rows as `budget` tokens allow, each row counted as the batch's longest row of either side, so
    padding is paid for too; or, without a budget, always `rows` pairs, but for the last batch of an
    epoch.
    """

    left_out: int
    """How many pairs are longer than the budget or the context, and never seen."""

    def __init__(
        self,
        pairs: Pairs,
        start: int,
        end: int,
        padding: int,
        budget: int | None,
        seed: int = 0,
        context: int | None = None,
        *,
        rows: int | None = None,
    ) -> None:
        check_seed(seed)
        if (budget is None) == (rows is None):
            raise ValueError("budget: expected either a budget of tokens or a number of rows")

        self.pairs, self.start, self.end, self.padding, self.seed = pairs, start, end, padding, seed
        sources, targets = (
            pairs.source_lengths + 1,
            pairs.target_lengths + 1,
        )  # each with its end token
        lengths = np.maximum(sources, targets)
        limit = min(
            [each for each in (budget, context) if each is not None],
            default=int(lengths.max(initial=1)),
        )
        fits = np.flatnonzero(lengths <= limit)
        self.left_out = len(pairs) - len(fits)
        if not len(fits):
            asked = (
                f"the shortest of the {len(pairs)} pairs takes {lengths.min()}"
                if len(pairs)
                else "there are none"
            )
            raise ValueError(
                f"pairs: none fits into {limit} tokens, {asked}; raise the budget or the context"
            )

        # By length; of equal length, by the words of both sides, so that there is less padding.
        self.total = (sources + targets)[fits]
        self.lengths = lengths[fits]
        self.fits = fits
        if budget is None:
            self.borders = np.append(np.arange(0, len(fits), rows), len(fits))
        else:
            self.borders = cut_by_budget(np.sort(self.lengths), budget)

        self.order_version = 2 if budget is None else 1
        self.steps_per_epoch = len(self.borders) - 1
        self.tokens_per_step = int(self.total.sum()) // self.steps_per_epoch
        self.epoch = lru_cache(maxsize=1)(self.draw_epoch)

    def draw_epoch(self, epoch: int) -> tuple[Int[np.ndarray, "pairs"], Int[np.ndarray, "batches"]]:
        """The pairs by length, mixed where the lengths are equal, and the order of the batches cut
        from them.
        """
        random = draws("pairs", self.seed, epoch)
        mixed = random.permutation(len(self.fits))
        by_length = mixed[np.lexsort((self.total[mixed], self.lengths[mixed]))]

        return self.fits[by_length], random.permutation(self.steps_per_epoch)

    def batch(self, step: int) -> Batch:
        if step < 0:
            raise ValueError(f"step: expected 0 or more, not {step}")

        by_length, batches = self.epoch(step // self.steps_per_epoch)
        number = int(batches[step % self.steps_per_epoch])
        return self.join(by_length[self.borders[number] : self.borders[number + 1]])

    def ordered(self) -> Iterator[Batch]:
        """Every pair once, the shortest first."""
        by_length = self.fits[np.lexsort((self.total, self.lengths))]
        for first, last in pairwise(self.borders):
            yield self.join(by_length[first:last])

    def join(self, chosen: Int[np.ndarray, "B"]) -> Batch:
        sources = [self.pairs.source(i).tolist() for i in chosen.tolist()]
        targets = [self.pairs.target(i).tolist() for i in chosen.tolist()]
        source, source_padding_mask = pad([[*source, self.end] for source in sources], self.padding)
        ids, padding_mask = pad([[self.start, *target] for target in targets], self.padding)
        asked, _ = pad([[*target, self.end] for target in targets], IGNORE)

        return Batch(
            ids=ids,
            targets=asked,
            padding_mask=padding_mask,
            source=source,
            source_padding_mask=source_padding_mask,
        )


def pad(
    rows: list[list[int]], padding: int
) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"] | None]:
    """Rows made equally long, and which of their places are words."""
    lengths = np.array([len(row) for row in rows])
    padding_mask = np.arange(lengths.max()) < lengths[:, None]  # (B, T)
    padded = np.full(padding_mask.shape, padding, dtype=np.int64)
    padded[padding_mask] = np.fromiter(chain.from_iterable(rows), dtype=np.int64)

    return torch.from_numpy(padded), None if padding_mask.all() else torch.from_numpy(padding_mask)


def cut_by_budget(lengths: Int[np.ndarray, "pairs"], budget: int) -> Int[np.ndarray, "borders"]:
    """Borders of batches of rising lengths, so that rows x longest stays within the budget. Lengths
    alone decide.
    """
    borders = [0]
    while borders[-1] < len(lengths):
        begin = borders[-1]
        possible = lengths[begin : begin + budget // int(lengths[begin])]
        sizes = possible * np.arange(1, len(possible) + 1)  # of the first 1, 2, ... rows
        borders.append(begin + int(np.searchsorted(sizes, budget, side="right")))

    return np.array(borders, dtype=np.int64)
