"""Pairs for translation: the encoder reads the source, the decoder learns by teacher forcing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from qkv.data.batches.batch import IGNORE, Batch
from qkv.data.batches.order import check_seed, epoch_and_index, random_generator
from qkv.data.tokens.token_arrays import Pairs


@dataclass(eq=False, repr=False)
class PairedData:
    """Batches of pairs of similar length: `batch(step)` for training, `ordered()` for validation.

    The encoder reads source + [end], the decoder reads [start] + target and predicts target +
    [end]. A batch holds as many pairs as `budget` tokens allow, each counted as long as the batch's
    longest row, so that padding counts, too. Without a budget it holds `rows` pairs, except for the
    last batch of an epoch.
    """

    pairs: Pairs
    start: int
    end: int
    padding: int
    budget: int | None
    seed: int = 0
    context: int | None = None
    rows: int | None = field(default=None, kw_only=True)
    left_out: int = field(init=False)
    """Number of pairs that are longer than the budget or the context, and are never used."""

    def __post_init__(self) -> None:
        check_seed(self.seed)
        if (self.budget is None) == (self.rows is None):
            raise ValueError("budget: expected either a budget of tokens or a number of rows")

        # Leave out pairs that are too long; each side has its end token.
        sources = self.pairs.source_lengths + 1
        targets = self.pairs.target_lengths + 1
        lengths = np.maximum(sources, targets)
        self.fits = fitting_pairs(lengths, self.budget, self.context)
        self.left_out = len(self.pairs) - len(self.fits)

        # Pairs are sorted by length, then by the tokens of both sides, to reduce padding.
        self.total = (sources + targets)[self.fits]
        self.lengths = lengths[self.fits]
        if self.budget is None:
            self.borders = np.append(np.arange(0, len(self.fits), self.rows), len(self.fits))
        else:
            self.borders = cut_by_budget(np.sort(self.lengths), self.budget)

        self.order_version = 2 if self.budget is None else 1
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
        epoch, index = epoch_and_index(step, self.steps_per_epoch)
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
        pairs = self.pairs
        source, source_lengths = pairs.texts(pairs.sources, chosen)
        target, target_lengths = pairs.texts(pairs.targets, chosen)

        # Source + [end] for the encoder, [start] + target for the decoder, target + [end] to learn
        source_ids = spread(source, source_lengths, self.padding, last=self.end)
        ids = spread(target, target_lengths, self.padding, first=self.start)
        targets = spread(target, target_lengths, IGNORE, last=self.end)

        return Batch(
            ids=torch.from_numpy(ids),
            targets=torch.from_numpy(targets),
            padding_mask=tokens_before(target_lengths + 1),
            source=torch.from_numpy(source_ids),
            source_padding_mask=tokens_before(source_lengths + 1),
        )


def spread(
    ids: Int[np.ndarray, "N"],
    lengths: Int[np.ndarray, "B"],
    padding: int,
    *,
    first: int | None = None,
    last: int | None = None,
) -> Int[np.ndarray, "B T"]:
    """Texts, given one after another, as padded rows, each with a token before or after it."""
    rows = np.full((len(lengths), int(lengths.max()) + 1), padding, dtype=np.int64)
    text = rows[:, :-1]
    if first is not None:
        rows[:, 0] = first
        text = rows[:, 1:]

    text[np.arange(text.shape[1]) < lengths[:, None]] = ids
    if last is not None:
        rows[np.arange(len(rows)), lengths] = last

    return rows


def tokens_before(lengths: Int[np.ndarray, "B"]) -> Bool[Tensor, "B T"] | None:
    """The padding mask of rows of these lengths; None if they are all equal."""
    is_token = np.arange(int(lengths.max())) < lengths[:, None]
    if is_token.all():
        return None

    return torch.from_numpy(is_token)


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


def cut_by_budget(lengths: Int[np.ndarray, "pairs"], budget: int) -> Int[np.ndarray, "borders"]:
    """Borders of batches of ascending lengths with rows x longest row within the budget."""
    borders = [0]
    while borders[-1] < len(lengths):
        begin = borders[-1]
        candidates = lengths[begin : begin + budget // int(lengths[begin])]
        sizes = candidates * np.arange(1, len(candidates) + 1)  # of the first 1, 2, ... rows
        borders.append(begin + int(np.searchsorted(sizes, budget, side="right")))

    return np.array(borders, dtype=np.int64)
