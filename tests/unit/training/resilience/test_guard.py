"""Bad steps, the limit of a loss spike, data that is left out, and fp16's loss scale."""

from __future__ import annotations

import json
import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkv.training.resilience.guard import DELAY, ENOUGH, WINDOW, Guard, LossScale
from qkv.training.resilience.run_state import RunState

CPU = torch.device("cpu")


def guard_after(losses: list[float], spike: float = 2.0) -> Guard:
    guard = Guard(spike, 3)
    for step, loss in enumerate(losses):
        assert guard.observe(step, step, loss, 1.0, False) is None
    return guard


def is_bad(guard: Guard, step: int, loss: float, norm: float = 1.0) -> bool:
    return bool(guard.is_bad(step, torch.tensor(loss), torch.tensor(norm)))


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_are_bad(wrong: float) -> None:
    guard = Guard(2.0, 3)
    assert is_bad(guard, 0, wrong)
    assert is_bad(guard, 0, 1.0, norm=wrong)
    assert not is_bad(guard, 0, 1e30)


def test_a_spike_is_a_distance_above_the_median_of_recent_losses() -> None:
    losses = [5.0 - step / 50 for step in range(130)]
    guard = guard_after(losses)
    usual = statistics.median(losses[-WINDOW - DELAY + 1 : -DELAY + 1])
    assert guard.limit(130) == pytest.approx(usual + 2.0)
    assert not is_bad(guard, 130, usual + 1.99)
    assert is_bad(guard, 130, usual + 2.01)
    assert not is_bad(guard_after(losses, spike=0.0), 130, 1e30), "0 is to skip none"


def test_there_is_no_spike_before_enough_losses_are_known() -> None:
    assert guard_after([1.0] * (ENOUGH - 1)).limit(ENOUGH - 1 + DELAY) == math.inf
    assert guard_after([1.0] * ENOUGH).limit(ENOUGH - 1 + DELAY) == 3.0


def test_the_limit_does_not_depend_on_when_the_host_reads() -> None:
    """It reads a step's loss one step later, or at once where a checkpoint is saved."""
    losses = [float(step % 7) for step in range(150)]
    for step in (60, 149):
        assert guard_after(losses[: step - 1]).limit(step) == guard_after(losses[:step]).limit(step)


def test_bad_losses_do_not_change_the_limit() -> None:
    guard = guard_after([1.0] * 30)
    for step in range(30, 60):
        guard.observe(step, step, 50.0, 1.0, True)
    assert guard.limit(62) == 3.0


def test_reasons() -> None:
    guard = guard_after([1.0] * 30)
    assert guard.observe(30, 30, math.nan, 1.0, True) == "the loss is nan"
    assert guard.observe(31, 31, 1.0, math.inf, True) == "the gradient's norm is inf"
    assert not guard.exhausted
    assert guard.observe(32, 40, 9.0, 1.0, True) == "the loss is 9.00, more than 3.00"
    assert guard.exhausted
    assert guard.bad == [(30, 30), (31, 31), (32, 40)]
    guard.observe(33, 41, 1.0, 1.0, False)
    assert not guard.exhausted


def test_the_state_survives_json() -> None:
    guard = guard_after([1.0 + step / 3 for step in range(200)])
    guard.observe(200, 210, math.nan, 1.0, True)
    again = Guard(2.0, 3)
    again.load(json.loads(json.dumps(guard.state())))
    assert again == guard
    assert len(guard.losses) < 110, "the list does not grow"


# Data that is left out


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 4)), max_size=6))
def test_positions_skip_the_data_that_is_left_out(
    ranges: list[tuple[int, int]],
) -> None:
    """Positions that were left out are never read again, and all others are."""
    state = RunState()
    left_out: set[int] = set()
    for step, more in ranges:
        first = state.position(step)
        last = state.position(step + more)
        left_out |= set(range(first, last + 1))
        state.leave_out(first, last)

    expected = sorted(set(range(400)) - left_out)
    assert [state.position(step) for step in range(100)] == expected[:100]


# fp16


def test_an_overflow_halves_the_scale_and_two_thousand_steps_double_it() -> None:
    scale = LossScale(True, CPU)
    yes = torch.tensor(True)
    no = torch.tensor(False)
    assert float(scale.factor) == 2**16
    scale.update(yes)
    assert float(scale.factor) == 2**15
    for _ in range(1999):
        scale.update(no)
    assert float(scale.factor) == 2**15
    scale.update(no)
    assert float(scale.factor) == 2**16
    for _ in range(1500):
        scale.update(no)
    scale.update(yes)
    for _ in range(1999):
        scale.update(no)
    assert float(scale.factor) == 2**15, "steps are counted from the last overflow"
    again = LossScale(True, CPU)
    again.load({name: tensor.clone() for name, tensor in scale.tensors().items()})
    again.update(no)
    assert float(again.factor) == 2**16


def test_without_fp16_the_scale_is_one() -> None:
    scale = LossScale(False, CPU)
    scale.update(torch.tensor(True))
    assert float(scale.factor) == 1.0
    assert scale.tensors() == {}
