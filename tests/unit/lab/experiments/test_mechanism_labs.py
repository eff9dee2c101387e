"""The experiments on the mechanism: finite numbers, and verdicts that follow the numbers."""

from __future__ import annotations

import math
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from qkv.lab.experiment import Cell, Measured, Size
from qkv.lab.experiments.mechanism import (
    cheating_lab,
    joins_lab,
    lookup_lab,
    magnitude_lab,
    order_lab,
    scaling_lab,
    several_heads_lab,
    small_models,
)
from qkv.lab.lab_results import Results
from qkv.lab.surgery import unmasked_training, unscaled
from qkv.lab.sweep import measure_cell
from qkv.models import GPT, GPTConfig
from qkv.nn.attention import lookup
from qkv.nn.attention.score import dot, scaled_dot

CPU = torch.device("cpu")
TINY: dict[ModuleType, dict[str, Any]] = {
    cheating_lab: {"steps": 3, "width": 8, "length": 6},
    joins_lab: {"steps": 2, "width": 8, "length": 6},
    lookup_lab: {"steps": 5, "width": 4, "keys": 6},
    magnitude_lab: {"steps": 2, "width": 8, "depth": 1},
    order_lab: {"steps": 3, "width": 8, "depth": 1},
    scaling_lab: {"steps": 2, "width": 8, "length": 3, "head_widths": (4, 8)},
    several_heads_lab: {"steps": 2, "width": 8, "length": 9},
}
MEASURES = {
    cheating_lab: {"training loss", "last", "asked"},
    joins_lab: {"accuracy", "loss"},
    lookup_lab: {"error", "first gradient", "learned"},
    magnitude_lab: {"gradient", "accuracy"},
    order_lab: {"accuracy", "difference", "weight gap"},
    scaling_lab: {"derivative", "accuracy", "accuracy by rate", "first gradient", "widest"},
    several_heads_lab: {"accuracy", "layers"},
}
LABS = pytest.mark.parametrize("lab", list(TINY), ids=lambda lab: lab.EXPERIMENT.name)


def measured(lab: ModuleType, arm: str, seed: int = 0, **settings: Any) -> Measured:
    size = lab.EXPERIMENT.size("small", **{**TINY[lab], **settings})
    return measure_cell(lab.EXPERIMENT, arm, seed, size, CPU).measured


def verdict(lab: ModuleType, table: dict[str, Measured], spread: float = 1e-3) -> str:
    """The verdict on these numbers by arm, with a small spread over three seeds."""
    cells = {}
    for arm, measures in table.items():
        for seed in range(3):
            cells[arm, seed] = shifted(measures, 1 + spread * (seed - 1))

    return Results(lab.EXPERIMENT, lab.EXPERIMENT.small, cells).verdict


def real_verdicts(lab: ModuleType) -> list[str]:
    """The verdict on each check, on measurements of real models with three seeds."""
    cells = {}
    for arm in lab.EXPERIMENT.arms:
        for seed in range(3):
            cells[arm, seed] = measured(lab, arm, seed)

    results = Results(lab.EXPERIMENT, lab.EXPERIMENT.small, cells)
    return [finding.verdict for finding in results.findings]


def shifted(measures: Measured, factor: float) -> Measured:
    result: dict[str, Any] = {}
    for name, values in measures.items():
        if isinstance(values, dict):
            result[name] = {x: y * factor for x, y in values.items()}
        else:
            result[name] = values * factor  # type: ignore[operator]

    return result


# Numbers that follow each claim; the arms whose exchange contradicts it


def planted(lab: ModuleType) -> dict[str, Measured]:
    arms = lab.EXPERIMENT.arms
    if lab is cheating_lab:
        honest = {"last": cheating_lab.CHANCE, "asked": cheating_lab.CHANCE}
        return {"with mask": honest, "without mask": {"last": 0.3, "asked": 6.0}}
    if lab is joins_lab:
        return {arm: {"accuracy": 0.1 if arm == "none" else 0.9} for arm in arms}
    if lab is lookup_lab:
        return {arm: {"learned": 0.8 if arm in lookup_lab.SOFT else 0.0} for arm in arms}
    if lab is magnitude_lab:
        lost = {"gradient": {1: 1.0, 1000: 0.01}, "accuracy": {1: 1.0, 1000: 0.1}}
        kept = {"gradient": {1: 1.0, 1000: 1.0}, "accuracy": {1: 1.0, 1000: 1.0}}
        return {arm: lost if "no norm" in arm else kept for arm in arms}
    if lab is order_lab:
        blind = {"accuracy": 0.5, "difference": 1e-7, "weight gap": 1e-8}
        knows = {"accuracy": 1.0, "difference": 0.5, "weight gap": 0.3}
        return {arm: blind if arm == "no positions" else knows for arm in arms}
    if lab is scaling_lab:
        scaled = {"derivative": {1024: 0.05}, "widest": 1.0}
        return {"scaled": scaled, "unscaled": {"derivative": {1024: 0.004}, "widest": 0.2}}

    found = {"1 head": 0.3, "1 head, 2 layers": 0.7}
    return {arm: {"accuracy": found.get(arm, 0.95)} for arm in arms}


EXCHANGED = {
    cheating_lab: ("with mask", "without mask"),
    joins_lab: ("none", "learned, product"),
    lookup_lab: ("nearest", "softmax"),
    magnitude_lab: ("norm after", "no norm"),
    order_lab: ("no positions", "learned"),
    scaling_lab: ("scaled", "unscaled"),
    several_heads_lab: ("1 head", "4 heads"),
}


@LABS
def test_every_arm_gives_finite_numbers_which_the_seed_repeats(lab: ModuleType) -> None:
    for arm in lab.EXPERIMENT.arms:
        found = measured(lab, arm)
        assert set(found) == MEASURES[lab]
        for values in found.values():
            numbers = values.values() if isinstance(values, dict) else [values]
            assert all(math.isfinite(number) for number in numbers)  # type: ignore[arg-type]

    assert measured(lab, arm) == found
    assert measured(lab, arm, seed=1) != found


@LABS
def test_numbers_that_follow_the_claim_hold_and_exchanged_arms_do_not(lab: ModuleType) -> None:
    table = planted(lab)
    assert verdict(lab, table) == "holds"

    first, second = EXCHANGED[lab]
    exchanged = {**table, first: table[second], second: table[first]}
    assert verdict(lab, exchanged) == "does not hold"


@LABS
def test_equal_arms_do_not_hold(lab: ModuleType) -> None:
    table = planted(lab)
    for arm in EXCHANGED[lab]:
        equal = dict.fromkeys(table, table[arm])
        assert verdict(lab, equal) != "holds"


# Real models that contradict the claim


def test_a_scaled_arm_without_scaling_contradicts_scaling(monkeypatch: pytest.MonkeyPatch) -> None:
    exchanged = {"scaled": (dot, unscaled), "unscaled": (scaled_dot, nullcontext)}
    monkeypatch.setattr(scaling_lab, "ARMS", exchanged)
    assert real_verdicts(scaling_lab)[0] == "does not hold"


def test_an_arm_with_positions_contradicts_order(monkeypatch: pytest.MonkeyPatch) -> None:
    assert real_verdicts(order_lab)[:3] == ["holds"] * 3

    monkeypatch.setitem(order_lab.ARMS, "no positions", "learned")
    assert "holds" not in real_verdicts(order_lab)[1:3]


def test_cheating_needs_a_model_that_cheats_and_one_that_does_not() -> None:
    settings = {"steps": 300, "width": 32, "length": 12}
    honest = measured(cheating_lab, "with mask", **settings)
    cheats = measured(cheating_lab, "without mask", **settings)
    assert verdict(cheating_lab, {"with mask": honest, "without mask": cheats}) == "holds"
    for model in (honest, cheats):
        both = {"with mask": model, "without mask": model}
        assert verdict(cheating_lab, both) == "does not hold"


def test_one_head_in_every_arm_contradicts_several_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(several_heads_lab, "ARMS", dict.fromkeys(several_heads_lab.ARMS, (1, 1)))
    assert real_verdicts(several_heads_lab)[:2] == ["does not hold"] * 2


def test_joins_of_models_without_positions_do_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joins_lab, "ARMS", dict.fromkeys(joins_lab.ARMS, ("none", "sum")))
    assert set(real_verdicts(joins_lab)) == {"does not hold"}


def test_a_hard_lookup_in_place_of_softmax_learns_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lookup_lab.SOFT, "softmax", lookup.nearest)
    assert measured(lookup_lab, "softmax")["learned"] == 0
    assert real_verdicts(lookup_lab) == ["holds", "does not hold"]


def test_the_arms_without_norm_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    without = measured(magnitude_lab, "no norm")
    monkeypatch.setattr(magnitude_lab, "without_norm", lambda model: nullcontext())
    assert measured(magnitude_lab, "no norm") == measured(magnitude_lab, "norm after")
    assert without != measured(magnitude_lab, "norm after")


@pytest.mark.parametrize("lab", [cheating_lab, joins_lab, lookup_lab])
def test_training_that_fails_gives_the_highest_loss(
    lab: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(model: torch.nn.Module, batch: Any, steps: int, **options: Any) -> list[float]:
        for parameter in model.parameters():
            parameter.data.fill_(math.nan)

        options.get("every", int)(5)
        return [math.nan] * steps

    monkeypatch.setattr(lab, "fit", fail)
    found = measured(lab, lab.EXPERIMENT.arms[-1])
    highest = {cheating_lab: found.get("asked"), joins_lab: found.get("loss")}
    if lab is lookup_lab:
        highest[lab] = max(found["error"].values())  # type: ignore[union-attr]

    assert highest[lab] in (50.0, 100.0)


# What is known exactly


def test_lookups_without_gradient_learn_exactly_nothing() -> None:
    for arm in lookup_lab.HARD:
        found = measured(lookup_lab, arm, steps=20)
        assert found["learned"] == 0
        assert found["first gradient"] == 0

    assert measured(lookup_lab, "softmax")["first gradient"] > 0  # type: ignore[operator]


def test_the_softmax_derivative_of_equal_scores_is_that_of_uniform_weights() -> None:
    found = small_models.softmax_derivative(lambda query, key: 0 * (query @ key.mT), 4, seed=0)
    assert found == pytest.approx(1 / 16 * 15 / 16)


def test_without_positions_mirrored_sentences_agree_in_float64() -> None:
    sizes = {"width": 8, "depth": 2, "heads": 2, "context": 8}
    model = GPT(GPTConfig(vocabulary=18, position="none", **sizes)).double()
    with torch.no_grad(), unmasked_training(model):
        dog, cat = small_models.answer_logits(model, torch.tensor([[6, 7], [7, 6]]))
        assert_close(dog, cat, rtol=0, atol=1e-12)
        assert small_models.weight_gap(model, CPU) < 1e-15

        shuffled, vectors = small_models.shuffled_vectors(model, 1, CPU)
        assert_close(shuffled, vectors, rtol=0, atol=1e-12)
        assert not torch.equal(vectors[0, 0], vectors[0, 1])

    assert small_models.weight_gap(model, CPU) > 1e-3  # the mask hides the second "big"
    shuffled, vectors = small_models.shuffled_vectors(model, 1, CPU)
    assert not torch.allclose(shuffled, vectors, atol=1e-3)  # and depends on the order


def test_the_test_pairs_are_new_in_both_orders() -> None:
    task = small_models.BehindTask(0)
    trained = {frozenset(pair) for pair in task.train.tolist()}
    tested = [frozenset(pair) for pair in task.test.tolist()]
    assert not trained & set(tested)
    assert len(trained | set(tested)) == 66
    assert task.batch(0).shape == (64, 2)

    ids = small_models.behind(torch.tensor([[9, 11]]))
    assert ids.tolist() == [[0, 9, 1, 2, 0, 11, 3]]


def test_errors_of_answers_by_hand() -> None:
    logits = torch.tensor([[math.log(3.0), 0.0]])
    pairs = torch.tensor([[1, 0]])
    assert_close(small_models.answer_error(logits, pairs), torch.tensor(math.log(4.0)))
    squared = small_models.answer_error(logits, pairs, squared=True)
    assert_close(squared, torch.tensor(2 * 0.75**2))


def test_a_saturated_wrong_answer_has_a_gradient_under_cross_entropy_only() -> None:
    for squared, expected in ((False, math.sqrt(2)), (True, 0.0)):
        logits = torch.tensor([[500.0, 0.0]], requires_grad=True)
        error = small_models.answer_error(logits, torch.tensor([[1, 0]]), squared)
        (gradient,) = torch.autograd.grad(error, logits)
        assert float(gradient.norm()) == pytest.approx(expected)


def test_arms_begin_with_the_same_weights() -> None:
    """Scaling changes the first gradient by more than sqrt(d), and nothing before training."""
    size = scaling_lab.EXPERIMENT.size("small", **TINY[scaling_lab])
    size = Size(**{**vars(size), "steps": 0})
    found = []
    for surgery in (nullcontext, unscaled):
        cell = Cell("scaled", 0, size, CPU)
        found.append(small_models.learn_reversal(cell, 4, 1e-3, surgery)[1])

    assert found[1] > 1.5 * found[0] > 0
