"""The end of a decode step on a device without Triton: tokens are stored and counters advance."""

from __future__ import annotations

import torch

from qkv.generation.kernels.finish_step import StepCounters, token_memory
from qkv.nn.cache import KeyValueCache, StaticCache


def counters(rows: int, capacity: int, length: int) -> StepCounters:
    padding_mask = torch.zeros(rows, capacity, dtype=torch.bool)
    positions = torch.zeros(rows, 1, dtype=torch.int64)
    cache = StaticCache(KeyValueCache(capacity), padding_mask, positions)
    numbers = torch.zeros(rows, length, dtype=torch.float64)
    return StepCounters(
        cache=cache,
        tokens=torch.zeros(rows, dtype=torch.int64),
        step=torch.zeros(1, dtype=torch.int64),
        uniforms=numbers,
        uniform=numbers[:, 0].clone(),
        host=torch.zeros(length + 2, rows, dtype=torch.int64),
    )


def test_each_step_stores_its_tokens_and_moves_on_by_one() -> None:
    state = counters(rows=2, capacity=6, length=3)
    uniforms = torch.rand(2, 3, dtype=torch.float64)
    state.cache.positions.copy_(torch.tensor([[1], [2]]))
    state.reset(2, uniforms)
    assert torch.equal(state.uniform, uniforms[:, 0])

    state.finish(torch.tensor([7, -1]))
    assert state.host[0].tolist() == [7, -1]
    assert state.tokens.tolist() == [7, 0]  # a broken row reads a valid token
    assert torch.equal(state.uniform, uniforms[:, 1])
    assert (int(state.step), int(state.cache.slot)) == (1, 3)
    assert state.cache.positions.flatten().tolist() == [2, 3]
    assert state.cache.padding_mask[:, 3].all()
    assert state.cache.padding_mask.sum() == 2

    state.finish(torch.tensor([8, 9]))
    assert state.host[1].tolist() == [8, 9]
    assert torch.equal(state.uniform, uniforms[:, 2])


def test_steps_beyond_the_last_slot_stay_there() -> None:
    """A launch of several steps may go beyond the end; these tokens are discarded."""
    state = counters(rows=1, capacity=4, length=3)
    state.reset(2, torch.rand(1, 3, dtype=torch.float64))
    for token in range(4):
        state.finish(torch.tensor([token]))

    assert int(state.cache.slot) == 3
    assert int(state.cache.positions) == 3
    assert state.host[:4, 0].tolist() == [0, 1, 2, 3]


def test_tokens_of_all_steps_have_memory() -> None:
    assert token_memory(5, 2, torch.device("cpu")).shape == (5, 2)
