"""The experiments on recurrent models: what they measure, and verdicts on planted numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from qkv.data.sources.named import NAMED_SOURCES
from qkv.lab.experiment import Cell, Experiment, Measured
from qkv.lab.experiments import find
from qkv.lab.experiments.recurrent import distance_lab, residual_lab
from qkv.lab.experiments.recurrent.layer_costs import (
    ATTENTION,
    PROJECTED,
    RNN,
    bytes_kept,
    layer,
    operations,
)
from qkv.lab.experiments.recurrent.sequence_models import (
    decades,
    language_model,
    longest_chain,
)
from qkv.lab.lab_results import Results
from qkv.lab.surgery import without_residual
from qkv.models import GPT, GPTConfig, RNNLanguageModel, RNNLMConfig
from qkv.models.registry import build

CPU = torch.device("cpu")
TINY: dict[str, dict[str, Any]] = {
    "bottleneck": {"steps": 2, "longest": 8, "width": 8},
    "vanishing": {"steps": 1, "rows": 2, "context": 16, "width": 8},
    "distance": {"steps": 1, "farthest": 16, "width": 4},
    "residual": {"steps": 1, "rows": 1, "context": 16, "width": 4, "deep": 4},
    "cost": {"width": 64, "longest": 64},
    "parallel": {"tokens": 64, "longest": 64, "width": 16, "threads": 1},
}
TIMED = ("milliseconds", "time", "speed", "slow-down", "tokens a second")


@pytest.fixture(autouse=True)
def little_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few lines of code instead of all."""
    lines = ["def add(a, b):\n    return a + b\n"] * 40
    texts = NAMED_SOURCES["python"]._replace(read=lambda split: lines)
    monkeypatch.setitem(NAMED_SOURCES, "python", texts)


def tiny(name: str, arm: str, seed: int = 0) -> Measured:
    experiment = find(name)
    torch.manual_seed(seed)
    size = experiment.size("small", **TINY[name])
    return experiment.measure(Cell(arm, seed, size, CPU))


def numbers(measured: Measured) -> dict[str, float]:
    flat = {}
    for name, by_x in measured.items():
        for x, y in by_x.items() if isinstance(by_x, dict) else [("", by_x)]:
            flat[f"{name} {x}"] = float(y)

    return flat


def verdict(experiment: Experiment, plant: Callable[[str, int], Measured]) -> str:
    """The verdict on planted numbers, three seeds with a little noise."""
    measured = {}
    for seed in range(3):
        for arm in experiment.arms:
            noisy = {name: y + 1e-3 * seed for name, y in plant(arm, seed).items()}
            measured[arm, seed] = noisy

    return Results(experiment, experiment.small, measured).verdict


# What is measured


@pytest.mark.parametrize("name", TINY)
def test_every_arm_gives_finite_numbers_and_the_same_again(name: str) -> None:
    experiment = find(name)
    names = set()
    for arm in experiment.arms:
        measured = numbers(tiny(name, arm))
        assert all(map(math.isfinite, measured.values())), arm
        names.add(frozenset(measured))

    assert len(names) == 1
    for panel in experiment.panels:
        assert any(key.startswith(panel.measure) for key in measured)

    again = numbers(tiny(name, arm))
    for key, value in measured.items():
        if not any(word in key for word in TIMED):
            assert again[key] == value, key


# Verdicts on planted numbers: the claim, the arms swapped, no difference

PLANTED: dict[str, dict[str, dict[str, float]]] = {
    "bottleneck": {
        "GRU, a quarter as wide": {"copied, longest": 0.1, "lost with length": 0.5},
        "GRU": {"copied, longest": 0.2, "lost with length": 0.7},
        "GRU, twice as wide": {"copied, longest": 0.3, "lost with length": 0.6},
        "GRU + attention": {"copied, longest": 0.9, "lost with length": 0.1},
        "Transformer": {"copied, longest": 0.9, "lost with length": 0.1},
    },
    "vanishing": {
        "RNN": {"fall after training": 15, "rise at the start": -2, "share of the recent": 0.9},
        "LSTM": {"fall after training": 8, "rise at the start": -8, "share of the recent": 0.9},
        "GRU": {"fall after training": 5, "rise at the start": -8, "share of the recent": 0.9},
        "attention": {
            "fall after training": 1,
            "rise at the start": 0,
            "share of the recent": 0.5,
        },
        "RNN, recurrent weights x 2": {
            "fall after training": 3,
            "rise at the start": 5,
            "share of the recent": 0.6,
        },
    },
    "distance": {
        arm: {"right, half way": half, "right, farthest": far, "lost with distance": 1 - far}
        for arm, half, far in [
            ("RNN", 0.7, 0.4),
            ("LSTM", 0.3, 0.1),
            ("GRU", 0.3, 0.1),
            ("attention", 1, 1),
            ("attention, 4 layers", 1, 0.8),
            ("window, 4 layers", 0.1, 0.1),
        ]
    },
    "residual": {
        arm: {residual_lab.LOSS: loss, residual_lab.GRADIENT: gradient, residual_lab.FALL: 1.0}
        for arm, loss, gradient in [
            ("GPT", 2.9, 0.2),
            ("GPT without norm", 3.1, -1.2),
            ("GPT without residual", 3.2, 1),
            ("GRU", 3.1, -1.2),
            ("GRU with residual", 2.8, 0.5),
        ]
    },
}
SWAPPED = {
    "bottleneck": ("GRU + attention", "GRU, twice as wide"),
    "vanishing": ("RNN", "attention"),
    "distance": ("RNN", "attention"),
    "residual": ("GPT", "GPT without residual"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_numbers_decide_the_verdict(name: str) -> None:
    experiment, planted = find(name), PLANTED[name]
    one, other = SWAPPED[name]
    swap = {one: other, other: one}
    first = planted[experiment.arms[0]]

    assert verdict(experiment, lambda arm, seed: planted[arm]) == "holds"
    assert verdict(experiment, lambda arm, seed: planted[swap.get(arm, arm)]) == "does not hold"
    assert verdict(experiment, lambda arm, seed: first) != "holds"


@pytest.mark.parametrize(
    ("name", "fast", "slow"),
    [("cost", ATTENTION, RNN), ("parallel", "GPT, 2 layers x 8 heads", "LSTM")],
)
def test_counts_hold_and_swapped_arms_do_not(name: str, fast: str, slow: str) -> None:
    experiment = find(name)
    counted = {arm: dict(tiny(name, arm)) for arm in experiment.arms}
    if name == "cost":
        for arm, time, growth in ((fast, 0.0, 2.0), (slow, 1.0, 1.0)):
            counted[arm] |= {"log2 time at n = d / 4": time, "doublings of time": growth}
    else:
        for arm, speed in zip(experiment.arms, (1.0, 3.0, 2.0, 1.0), strict=True):
            counted[arm] |= {"log2 speed": speed, "log2 slow-down": -speed, "speed-up": speed}

    scalars = {}
    for arm, measured in counted.items():
        scalars[arm] = {key: y for key, y in measured.items() if not isinstance(y, dict)}

    def results(swap: dict[str, str]) -> Results:
        cells = {}
        for seed in range(3):
            for arm in experiment.arms:
                cells[arm, seed] = scalars[swap.get(arm, arm)]

        return Results(experiment, experiment.small, cells)

    assert results({}).verdict == "holds"
    assert results({fast: slow, slow: fast}).verdict == "does not hold"
    assert results(dict.fromkeys(experiment.arms, slow)).verdict != "holds"


# What can be proven


@pytest.mark.parametrize(("n", "d"), [(16, 16), (32, 16), (16, 32)])
def test_operations_are_those_counted_by_hand(n: int, d: int) -> None:
    assert operations(ATTENTION, n, d) == 2 * n * n * d  # X X^T, and weights times X
    assert operations(RNN, n, d) == 2 * n * d * d  # input and hidden vector times a matrix each
    assert operations(PROJECTED, n, d) == 2 * n * n * d + 4 * n * d * d  # Q, K, V and output


def test_bytes_kept_are_those_counted_by_hand() -> None:
    n, d = 64, 16
    assert bytes_kept(layer(RNN, d, CPU), n, d) == 4 * n * d / 2**20  # each tanh output
    assert bytes_kept(lambda x: x.exp().sin(), n, d) == 4 * n * d / 2**20  # exp, once
    assert bytes_kept(layer(ATTENTION, d, CPU), n, d) >= 4 * n * n / 2**20  # the weights


def test_chains_are_those_counted_by_hand() -> None:
    ids = torch.zeros(1, 8, dtype=torch.long)
    config = RNNLMConfig(vocabulary=8, width=4, cell="rnn")
    assert longest_chain(RNNLanguageModel(config), ids) == 8 + 1  # steps and logits
    chains = []
    for length in (4, 8):
        gpt = GPT(GPTConfig(vocabulary=8, context=8, width=4, depth=1, heads=1))
        chains.append(longest_chain(gpt, ids[:, :length]))

    assert chains == [6, 6]  # projections, attention, output, up, down, logits


@pytest.mark.parametrize(("distance", "reached"), [(14, True), (15, False)])
def test_a_window_reaches_as_far_as_its_path(distance: int, reached: bool) -> None:
    model = build(
        language_model(
            "attention",
            vocabulary=8,
            context=20,
            width=8,
            depth=2,
            heads=1,
            position="rotary",
            window=distance_lab.reach(32) + 1,
        )
    ).double()
    ids = torch.arange(20).unsqueeze(0) % 8
    other = ids.clone()
    other[0, 19 - distance] += 1
    changed = not torch.equal(model(ids % 8)[0, -1], model(other % 8)[0, -1])

    assert changed is reached
    assert (distance_lab.path(distance_lab.WINDOW, distance, 32) <= 2) is reached


@pytest.mark.parametrize("farthest", [16, 32, 64, 256])
def test_four_layers_with_a_window_reach_half_way_and_not_the_farthest(farthest: int) -> None:
    assert distance_lab.path(distance_lab.WINDOW, farthest // 2, farthest) <= 4
    assert distance_lab.path(distance_lab.WINDOW, farthest, farthest) > 4


def test_norms_that_are_not_numbers_count_as_exploded() -> None:
    assert decades(1e-3) == pytest.approx(-3)
    assert decades(0.0) == -30
    assert decades(math.inf) == decades(math.nan) == 30


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_model_whose_training_failed_has_the_highest_loss(
    loss: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residual_lab, "validation_loss", lambda *arguments: loss)
    assert tiny("residual", residual_lab.GPT)[residual_lab.LOSS] == residual_lab.HIGHEST


# A model that contradicts the claim


def test_residuals_that_are_removed_from_both_arms_make_no_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(residual_lab.SURGERY, residual_lab.GPT, without_residual)
    experiment = find("residual")
    cells = {}
    for seed in range(3):
        for arm in (residual_lab.GPT, residual_lab.NO_RESIDUAL):
            cells[arm, seed] = tiny("residual", arm, seed)

        for arm in (residual_lab.NO_NORM, *residual_lab.GRUS):
            cells[arm, seed] = PLANTED["residual"][arm]

    assert Results(experiment, experiment.small, cells).verdict == "does not hold"


def test_gradients_alike_in_all_blocks_do_not_vanish() -> None:
    alike = PLANTED["residual"]["GPT without norm"] | {residual_lab.FALL: 0.1}
    planted = PLANTED["residual"] | {"GPT without norm": alike}
    assert verdict(find("residual"), lambda arm, seed: planted[arm]) == "does not hold"


def test_an_exploding_arm_without_larger_weights_does_not_explode() -> None:
    planted = tiny("vanishing", "RNN")["rise at the start"]
    check = find("vanishing").checks[1]
    assert check.effect(lambda arm, measure: planted) < 0
