"""Token arrays in memory for tests without files, and comparisons of batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
import torch

from qkv.data.batches.batch import IGNORE, Batch
from qkv.data.tokens.token_arrays import Pairs, Tokens


def make_tokens(ids: Sequence[int], ends: Sequence[int] | None = None, shard: int = 7) -> Tokens:
    """Tokens in small shards, so that most reads cross a border; by default one document."""
    array = np.array(ids, dtype=np.uint16)
    shards = [array[first : first + shard] for first in range(0, len(array), shard)]
    return Tokens(shards, np.array([len(ids)] if ends is None else ends, dtype=np.int64), "made")


def make_texts(texts: Sequence[Sequence[int]], shard: int = 7) -> Tokens:
    ends = np.cumsum([len(text) for text in texts]).tolist()
    return make_tokens([id for text in texts for id in text], ends, shard)


def make_pairs(pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Pairs:
    sources, targets = zip(*pairs, strict=True)
    return Pairs(make_texts(sources), make_texts(targets))


def same_batch(one: Batch, other: Batch) -> bool:
    values = [(getattr(one, field.name), getattr(other, field.name)) for field in fields(one)]
    return all(
        torch.equal(a, b)
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
        else type(a) is type(b) and a == b
        for a, b in values
    )


def unpadded_rows(batch: Batch) -> list[tuple[list[int], ...]]:
    """The ids, targets and source of every row, without padding."""
    rows = []
    for row in range(batch.rows):
        padding_mask = slice(None) if batch.padding_mask is None else batch.padding_mask[row]
        targets = batch.targets[row][batch.targets[row] != IGNORE]
        source = [] if batch.source is None else batch.source[row]
        if batch.source is not None and batch.source_padding_mask is not None:
            source = batch.source[row][batch.source_padding_mask[row]]
        rows.append(
            (batch.ids[row][padding_mask].tolist(), targets.tolist(), list(map(int, source)))
        )
    return rows
