"""A sequence gives the same logits alone and in a batch, with padding and with packing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from support.families import (
    BERT_KINDS,
    GPT_KINDS,
    RNN_KINDS,
    TRANSFORMER_KINDS,
    bert,
    gpt,
    rnn,
    sources,
    transformer,
    words,
)

LENGTHS = [7, 1, 4]
LONGEST = 8


def padded(texts: list[Tensor], left: bool) -> tuple[Tensor, Tensor]:
    """Return rows of ids and their padding mask; padding holds ids that must not matter."""
    ids = words(len(texts), LONGEST, vocabulary=5)
    padding_mask = torch.zeros(len(texts), LONGEST, dtype=torch.bool)
    for row, text in enumerate(texts):
        columns = slice(0, text.shape[1])
        if left:
            columns = slice(LONGEST - text.shape[1], None)

        ids[row, columns] = text[0]
        padding_mask[row, columns] = True

    return ids, padding_mask


def alike(kind: str) -> bool:
    """Return whether shifting a text keeps its logits; a fixed pattern counts from the start."""
    return not kind.startswith("fixed")


@pytest.mark.parametrize("kind", GPT_KINDS)
def test_padded_gpt_equals_single(kind: str) -> None:
    model = gpt(**GPT_KINDS[kind])
    texts = [words(1, n) for n in LENGTHS]
    for left in (False, True) if alike(kind) else (False,):
        ids, padding_mask = padded(texts, left)
        logits = model(ids, padding_mask=padding_mask)
        assert logits.isfinite().all()
        for row, text in enumerate(texts):
            assert_close(logits[row, padding_mask[row]], model(text)[0])


@pytest.mark.parametrize("kind", BERT_KINDS)
def test_padded_bert_equals_single(kind: str) -> None:
    model = bert(**BERT_KINDS[kind])
    texts = [words(1, n) for n in LENGTHS]
    for left in (False, True) if alike(kind) else (False,):
        ids, padding_mask = padded(texts, left)
        hidden = model.hidden(ids, padding_mask=padding_mask)
        assert hidden.isfinite().all()
        for row, text in enumerate(texts):
            assert_close(hidden[row, padding_mask[row]], model.hidden(text)[0])

    assert_close(model(ids, padding_mask=padding_mask), model.logits(hidden))


@pytest.mark.parametrize("kind", TRANSFORMER_KINDS)
def test_padded_transformer_equals_single(kind: str) -> None:
    model = transformer(**TRANSFORMER_KINDS[kind])
    texts = [sources(model.config, 1, n) for n in LENGTHS]
    answers = [words(1, n) for n in (2, 6, 5)]
    source, source_padding_mask = padded(texts, left=False)
    target, target_padding_mask = padded(answers, left=False)
    logits = model(
        source,
        target,
        source_padding_mask=source_padding_mask,
        target_padding_mask=target_padding_mask,
    )
    for row, (text, answer) in enumerate(zip(texts, answers, strict=True)):
        assert_close(logits[row, target_padding_mask[row]], model(text, answer)[0])

    assert_close(
        model(source, target, source_padding_mask=source_padding_mask)[target_padding_mask],
        logits[target_padding_mask],
    )


@pytest.mark.parametrize("kind", RNN_KINDS)
def test_padded_rnn_equals_single(kind: str) -> None:
    model = rnn(**RNN_KINDS[kind])
    texts = [sources(model.config, 1, n) for n in LENGTHS]
    answers = [words(1, n) for n in (2, 6, 5)]
    source, source_padding_mask = padded(texts, left=False)
    target, target_padding_mask = padded(answers, left=False)
    logits = model(
        source,
        target,
        source_padding_mask=source_padding_mask,
        target_padding_mask=target_padding_mask,
    )
    for row, (text, answer) in enumerate(zip(texts, answers, strict=True)):
        assert_close(logits[row, target_padding_mask[row]], model(text, answer)[0])


def test_a_row_of_padding_alone_is_harmless() -> None:
    """Its logits are finite, other rows are unaffected, and no gradient is NaN."""
    ids = words(2, 5)
    padding_mask = torch.tensor([[True] * 5, [False] * 5])
    for model in (gpt(), bert(), gpt(window=2)):
        actual = model(ids, padding_mask=padding_mask)
        assert actual.isfinite().all()
        assert_close(actual[:1], model(ids[:1]))
        actual.square().sum().backward()
        assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("kind", [kind for kind in GPT_KINDS if alike(kind)])
def test_packed_texts_equal_separate_texts(kind: str) -> None:
    """Packed documents have their own positions and do not attend to each other."""
    model = gpt(**GPT_KINDS[kind])
    texts = [[words(1, n) for n in row] for row in ((3, 1, 5), (4, 4, 1))]
    ids = torch.stack([torch.cat(row, dim=1)[0] for row in texts])
    documents = torch.stack(
        [torch.cat([torch.full((t.shape[1],), i) for i, t in enumerate(row)]) for row in texts]
    )
    positions = torch.stack([torch.cat([torch.arange(t.shape[1]) for t in row]) for row in texts])
    packed = model(ids, documents=documents, positions=positions)
    for row, separate in enumerate(texts):
        assert_close(packed[row], torch.cat([model(text)[0] for text in separate]))


def test_packed_texts_without_new_positions() -> None:
    """With learned positions that do not restart, the second document gives other logits."""
    model = gpt(position="learned")
    ids = words(1, 6)
    documents = torch.tensor([[0, 0, 0, 1, 1, 1]])
    actual = model(ids, documents=documents)
    assert_close(actual[:, :3], model(ids[:, :3]))
    assert not torch.allclose(actual[:, 3:], model(ids[:, 3:]))


@pytest.mark.parametrize("kind", [kind for kind in BERT_KINDS if alike(kind)])
def test_packed_bert_texts_equal_separate_texts(kind: str) -> None:
    model = bert(**BERT_KINDS[kind])
    texts = [words(1, n) for n in (3, 5)]
    documents = torch.tensor([[0] * 3 + [1] * 5])
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]])
    packed = model(torch.cat(texts, dim=1), documents=documents, positions=positions)
    assert_close(packed, torch.cat([model(text) for text in texts], dim=1))
