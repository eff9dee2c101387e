"""What counts as a bad step, what is usual, which data is left out, and fp16's scale."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkv.training.resilience.guard import DELAY, ENOUGH, WINDOW, Guard, LossScale, position_of
from qkv.training.resilience.run_state import RunState

CPU = torch.device("cpu")


def taught(losses: list[float], spike: float = 2.0) -> Guard:
    guard = Guard(spike, 3)
    for step, loss in enumerate(losses):
        assert guard.observe(step, step, loss, 1.0, False) is None
    return guard


def judged(guard: Guard, step: int, loss: float, norm: float = 1.0) -> bool:
    return bool(guard.is_bad(step, torch.tensor(loss), torch.tensor(norm)))


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_bad(wrong: float) -> None:
    guard = Guard(2.0, 3)
    assert judged(guard, 0, wrong)
    assert judged(guard, 0, 1.0, norm=wrong)
    assert not judged(guard, 0, 1e30)


def test_a_spike_is_so_much_above_the_median_of_the_usual() -> None:
    losses = [5.0 - step / 50 for step in range(130)]
    guard = taught(losses)
    usual = statistics.median(losses[-WINDOW - DELAY + 1 : -DELAY + 1])
    assert guard.limit(130) == pytest.approx(usual + 2.0)
    assert not judged(guard, 130, usual + 1.99)
    assert judged(guard, 130, usual + 2.01)
    assert not judged(taught(losses, spike=0.0), 130, 1e30), "0 is to skip none"


def test_nothing_is_a_spike_before_it_is_known_what_is_usual() -> None:
    assert taught([1.0] * (ENOUGH - 1)).limit(ENOUGH - 1 + DELAY) == math.inf
    assert taught([1.0] * ENOUGH).limit(ENOUGH - 1 + DELAY) == 3.0


def test_the_limit_does_not_depend_on_when_the_host_looked() -> None:
    """It hears of a step one step late, or at once where something is saved."""
    losses = [float(step % 7) for step in range(150)]
    for step in (60, 149):
        assert taught(losses[: step - 1]).limit(step) == taught(losses[:step]).limit(step)


def test_bad_losses_are_not_usual_ones() -> None:
    guard = taught([1.0] * 30)
    for step in range(30, 60):
        guard.observe(step, step, 50.0, 1.0, True)
    assert guard.limit(62) == 3.0


def test_reasons() -> None:
    guard = taught([1.0] * 30)
    assert guard.observe(30, 30, math.nan, 1.0, True) == "the loss is nan"
    assert guard.observe(31, 31, 1.0, math.inf, True) == "the gradient's norm is inf"
    assert not guard.exhausted
    assert guard.observe(32, 40, 9.0, 1.0, True) == "the loss is 9.00, more than 3.00"
    assert guard.exhausted
    assert guard.bad == [(30, 30), (31, 31), (32, 40)]
    guard.observe(33, 41, 1.0, 1.0, False)
    assert not guard.exhausted


def test_it_comes_back_from_json() -> None:
    import json

    guard = taught([1.0 + step / 3 for step in range(200)])
    guard.observe(200, 210, math.nan, 1.0, True)
    again = Guard(2.0, 3)
    again.load(json.loads(json.dumps(guard.state())))
    assert again == guard
    assert len(guard.losses) < 110, "it does not grow"


# Data that is left out


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 4)), max_size=6))
def test_positions_are_those_of_the_data_that_is_not_left_out(
    stretches: list[tuple[int, int]],
) -> None:
    """Each time a run of steps is bad, from some step on, its positions are never met again and all
    others stay.
    """
    state, gone = RunState(), set()
    for step, more in stretches:
        positions = [state.position(step + each) for each in range(more + 1)]
        gone |= set(range(positions[0], positions[-1] + 1))
        state.leave_out(positions[0], positions[-1])
    expected = [position for position in range(400) if position not in gone]
    assert [position_of(step, state.left_out) for step in range(100)] == expected[:100]


# fp16


def test_an_overflow_halves_the_scale_and_two_thousand_steps_double_it() -> None:
    scale = LossScale(True, CPU)
    yes, no = torch.tensor(True), torch.tensor(False)
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
    assert float(scale.factor) == 2**15, "they are counted from the last overflow"
    again = LossScale(True, CPU)
    again.load({name: tensor.clone() for name, tensor in scale.tensors().items()})
    again.update(no)
    assert float(again.factor) == 2**16


def test_without_fp16_there_is_none() -> None:
    scale = LossScale(False, CPU)
    scale.update(torch.tensor(True))
    assert float(scale.factor) == 1.0
    assert scale.tensors() == {}
