"""Shape buckets: pairs padded further, so that a run has few batch shapes, each a CUDA graph.

The order of the data and the loss do not change: the padding added here is masked, and has no
targets.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool
from torch import Tensor

from qkv.data.batches.batch import IGNORE, Batch

LENGTHS = 8
"""Lengths per octave: a row grows by an eighth at most."""
ROWS = 16
"""Numbers of rows per octave: a batch gets a sixteenth more rows at most."""


def pad_to_bucket(batch: Batch, padding: int = 0, longest: int | None = None) -> Batch:
    """A batch of pairs padded to the shape of its bucket; other batches unchanged.

    Source and target get one length, and the batch more rows. The decoder's own mask is left out:
    its padding comes after the tokens, none of which attends to it. A row that is only padding has
    one token on each side, so that attention is defined, and no target.

    Args:
        batch: Pairs whose padding comes after the tokens, on the CPU.
        padding: The id at the positions added.
        longest: The length of the longest row that the model can read (default: any).
    """
    if batch.source is None or batch.source.device.type != "cpu":
        return batch

    length = bucket_size(max(batch.ids.shape[1], batch.source.shape[1]), LENGTHS)
    if longest is not None:
        length = min(length, longest)

    rows = bucket_size(batch.rows, ROWS)
    fits = (*batch.ids.shape, *batch.source.shape) == (rows, length, rows, length)
    if fits and batch.padding_mask is None and batch.source_padding_mask is not None:
        return batch  # it is padded already

    padded = Batch(
        ids=grown(batch.ids, rows, length, padding),
        targets=grown(batch.targets, rows, length, IGNORE),
        source=grown(batch.source, rows, length, padding),
        source_padding_mask=grown_mask(batch.source, batch.source_padding_mask, rows, length),
    )

    return batch.with_counts(padded)


def bucket_size(size: int, per_octave: int) -> int:
    """The size rounded up so that there are `per_octave` sizes between n and 2 n."""
    step = 1
    while step * 2 * per_octave <= size - 1:
        step *= 2

    return -(-size // step) * step


def grown(values: Tensor, rows: int, length: int, value: int) -> Tensor:
    """(B, T) padded at the end of its rows, and with more of them."""
    missing = (0, length - values.shape[1], 0, rows - values.shape[0])
    return F.pad(values, missing, value=value)


def grown_mask(
    ids: Tensor, padding_mask: Bool[Tensor, "B S"] | None, rows: int, length: int
) -> Bool[Tensor, "R L"]:
    """The padding mask of the grown ids; an added row has one token."""
    if padding_mask is None:
        padding_mask = torch.ones_like(ids, dtype=torch.bool)

    mask = grown(padding_mask, rows, length, False)
    mask[len(ids) :, 0] = True

    return mask
