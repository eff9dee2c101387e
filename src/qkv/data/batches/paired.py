"""Pairs for translation: the encoder reads the source, the decoder learns by teacher forcing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import chain, pairwise

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from qkv.data.batches.batch import IGNORE, Batch
from qkv.data.batches.order import check_seed, random_generator
from qkv.data.tokens.token_arrays import Pairs


class PairedData:
    """Batches of pairs of similar length: `batch(step)` for training, `ordered()` for validation.

    The encoder reads source + [end], the decoder reads [start] + target and predicts target +
    [end]. A batch holds as many pairs as `budget` tokens allow, each counted as long as the batch's
    longest row, so that padding counts, too. Without a budget it holds `rows` pairs, except for the
    last batch of an epoch.
    """

    left_out: int
    """Number of pairs that are longer than the budget or the context, and are never used."""

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

        self.pairs = pairs
        self.start = start
        self.end = end
        self.padding = padding
        self.seed = seed

        # Leave out pairs that are too long; each side has its end token.
        sources = pairs.source_lengths + 1
        targets = pairs.target_lengths + 1
        lengths = np.maximum(sources, targets)
        self.fits = fitting_pairs(lengths, budget, context)
        self.left_out = len(pairs) - len(self.fits)

        # Pairs are sorted by length, then by the tokens of both sides, to reduce padding.
        self.total = (sources + targets)[self.fits]
        self.lengths = lengths[self.fits]
        if budget is None:
            self.borders = np.append(np.arange(0, len(self.fits), rows), len(self.fits))
        else:
            self.borders = cut_by_budget(np.sort(self.lengths), budget)

        self.order_version = 2 if budget is None else 1
        self.steps_per_epoch = len(self.borders) - 1
        self.tokens_per_step = int(self.total.sum()) // self.steps_per_epoch
        self.epoch = lru_cache(maxsize=1)(self.shuffle_epoch)

    def shuffle_epoch(
        self, epoch: int
    ) -> tuple[Int[np.ndarray, "pairs"], Int[np.ndarray, "batches"]]:
        """The pairs by length, shuffled among equal lengths, and the order of the batches."""
        random = random_generator("pairs", self.seed, epoch)
        shuffled = random.permutation(len(self.fits))
        by_length = shuffled[np.lexsort((self.total[shuffled], self.lengths[shuffled]))]

        return self.fits[by_length], random.permutation(self.steps_per_epoch)

    def batch(self, step: int) -> Batch:
        """The batch of a training step."""
        if step < 0:
            raise ValueError(f"step: expected 0 or more, not {step}")

        epoch, index = divmod(step, self.steps_per_epoch)
        by_length, batches = self.epoch(epoch)
        number = int(batches[index])
        return self.build(by_length[self.borders[number] : self.borders[number + 1]])

    def ordered(self) -> Iterator[Batch]:
        """Every pair once, the shortest first."""
        by_length = self.fits[np.lexsort((self.total, self.lengths))]
        for first, last in pairwise(self.borders):
            yield self.build(by_length[first:last])

    def build(self, chosen: Int[np.ndarray, "B"]) -> Batch:
        """A batch of the chosen pairs."""
        encoder_rows: list[list[int]] = []
        decoder_rows: list[list[int]] = []
        target_rows: list[list[int]] = []

        for number in chosen.tolist():
            source = self.pairs.source(number).tolist()
            target = self.pairs.target(number).tolist()
            encoder_rows.append([*source, self.end])
            decoder_rows.append([self.start, *target])
            target_rows.append([*target, self.end])

        source_ids, source_padding_mask = pad_rows(encoder_rows, self.padding)
        ids, padding_mask = pad_rows(decoder_rows, self.padding)
        targets, _ = pad_rows(target_rows, IGNORE)

        return Batch(
            ids=ids,
            targets=targets,
            padding_mask=padding_mask,
            source=source_ids,
            source_padding_mask=source_padding_mask,
        )


def fitting_pairs(
    lengths: Int[np.ndarray, "pairs"], budget: int | None, context: int | None
) -> Int[np.ndarray, "fits"]:
    """The numbers of the pairs that are within the budget and the context."""
    limits = [limit for limit in (budget, context) if limit is not None]
    limit = min(limits, default=int(lengths.max(initial=1)))
    fits = np.flatnonzero(lengths <= limit)
    if len(fits):
        return fits

    reason = "there are none"
    if len(lengths):
        reason = f"the shortest of the {len(lengths)} pairs takes {lengths.min()}"

    raise ValueError(
        f"pairs: none fits into {limit} tokens, {reason}; raise the budget or the context"
    )


def pad_rows(
    rows: list[list[int]], padding: int
) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"] | None]:
    """Rows padded on the right to equal length, and their padding mask (None without padding)."""
    lengths = np.fromiter(map(len, rows), dtype=np.int64)
    padding_mask = np.arange(lengths.max()) < lengths[:, None]  # (B, T)
    ids = np.full(padding_mask.shape, padding, dtype=np.int64)
    ids[padding_mask] = np.fromiter(chain.from_iterable(rows), dtype=np.int64)

    return torch.from_numpy(ids), None if padding_mask.all() else torch.from_numpy(padding_mask)


def cut_by_budget(lengths: Int[np.ndarray, "pairs"], budget: int) -> Int[np.ndarray, "borders"]:
    """Borders of batches of ascending lengths with rows x longest row within the budget."""
    borders = [0]
    while borders[-1] < len(lengths):
        begin = borders[-1]
        candidates = lengths[begin : begin + budget // int(lengths[begin])]
        sizes = candidates * np.arange(1, len(candidates) + 1)  # of the first 1, 2, ... rows
        borders.append(begin + int(np.searchsorted(sizes, budget, side="right")))

    return np.array(borders, dtype=np.int64)
