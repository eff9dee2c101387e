"""Prepared data made in memory, for tests that need no files, and batches compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
import torch

from qkv.data.batches.batch import IGNORE, Batch
from qkv.data.tokens.token_arrays import Pairs, Tokens


def made_tokens(ids: Sequence[int], ends: Sequence[int] | None = None, shard: int = 7) -> Tokens:
    """In small shards, so that most reads cross a border. One text unless ends are given."""
    array = np.array(ids, dtype=np.uint16)
    shards = [array[first : first + shard] for first in range(0, len(array), shard)]
    return Tokens(shards, np.array([len(ids)] if ends is None else ends, dtype=np.int64), "made")


def made_texts(texts: Sequence[Sequence[int]], shard: int = 7) -> Tokens:
    ends = np.cumsum([len(text) for text in texts]).tolist()
    return made_tokens([word for text in texts for word in text], ends, shard)


def made_pairs(pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Pairs:
    sources, targets = zip(*pairs, strict=True)
    return Pairs(made_texts(sources), made_texts(targets))


def same(one: Batch, other: Batch) -> bool:
    values = [(getattr(one, field.name), getattr(other, field.name)) for field in fields(one)]
    return all(
        torch.equal(a, b)
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
        else type(a) is type(b) and a == b
        for a, b in values
    )


def rows_of(batch: Batch) -> list[tuple[list[int], ...]]:
    """Every row without its padding."""
    rows = []
    for row in range(batch.rows):
        padding_mask = slice(None) if batch.padding_mask is None else batch.padding_mask[row]
        asked = batch.targets[row][batch.targets[row] != IGNORE]
        source = [] if batch.source is None else batch.source[row]
        if batch.source is not None and batch.source_padding_mask is not None:
            source = batch.source[row][batch.source_padding_mask[row]]
        rows.append((batch.ids[row][padding_mask].tolist(), asked.tolist(), list(map(int, source))))
    return rows
