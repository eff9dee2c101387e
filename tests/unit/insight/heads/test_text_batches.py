"""Batches of one text: ids with special tokens, and reproducible targets."""

from __future__ import annotations

import torch
from torch.testing import assert_close

from qkv.insight.heads.text_batches import batches_from_pairs, batches_from_texts
from qkv.text import train
from support.families import bert, gpt
from support.sentences import SENTENCES


def test_texts_as_batches() -> None:
    tokenizer = train("words", SENTENCES, 80)
    (batch,) = batches_from_texts(gpt(vocabulary=80), tokenizer, ["the cat sat", " "])
    assert_close(batch.ids[:, 1:], batch.targets[:, :-1])
    model = bert(vocabulary=80)
    first, again = (batches_from_texts(model, tokenizer, SENTENCES[:3]) for _ in range(2))
    assert all(
        torch.equal(a.ids, b.ids) and torch.equal(a.targets, b.targets)
        for a, b in zip(first, again, strict=True)
    )
    assert all(batch.count >= 1 and batch.ids[0, 0] == tokenizer.start for batch in first)
    (alone,) = batches_from_texts(bert(vocabulary=80, mlm_head=False), tokenizer, ["the cat sat"])
    assert alone.ids[0].tolist() == [
        tokenizer.start,
        *tokenizer.encode("the cat sat"),
        tokenizer.end,
    ]
    (pair,) = batches_from_pairs(tokenizer, [("the cat", "the cat sat")])
    assert pair.source is not None
    assert pair.source[0].tolist() == [*tokenizer.encode("the cat"), tokenizer.end]
    assert (pair.ids[0, 0], pair.targets[0, -1]) == (tokenizer.start, tokenizer.end)
