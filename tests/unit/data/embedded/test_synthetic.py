"""Synthetic tasks: every rule against a plain definition, determinism, and disjoint splits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

from qkv.data import open_pairs, open_texts
from qkv.data.batches.batch import IGNORE, Batch
from qkv.data.embedded import synthetic, synthetic_batches
from qkv.data.embedded.synthetic_batches import (
    END,
    FIRST_TOKEN,
    PADDING,
    START,
    back_batch,
    copy_batch,
    lookups_batch,
    random_batch,
    repeated_batch,
    reverse_batch,
)

MAKERS: list[Callable[..., Any]] = [
    copy_batch,
    reverse_batch,
    back_batch,
    lookups_batch,
    random_batch,
    repeated_batch,
]

# Batches


@pytest.mark.parametrize("maker", MAKERS)
def test_a_batch_depends_on_split_seed_and_step_alone(maker: Callable[..., Any]) -> None:
    first = maker(3, 5, 4, 16, 40)
    for arguments in ((3, 6), (4, 5)):
        assert not maker(*arguments, 4, 16, 40).ids.equal(first.ids)

    for split in ("valid", "test"):
        assert not maker(3, 5, 4, 16, 40, split=split).ids.equal(first.ids)

    torch.manual_seed(1)  # the global generator has no influence
    again = maker(3, 5, 4, 16, 40)
    assert again.ids.equal(first.ids)
    assert again.targets.equal(first.targets)


@pytest.mark.parametrize("maker", MAKERS)
def test_wrong_sizes_are_refused(maker: Callable[..., Any]) -> None:
    for arguments in ((0, 0, 0, 16, 40), (0, 0, 4, 0, 40), (0, 0, 4, 16, 1)):
        with pytest.raises(ValueError, match=r"rows|length|vocabulary"):
            maker(*arguments)

    with pytest.raises(ValueError, match="seed: expected 0 or more, not -1"):
        maker(-1, 0, 4, 16, 40)
    with pytest.raises(ValueError, match="step: expected 0 or more, not -1"):
        maker(0, -1, 4, 16, 40)


def unpadded(batch: Batch) -> list[tuple[list[int], list[int], list[int]]]:
    """The tokens that each row's encoder and decoder read, and the targets, without padding."""
    assert batch.source is not None
    rows = []
    for row in range(batch.rows):
        source = [id for id in batch.source[row].tolist() if id != PADDING]
        ids = [id for id in batch.ids[row].tolist() if id != PADDING]
        targets = [id for id in batch.targets[row].tolist() if id != IGNORE]
        rows.append((source, ids, targets))

    return rows


@pytest.mark.parametrize("shortest", [None, 1])
@pytest.mark.parametrize(("maker", "turn"), [(copy_batch, list), (reverse_batch, reversed)])
def test_pairs_are_laid_out_for_teacher_forcing(
    maker: Callable[..., Batch], turn: Callable[[list[int]], Any], shortest: int | None
) -> None:
    batch = maker(0, 0, 50, 8, 20, shortest=shortest)
    lengths = set()
    for source, ids, targets in unpadded(batch):
        *tokens, last = source
        expected = list(turn(tokens))
        assert last == END
        assert ids == [START, *expected]
        assert targets == [*expected, END]
        assert all(FIRST_TOKEN <= token < 20 for token in tokens)
        lengths.add(len(tokens))

    assert lengths == ({8} if shortest is None else set(range(1, 9)))


def test_the_masks_of_pairs_mark_the_padding() -> None:
    batch = copy_batch(0, 0, 50, 8, 20, shortest=1)
    assert batch.source is not None
    assert batch.padding_mask is not None
    assert batch.source_padding_mask is not None
    assert batch.padding_mask.equal(batch.ids != PADDING)
    assert batch.source_padding_mask.equal(batch.source != PADDING)
    assert (batch.targets == IGNORE).equal(~batch.padding_mask)

    assert copy_batch(0, 0, 50, 8, 20).padding_mask is None
    for wrong in (0, 9):
        with pytest.raises(ValueError, match=f"shortest: expected 1 to 8, not {wrong}"):
            copy_batch(0, 0, 50, 8, 20, shortest=wrong)


def test_copy_and_reverse_read_the_same_sources() -> None:
    copied = copy_batch(1, 2, 6, 9, 30, shortest=3).source
    turned = reverse_batch(1, 2, 6, 9, 30, shortest=3).source
    assert copied is not None
    assert turned is not None
    assert copied.equal(turned)


@pytest.mark.parametrize("distance", [0, 1, 5, 11])
def test_back_is_the_token_that_many_positions_before(distance: int) -> None:
    batch = back_batch(0, 0, 7, 12, 10, distance=distance)
    assert batch.ids.equal(back_batch(0, 0, 7, 12, 10, distance=1).ids)
    for ids, targets in zip(batch.ids.tolist(), batch.targets.tolist(), strict=True):
        for position, target in enumerate(targets):
            expected = ids[position - distance] if position >= distance else IGNORE
            assert target == expected


def test_several_lookups_are_those_of_one_each() -> None:
    batch = lookups_batch(2, 3, 5, 12, 64, distances=(1, 3, 5, 7))
    assert batch.targets.shape == (5, 12, 4)
    for answer, distance in enumerate((1, 3, 5, 7)):
        one = back_batch(2, 3, 5, 12, 64, distance=distance)
        assert batch.ids.equal(one.ids)
        assert batch.targets[..., answer].equal(one.targets)

    for wrong in ((), (-1,), (1, 12)):
        with pytest.raises(ValueError, match="distances: expected numbers from 0 to 11"):
            lookups_batch(0, 0, 5, 12, 64, distances=wrong)


def test_random_tokens_are_shifted_by_one_and_even() -> None:
    batch = random_batch(0, 0, 200, 50, 10)
    assert batch.targets[:, :-1].equal(batch.ids[:, 1:])
    assert batch.targets.min() == 0
    assert batch.targets.max() == 9

    # Neither token nor pair of neighbours is likelier than another, within 5 standard deviations.
    pairs = (batch.ids * 10 + batch.targets).flatten().bincount(minlength=100)
    expected = pairs.sum().item() / 100
    assert (pairs - expected).abs().max() < 5 * math.sqrt(expected)


def test_repeated_blocks_of_several_sizes() -> None:
    batch = repeated_batch(0, 0, 60, 16, 1000)
    sizes = set()
    for ids, targets in zip(batch.ids.tolist(), batch.targets.tolist(), strict=True):
        size = targets.count(IGNORE)
        sizes.add(size)
        assert targets[:size] == [IGNORE] * size
        for position in range(size, 16):
            assert ids[position] == ids[position - size]
            assert targets[position] == ids[position - size + 1]

    assert sizes == {4, 5, 6, 7, 8}
    with pytest.raises(ValueError, match="length: expected 8 or more, not 7"):
        repeated_batch(0, 0, 1, 7, 10)


# Texts


def test_texts_follow_their_rules() -> None:
    copied = list(open_pairs(["copy:test"]))
    assert len(copied) == 500
    for (source, target), (same, turned) in zip(copied, open_pairs(["reverse:test"]), strict=True):
        assert source == target == same
        assert turned.split() == source.split()[::-1]
        assert 4 <= len(source.split()) <= 12

    for part in open_texts(["back:test"]):
        letters = part.text.split()
        assert len(letters) == 32
        assert all(letters[position] == letters[position - 8] for position in range(8, 32))

    letters = [letter for part in open_texts(["random:test"]) for letter in part.text.split()]
    counts = Counter(letters)
    assert len(letters) == 500 * 32
    assert len(counts) == 26
    assert max(counts.values()) < 1.3 * min(counts.values())


@pytest.mark.parametrize(
    "name", ["copy_pairs", "reverse_pairs", "lookups_pairs", "back_texts", "random_texts"]
)
def test_texts_are_distinct_also_between_the_splits(name: str) -> None:
    read = getattr(synthetic, name)
    sizes = {"train": 20_000, "valid": 500, "test": 500}
    items = set()
    for split, size in sizes.items():
        found = list(read(split))
        assert found == list(read(split))
        assert len(found) == size
        items.update(found)

    assert len(items) == sum(sizes.values())


def test_lookups_answer_with_tokens_at_four_distances() -> None:
    for source, target in open_pairs(["lookups:valid"]):
        letters = source.split()
        assert target.split() == [letters[-2], letters[-4], letters[-6], letters[-8]]


def test_the_splits_of_batches_have_streams_of_their_own() -> None:
    assert list(synthetic_batches.SPLIT_STREAMS) == list(synthetic.SIZES)
    assert len(set(synthetic_batches.SPLIT_STREAMS.values())) == 3
