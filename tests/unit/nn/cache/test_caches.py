"""What decoding remembers: append, length, growth, reorder."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from qkv.nn import MultiHeadAttention
from qkv.nn.cache import DecoderState, KeyValueCache, RecurrentState, SegmentMemory, SourceCache

B, K, D, X, E = 3, 2, 4, 5, 6


def pieces(*lengths: int) -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(B, K, T, D), torch.randn(B, K, T, X)) for T in lengths]


def joined(given: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    keys, values = zip(*given, strict=True)
    return torch.cat(keys, dim=2), torch.cat(values, dim=2)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(1, 5))
def test_a_cache_returns_all_it_was_given(lengths: list[int], capacity: int) -> None:
    """However the pieces come, and however often its buffers must grow."""
    cache, given_so_far = KeyValueCache(capacity), []
    for piece in pieces(*lengths):
        given_so_far.append(piece)
        actual = cache.append(0, *piece)
        assert_close(actual, joined(given_so_far))
        assert_close(cache.read(0), joined(given_so_far))
        assert cache.length == sum(key.shape[2] for key, _ in given_so_far)


def test_buffers_double_when_full() -> None:
    """A sequence of n tokens is then copied about once per token, not n times."""
    cache = KeyValueCache(capacity=4)
    sizes = []
    for piece in pieces(*[1] * 20):
        cache.append(0, *piece)
        sizes.append(cache.buffers[0][0].shape[2])
    assert sizes == [4] * 4 + [8] * 4 + [16] * 8 + [32] * 4


def test_a_step_writes_in_place() -> None:
    cache = KeyValueCache(capacity=8)
    cache.append(0, *pieces(3)[0])
    before = cache.buffers[0][0].data_ptr()
    cache.append(0, *pieces(1)[0])
    assert cache.buffers[0][0].data_ptr() == before


def test_layers_are_kept_apart_and_the_length_is_what_all_have_seen() -> None:
    cache = KeyValueCache(depth=2)
    assert cache.length == 0
    first, second = pieces(3, 3)
    cache.append(0, *first)
    cache.append(1, *second)
    assert cache.length == 3
    cache.append(0, *pieces(1)[0])
    assert cache.length == 3  # layer 1 has not seen it yet
    assert_close(cache.read(1), second)


@pytest.mark.parametrize("rows", [[2, 0, 1], [1, 1, 1], [0], [2, 2, 0, 1, 0]])
def test_reorder_makes_row_i_the_old_row_rows_i(rows: list[int]) -> None:
    """Also to fewer or more rows, as beam search begins."""
    cache, (first, second, more) = KeyValueCache(capacity=2), pieces(3, 3, 1)
    cache.append(0, *first)
    cache.append(1, *second)
    cache.reorder(torch.tensor(rows))
    assert cache.length == 3
    assert_close(cache.read(0), (first[0][rows], first[1][rows]))
    assert_close(cache.read(1), (second[0][rows], second[1][rows]))
    keys, _ = cache.append(0, more[0][rows], more[1][rows])
    assert_close(keys, torch.cat([first[0][rows], more[0][rows]], dim=2))


@pytest.mark.parametrize("capacity", [3, 64])
@pytest.mark.parametrize("rows", [1, 2, 4])
def test_a_cache_refuses_another_number_of_rows(rows: int, capacity: int) -> None:
    """Whether or not its buffers would have to grow; one row is not taken for all."""
    cache = KeyValueCache(capacity)
    cache.append(0, *pieces(3)[0])
    with pytest.raises(ValueError, match=f"state: it has 3 rows, and the input has {rows}"):
        cache.append(0, torch.randn(rows, K, 1, D), torch.randn(rows, K, 1, X))


def test_a_cache_of_one_row_is_not_taken_for_many() -> None:
    cache = KeyValueCache(capacity=1)
    cache.append(0, torch.randn(1, K, 1, D), torch.randn(1, K, 1, X))
    with pytest.raises(ValueError, match=r"state: .*input"):
        cache.append(0, *pieces(1)[0])


def test_a_segment_memory_refuses_another_number_of_rows() -> None:
    memory = SegmentMemory(4)
    memory.extend(0, torch.randn(B, 2, E))
    with pytest.raises(ValueError, match=r"state: .*input"):
        memory.extend(0, torch.randn(1, 2, E))


def test_a_source_cache_reorders_source_and_padding() -> None:
    source, padding_mask = torch.randn(B, 4, E), torch.rand(B, 4) < 0.5
    cache = SourceCache(source, padding_mask)
    cache.reorder(torch.tensor([2, 2, 0]))
    assert_close(cache.encoded, source[[2, 2, 0]])
    assert torch.equal(cache.padding_mask, padding_mask[[2, 2, 0]])
    without = SourceCache(source)
    without.reorder(torch.tensor([1]))
    assert without.padding_mask is None


def test_a_decoder_state_is_as_long_as_its_target() -> None:
    state = DecoderState.cached(torch.randn(B, 4, E))
    (source, target) = pieces(4, 2)
    state.source.source_keys(0, lambda: source)
    assert state.length == 0
    state.target.append(0, *target)
    assert state.length == 2
    state.reorder(torch.tensor([1, 0, 2]))
    assert_close(state.source.layers[0][0], source[0][[1, 0, 2]])
    assert_close(state.target.read(0)[1], target[1][[1, 0, 2]])
    assert state.length == 2


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(1, 7))
def test_a_segment_memory_is_the_last_of_what_was_seen(lengths: list[int], size: int) -> None:
    memory, captured = SegmentMemory(size), torch.empty(B, 0, E)
    for T in lengths:
        segment = torch.randn(B, T, E, requires_grad=True)
        remembered = captured[:, max(0, captured.shape[1] - size) :]
        both = memory.extend(0, segment)
        assert_close(both, torch.cat([remembered, segment], dim=1))
        captured = torch.cat([captured, segment.detach()], dim=1)
        assert memory.length == captured.shape[1]
        assert not memory.layers[0].requires_grad


def test_a_segment_memory_gives_no_gradient_to_the_past() -> None:
    memory = SegmentMemory(4)
    past, now = torch.randn(B, 2, E, requires_grad=True), torch.randn(B, 2, E, requires_grad=True)
    memory.extend(0, past)
    memory.extend(0, now).sum().backward()
    assert past.grad is None
    assert_close(now.grad, torch.ones_like(now))


def test_a_segment_memory_counts_once_for_all_layers_and_reorders_them() -> None:
    memory, (first, second) = SegmentMemory(4), (torch.randn(B, 3, E), torch.randn(B, 3, E))
    memory.extend(0, first)
    memory.extend(1, second)
    assert memory.length == 3
    memory.reorder(torch.tensor([2, 0, 0]))
    assert_close(memory.layers, {0: first[[2, 0, 0]], 1: second[[2, 0, 0]]})
    assert memory.length == 3


def test_a_recurrent_state_reorders_all_it_has() -> None:
    hidden = (torch.randn(2, B, E), torch.randn(2, B, E))
    source, key, padding_mask = torch.randn(B, 4, E), torch.randn(B, 4, E), torch.rand(B, 4) < 0.5
    state = RecurrentState(hidden, source, key, padding_mask)
    state.reorder(torch.tensor([1, 1, 0]))
    assert_close(state.hidden, tuple(h[:, [1, 1, 0]] for h in hidden))
    assert_close(state.encoded, source[[1, 1, 0]])
    assert_close(state.key, key[[1, 1, 0]])
    assert torch.equal(state.padding_mask, padding_mask[[1, 1, 0]])
    plain = RecurrentState(hidden)
    plain.reorder(torch.tensor([0]))
    assert (plain.encoded, plain.key, plain.padding_mask) == (None, None, None)


def test_a_recurrent_state_counts_its_tokens() -> None:
    hidden = (torch.randn(1, B, E),)
    state = RecurrentState(hidden)
    assert state.length == 0
    state.advance((hidden[0] + 1,), 3)
    state.advance((hidden[0] + 2,), 1)
    assert state.length == 4
    assert_close(state.hidden, (hidden[0] + 2,))


@given(
    st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=8), max_size=4), st.integers(1, 3)
)
def test_however_rows_are_reordered_each_has_its_own_source(
    orders: list[list[int]], beams: int
) -> None:
    """Whether or not they share it."""
    source, padding_mask, (first,) = torch.randn(B, 4, E), torch.rand(B, 4) < 0.5, pieces(4)
    cache = SourceCache(source, padding_mask)
    cache.source_keys(0, lambda: first)
    of = list(range(B))
    for order in [[row for row in range(B) for _ in range(beams)], *orders]:
        rows = [item % len(of) for item in order]
        of = [of[row] for row in rows]
        cache.reorder(torch.tensor(rows))
        assert cache.rows == len(of)
        assert cache.padding_mask is not None
        for actual, right in (
            (cache.encoded, source),
            (cache.padding_mask, padding_mask),
            (cache.layers[0][0], first[0]),
        ):
            assert_close(actual.repeat_interleave(cache.shared, 0), right[of])


def test_beams_of_one_source_share_it() -> None:
    source = torch.randn(B, 4, E)
    cache = SourceCache(source)
    cache.reorder(torch.tensor([0, 0, 1, 1, 2, 2]))
    cache.reorder(torch.tensor([1, 0, 3, 3, 4, 5]))
    assert cache.encoded is source
    cache.reorder(torch.tensor([1, 1, 4, 5]))
    assert_close(cache.encoded, source[[0, 2]])
    assert (cache.shared, cache.rows) == (2, 4)


@given(
    st.lists(st.permutations(range(5)), max_size=4),
    st.lists(st.integers(0, 4), min_size=5, max_size=5),
)
def test_a_cache_reordered_in_place_is_as_one_reordered_anew(
    orders: list[list[int]], last: list[int]
) -> None:
    cache, captured = KeyValueCache(capacity=8), torch.empty(5, K, 0, D)
    for order in [*orders, last]:
        key, value = torch.randn(5, K, 2, D), torch.randn(5, K, 2, X)
        cache.append(0, key, value)
        captured = torch.cat([captured, key], dim=2)[order]
        cache.reorder(torch.tensor(order))
        assert_close(cache.read(0)[0], captured)


def test_rows_that_share_a_source_have_weights_of_their_own() -> None:
    attention = MultiHeadAttention(8, 2).double().eval()
    source = torch.randn(2, 4, 8, dtype=torch.float64)
    x = torch.randn(6, 1, 8, dtype=torch.float64)
    shared = SourceCache(source)
    shared.reorder(torch.tensor([0, 0, 0, 1, 1, 1]))
    right = attention(x, source.repeat_interleave(3, 0), need_weights=True)
    assert_close(attention(x, state=shared, need_weights=True), right)
