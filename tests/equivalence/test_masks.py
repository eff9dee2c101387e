"""The matrix, reach and tiles of a mask agree with its definition in plain Python."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.nn.attention import Causal, Document, Mask, Padding, Prefix, Window
from qkv.nn.attention.kernels import flex
from support.brute_force import may_look
from support.draws import KINDS, WITH_REACH, Sizes, masks, masks_of, sizes


def pairs(mask: Mask, n: Sizes) -> list[tuple[int, int, int, int]]:
    """Every allowed (row, head, query position, key position)."""
    return [
        (b, h, q, k)
        for b in range(n.B)
        for h in range(n.H)
        for q in range(n.S - n.T, n.S)
        for k in range(n.S)
        if may_look(mask, b, h, q, k, n.T, n.S)
    ]


def assert_matrix_is_right(mask: Mask, n: Sizes) -> None:
    right = torch.zeros(n.B, n.H, n.T, n.S, dtype=torch.bool)
    for b, h, q, k in pairs(mask, n):
        right[b, h, q - (n.S - n.T), k] = True
    matrix = mask.materialise(n.T, n.S)
    assert matrix.shape == (mask.rows, mask.heads, n.T, n.S)
    assert torch.equal(matrix.expand(n.B, n.H, -1, -1), right)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=30)
@given(sizes(longest=9), st.data())
def test_the_matrix_of_each_kind_is_its_definition(
    kind: type[Mask], n: Sizes, data: st.DataObject
) -> None:
    assert_matrix_is_right(data.draw(masks_of([kind], n)), n)


@given(sizes(longest=9), st.data())
def test_the_matrix_of_a_combination_is_its_definition(n: Sizes, data: st.DataObject) -> None:
    assert_matrix_is_right(data.draw(masks(n)), n)


@settings(max_examples=100)
@given(sizes(longest=14), st.data())
def test_the_reach_is_never_too_small(n: Sizes, data: st.DataObject) -> None:
    mask = data.draw(masks(n, first=WITH_REACH))
    first = data.draw(st.integers(n.S - n.T, n.S - 1))
    last = data.draw(st.integers(first, n.S - 1))
    reach = mask.reach(first, last)
    assert reach is not None
    assert all(reach[0] <= k < reach[1] for _, _, q, k in pairs(mask, n) if first <= q <= last)


@pytest.mark.parametrize("kind", WITH_REACH, ids=lambda kind: kind.__name__)
@settings(max_examples=30)
@given(sizes(longest=14), st.data())
def test_the_reach_of_a_single_mask_is_never_too_large(
    kind: type[Mask], n: Sizes, data: st.DataObject
) -> None:
    """Cut to the existing keys, its ends are visible in some row; tensors give the same."""
    mask = data.draw(masks_of([kind], n))
    first = data.draw(st.integers(n.S - n.T, n.S - 1))
    last = data.draw(st.integers(first, n.S - 1))
    low, high = mask.reach(first, last)
    captured = [k for _, _, q, k in pairs(mask, n) if first <= q <= last]
    assert (max(0, low), min(n.S, high)) == (min(captured), max(captured) + 1)
    lows, highs = mask.reach(torch.tensor([first]), torch.tensor([last]))
    assert (int(lows.min()), int(highs.max())) == (low, high)


@settings(max_examples=100)
@given(sizes(longest=14), st.sampled_from([1, 2, 3, 4, 8]), st.data())
def test_the_layout_covers_every_allowed_tile(n: Sizes, size: int, data: st.DataObject) -> None:
    mask = data.draw(masks(n, first=WITH_REACH))
    layout = mask.layout(n.T, n.S, size, torch.device("cpu"))
    assert layout is not None
    layout = layout.expand(n.B, -1, -1)
    assert layout.shape == (n.B, -(-n.T // size), -(-n.S // size))
    assert all(layout[b, (q - (n.S - n.T)) // size, k // size] for b, _, q, k in pairs(mask, n))


@pytest.mark.parametrize("kind", WITH_REACH, ids=lambda kind: kind.__name__)
@settings(max_examples=30)
@given(sizes(longest=14), st.sampled_from([1, 2, 4]), st.data())
def test_the_layout_of_a_single_mask_has_no_tile_in_vain(
    kind: type[Mask], n: Sizes, size: int, data: st.DataObject
) -> None:
    """A tile that holds nothing allowed would be computed for nothing."""
    mask = data.draw(masks_of([kind], n))
    layout = mask.layout(n.T, n.S, size, torch.device("cpu"))
    assert layout is not None
    needed = {(b, (q - (n.S - n.T)) // size, k // size) for b, _, q, k in pairs(mask, n)}
    assert {tuple(tile) for tile in layout.expand(n.B, -1, -1).nonzero().tolist()} == needed


@given(sizes(longest=14), st.data())
def test_flex_visits_every_allowed_tile(n: Sizes, data: st.DataObject) -> None:
    mask = data.draw(masks(n))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flex, "SIZE", 4)
        visited = (
            flex.block_mask(mask, n.T, n.S, torch.device("cpu"))
            .to_dense()[:, 0]
            .expand(n.B, -1, -1)
        )
    assert all(visited[b, (q - (n.S - n.T)) // 4, k // 4] for b, _, q, k in pairs(mask, n))


def test_a_mask_without_a_reach_returns_none() -> None:
    padding_mask = torch.ones(1, 4, dtype=torch.bool)
    for mask in (Padding(padding_mask), Prefix(2), Padding(padding_mask) & Prefix(2)):
        assert mask.reach(0, 3) is None
        assert mask.layout(4, 4, 2, torch.device("cpu")) is None


def test_and_flattens() -> None:
    parts = (Causal(), Window(3), Document(torch.zeros(1, 4, dtype=torch.long)))
    assert ((parts[0] & parts[1]) & parts[2]).members == parts
    assert (parts[0] & (parts[1] & parts[2])).members == parts


def test_and_takes_a_matrix() -> None:
    allowed = torch.rand(4, 4) < 0.5
    assert torch.equal((Causal() & allowed).materialise(4, 4)[0, 0], allowed.tril())


def test_padding_of_lengths() -> None:
    padding_mask = Padding.of_lengths(torch.tensor([0, 2, 3]), 3).padding_mask
    assert padding_mask.tolist() == [[False] * 3, [True, True, False], [True] * 3]


@pytest.mark.parametrize("kind", ["Causal", "Window", "Blockwise", "Strided", "Fixed"])
def test_a_mask_that_is_the_same_for_all_rows_stays_small(kind: str) -> None:
    masks = {kind.__name__: kind for kind in KINDS}
    mask = masks[kind]() if kind == "Causal" else masks[kind](2)
    assert mask.materialise(5, 5).shape == (1, 1, 5, 5)


def test_a_text_is_a_run_of_one_number() -> None:
    """Padding is often numbered 0, after the texts: what lies apart is never one text."""
    mask = Document(torch.tensor([[1, 1, 2, 0, 0, 1]]))
    expected = torch.block_diag(
        torch.ones(2, 2), torch.ones(1, 1), torch.ones(2, 2), torch.ones(1, 1)
    ).bool()
    assert torch.equal(mask.materialise(6, 6)[0, 0], expected)
    layout = mask.layout(6, 6, 2, torch.device("cpu"))
    tiles = expected.view(3, 2, 3, 2).any(3).any(1)
    assert layout is not None
    assert not (tiles & ~layout[0]).any()
