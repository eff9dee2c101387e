"""Masked batches: how many positions are masked, which ones, and what the model reads there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.batches.batch import IGNORE, Batch
from qkv.data.batches.masked import MaskedData, WordPieces
from qkv.data.tokens.token_arrays import Tokens
from qkv.text.frame_tokens import FrameTokens
from qkv.text.tokenizer_training import train
from support.made_data import make_texts, make_tokens, same_batch

PAD, UNKNOWN, START, END, MASK = range(5)
V = 100


def vocabulary(**change: Any) -> WordPieces:
    """Ids 0 to 4 are special, 5 to 49 start a word, and 50 to 99 continue one."""
    ids = np.arange(V)
    frame = FrameTokens([START], [END])
    return WordPieces(
        **{"mask": MASK, "starts_word": ids < 50, "special": ids < 5, "frame": frame} | change
    )


def distinct(count: int) -> WordPieces:
    """A vocabulary of `count` tokens, for texts in which no token occurs twice."""
    ids = np.arange(count)
    return vocabulary(starts_word=ids >= 0, special=ids < 5)


def text(length: int) -> list[int]:
    return (5 + np.random.default_rng(0).integers(95, size=length)).tolist()


def restored(batch: Batch) -> torch.Tensor:
    """The rows with the original tokens at the masked positions."""
    assert batch.target_positions is not None
    ids = batch.ids.clone()
    for row in range(batch.rows):
        has_target = batch.targets[row] != IGNORE
        ids[row, batch.target_positions[row][has_target]] = batch.targets[row][has_target]
    return ids


def masked(tokens: Tokens, **change: Any) -> MaskedData:
    return MaskedData(
        **{"tokens": tokens, "context": 22, "rows": 3, "seed": 0, "words": vocabulary()} | change
    )


@given(
    step=st.integers(0, 30),
    context=st.integers(3, 40),
    rate=st.sampled_from([0.01, 0.15, 0.5, 1.0]),
)
def test_a_row_is_the_text_with_a_fixed_number_of_masked_tokens(
    step: int, context: int, rate: float
) -> None:
    ids = text(150)
    batch = masked(make_tokens(ids), context=context, rate=rate).batch(step)
    masked_count = max(1, round(rate * (context - 2)))
    assert batch.target_positions is not None
    assert batch.target_positions.shape == batch.targets.shape == (3, masked_count)
    assert batch.count == 3 * masked_count
    assert batch.tokens == 3 * context
    runs = {tuple(ids[begin : begin + context - 2]) for begin in range(len(ids))}
    for row, target_positions in zip(
        restored(batch).tolist(), batch.target_positions.tolist(), strict=True
    ):
        assert (row[0], row[-1]) == (START, END)
        assert tuple(row[1:-1]) in runs
        assert len(set(target_positions)) == masked_count


@given(length=st.integers(1, 120), context=st.integers(3, 60))
def test_every_token_is_in_a_row_of_every_epoch(length: int, context: int) -> None:
    data = masked(
        make_tokens(list(range(5, 5 + length))), context=context, rows=1, words=distinct(length + 5)
    )
    for epoch in range(2):
        steps = range(epoch * data.windows.count, (epoch + 1) * data.windows.count)
        read = {id for step in steps for id in restored(data.batch(step)).flatten().tolist()}
        assert read - {PAD, START, END} == set(range(5, 5 + length))


def test_over_the_epochs_every_token_is_masked() -> None:
    data = masked(make_tokens(list(range(5, 45))), context=22, rows=4, words=distinct(45))
    targets = torch.cat([data.batch(step).targets.flatten() for step in range(60)])
    assert set(targets.tolist()) == set(range(5, 45))


def test_without_start_and_end_tokens_the_text_fills_the_row() -> None:
    batch = masked(
        make_tokens(text(22)), words=vocabulary(frame=FrameTokens([], [])), rows=1
    ).batch(0)
    assert restored(batch).tolist() == [text(22)]


def test_80_percent_are_shown_as_mask_10_as_random_and_10_unchanged() -> None:
    batch = masked(make_tokens(text(100_000)), context=1002, rows=60).batch(0)
    assert batch.target_positions is not None
    shown = batch.ids.gather(1, batch.target_positions)
    original = batch.targets
    total = original.numel()
    assert total == 60 * 150
    share = {
        "mask": (shown == MASK).sum() / total,
        "unchanged": (shown == original).sum() / total,
        "random": ((shown != MASK) & (shown != original)).sum() / total,
    }
    # A random token equals the original once in 95. Standard deviations: 0.42%, 0.32%, 0.32%.
    assert share == pytest.approx(
        {"mask": 0.8, "unchanged": 0.1 + 0.1 / 95, "random": 0.1 - 0.1 / 95}, abs=0.015
    )
    others = shown[(shown != MASK) & (shown != original)]
    assert others.min() >= 5
    assert len(others.unique()) == 95  # any ordinary token, and no special token


def test_every_position_is_masked_equally_often() -> None:
    data = masked(make_tokens(text(500)), rows=40)
    target_positions = torch.cat(
        [data.batch(step).target_positions.flatten() for step in range(100)]
    )  # 12,000 of 20 positions
    counts = torch.bincount(target_positions, minlength=22)
    assert counts[0] == counts[21] == 0
    assert (counts[1:21] / 600 - 1).abs().max() < 0.2  # 5 deviations


@given(step=st.integers(0, 20), whole=st.booleans())
def test_special_tokens_are_never_masked_and_lower_the_count(step: int, whole: bool) -> None:
    texts = [[*text(length), END] for length in (3, 1, 9, 1, 1, 1, 30, 2)] + [
        [UNKNOWN, MASK, PAD, END]
    ] * 5
    data = masked(make_texts(texts), rate=0.4, whole_words=whole)
    batch = data.batch(step)
    assert batch.targets.shape == (3, 8)
    for row, targets in zip(restored(batch).tolist(), batch.targets.tolist(), strict=True):
        ordinary = sum(id >= 5 for id in row)
        masked_ids = [target for target in targets if target != IGNORE]
        assert all(target >= 5 for target in masked_ids)
        one_word = all(
            target >= 50 for target in masked_ids[1:]
        )  # a single word is masked whole even if it is longer
        assert len(masked_ids) == min(ordinary, max(1, round(0.4 * ordinary))) or (
            whole and (one_word or len(masked_ids) <= round(0.4 * ordinary))
        )
        assert targets[len(masked_ids) :] == [IGNORE] * (8 - len(masked_ids))


def test_a_row_of_special_tokens_has_no_targets() -> None:
    for whole in (False, True):
        batch = masked(make_tokens([END] * 20), rows=1, whole_words=whole).batch(0)
        assert batch.count == 0
        assert batch.ids.tolist() == [[START, *[END] * 20, END]]


@given(step=st.integers(0, 30), rate=st.sampled_from([0.2, 0.5]))
def test_the_pieces_of_a_word_are_masked_together(step: int, rate: float) -> None:
    batch = masked(make_tokens(text(300)), context=42, rate=rate, whole_words=True).batch(step)
    assert batch.target_positions is not None
    for row, target_positions, targets in zip(
        restored(batch).tolist(),
        batch.target_positions.tolist(),
        batch.targets.tolist(),
        strict=True,
    ):
        positions = {
            position
            for position, target in zip(target_positions, targets, strict=True)
            if target != IGNORE
        }
        assert 0 < len(positions) <= round(rate * 40)
        assert (
            len(positions) >= round(rate * 40) - 2
        )  # words of one piece are frequent and fill the rest
        for position in range(2, 41):
            if row[position] >= 50:  # continues the word before it
                assert (position in positions) == (position - 1 in positions)


def test_a_special_token_ends_a_word() -> None:
    data = masked(
        make_tokens([10, END, 60]), context=5, rows=1, rate=0.5, whole_words=True
    )  # 60 continues no word
    for step in range(20):
        ids = data.batch(step).ids[0]
        assert (ids != torch.tensor([START, 10, END, 60, END])).sum() <= 1


def test_a_word_longer_than_the_limit_is_masked_whole() -> None:
    batch = masked(make_tokens([10, *[60] * 19]), rows=1, whole_words=True, rate=0.1).batch(0)
    assert batch.targets.shape == (1, 2)
    assert batch.count == 2
    assert (batch.ids[0, 1:21] == MASK).sum() > 10


def test_a_step_is_the_same_computed_directly_and_seeds_differ() -> None:
    tokens = make_tokens(text(500))
    sequential = masked(tokens, seed=4)
    batches = [sequential.batch(step) for step in range(40)]
    for step in (39, 3):
        assert same_batch(masked(tokens, seed=4).batch(step), batches[step])
        assert not same_batch(masked(tokens, seed=5).batch(step), batches[step])
    assert len({tuple(batch.target_positions.flatten().tolist()) for batch in batches}) == 40


@given(context=st.integers(3, 50), rows=st.integers(1, 5))
def test_in_order_every_token_is_read_once_with_the_same_masks(context: int, rows: int) -> None:
    tokens = make_tokens(text(47))
    data = masked(tokens, context=context, rows=rows)
    batches = list(data.ordered())
    read = [
        restored(batch) if batch.padding_mask is None else restored(batch)[batch.padding_mask]
        for batch in batches
    ]
    ids = torch.cat([row.flatten() for row in read])
    assert ids[ids >= 5].tolist() == text(47)
    assert {batch.ids.shape[1] for batch in batches} == {context}
    others = masked(tokens, context=context, rows=1, seed=9).ordered()
    for row, other in zip(
        (part for batch in batches for part in batch.split(batch.rows)), others, strict=True
    ):
        assert same_batch(row, other)


def test_start_and_end_belong_to_the_outer_documents() -> None:
    tokens = make_texts([[10, 11, END], [20, END], [30, 31, 32]])
    (batch,) = masked(tokens, context=12, rows=1, across_documents=False).ordered()
    assert restored(batch).tolist() == [[START, 10, 11, END, 20, END, 30, 31, 32, END, PAD, PAD]]
    assert batch.documents is not None
    assert batch.positions is not None
    assert batch.documents[0, :10].tolist() == [0, 0, 0, 0, 1, 1, 2, 2, 2, 2]
    assert batch.positions[0, :10].tolist() == [0, 1, 2, 3, 0, 1, 0, 1, 2, 3]
    assert batch.padding_mask is not None
    assert batch.padding_mask.tolist() == [[True] * 10 + [False] * 2]


def test_the_word_pieces_of_a_trained_tokenizer() -> None:
    tokenizer = train(
        "word-piece", ["unbelievable unbearable believe bear", "unable able bearing"] * 3, 60
    )
    pieces = WordPieces.of(tokenizer)
    assert pieces.special.tolist() == [True] * 5 + [False] * (tokenizer.vocabulary - 5)
    assert (*pieces.frame, pieces.mask, pieces.padding) == ([START], [END], MASK, PAD)
    ids = tokenizer.encode("unbelievable bearing able " * 30)
    data = masked(make_tokens(ids), words=pieces, whole_words=True, rate=0.5)
    batch = data.batch(0)
    for row, masked_row in zip(restored(batch).tolist(), batch.ids.tolist(), strict=True):
        assert tokenizer.decode(row).strip()
        assert row != masked_row


def test_wrong_arguments_are_refused() -> None:
    tokens = make_tokens(text(50))
    with pytest.raises(ValueError, match=r"context: expected 3 or more.*not 2"):
        masked(tokens, context=2)
    for rate in (0.0, -0.1, 1.5):
        with pytest.raises(
            ValueError, match=f"rate: expected a fraction above 0, up to 1, not {rate}"
        ):
            masked(tokens, rate=rate)
    with pytest.raises(ValueError, match=r"tokenizer: .*only special tokens"):
        masked(tokens, words=vocabulary(special=np.ones(V, dtype=bool)))
