"""The experiments about language models: their numbers, and verdicts that can go against them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import pytest
import torch

from qkv.data.embedded import turkish
from qkv.data.embedded.grammar_labels import labelled_sentences
from qkv.data.sources.named import NAMED_SOURCES
from qkv.lab.experiment import Cell, Experiment, Measured, Size
from qkv.lab.experiments import learning_curve
from qkv.lab.experiments.language import (
    grammar_models,
    induction_lab,
    masked_lab,
    one_body_many_tasks_lab,
    pretraining_lab,
    scale_lab,
    tied_lab,
)
from qkv.lab.lab_results import Results
from qkv.lab.sweep import measure_cell

CPU = torch.device("cpu")
TINY = {
    induction_lab: {"steps": 20, "width": 8, "length": 12, "vocabulary": 8, "rows": 2},
    masked_lab: {"steps": 2, "width": 8, "depth": 1, "batch_tokens": 128, "sentences": 5},
    one_body_many_tasks_lab: {
        "steps": 2, "tuning_steps": 2, "width": 8, "depth": 1, "batch_tokens": 128, "labels": 8,
    },
    pretraining_lab: {
        "steps": 2, "tuning_steps": 2, "width": 8, "depth": 1, "batch_tokens": 128,
    },
    scale_lab: {"steps": 10, "width": 4, "depth": 1, "heads": 2, "context": 16, "batch_tokens": 64},
    tied_lab: {"steps": 10, "width": 8, "depth": 1, "batch_tokens": 128},
}  # fmt: skip
PROMISED = {
    induction_lab: {"accuracy": 21, "best head": 21, "best accuracy": 1, "sudden": 1},
    masked_lab: {"accuracy": 6, "filled": 3, "inside": 1},
    one_body_many_tasks_lab: {"accuracy": 4, "mean accuracy": 1},
    pretraining_lab: {"accuracy": 5, "mean accuracy": 1},
    scale_lab: {"loss": 1, "parameters": 1, "by FLOPs": 10, "right": 1},
    tied_lab: {"loss": 1, "parameters": 1, "training loss": 10},
}
"""Measures, and how many numbers each has."""


@pytest.fixture(autouse=True)
def little_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few hundred sentences, pairs and lines instead of all."""
    monkeypatch.setattr(grammar_models, "SENTENCES", 300)
    pairs = NAMED_SOURCES["turkish"]._replace(read=lambda split: turkish.pairs(split)[:300])
    lines = ["def add(a, b):\n    return a + b\n"] * 20
    texts = NAMED_SOURCES["python"]._replace(read=lambda split: lines)
    english = NAMED_SOURCES["english"]
    little = english._replace(read=lambda split: english.read(split)[:300])
    few = lambda kind, split: labelled_sentences(kind, split)[:200]  # noqa: E731
    monkeypatch.setattr(grammar_models, "labelled_sentences", few)
    monkeypatch.setitem(NAMED_SOURCES, "turkish", pairs)
    monkeypatch.setitem(NAMED_SOURCES, "python", texts)
    monkeypatch.setitem(NAMED_SOURCES, "english", little)


def measured(lab: ModuleType, arm: str, seed: int = 0) -> Measured:
    experiment: Experiment = lab.EXPERIMENT
    size = experiment.size("small", **TINY[lab])
    return measure_cell(experiment, arm, seed, size, CPU).measured


def verdicts(lab: ModuleType, measure: Callable[[str, int], Measured], seeds: int = 3) -> list[str]:
    """The verdict on each check."""
    experiment: Experiment = lab.EXPERIMENT
    table = {}
    for arm in experiment.arms:
        for seed in range(seeds):
            table[arm, seed] = measure(arm, seed)

    results = Results(experiment, experiment.small, table)
    return [finding.verdict for finding in results.findings]


def all_hold(lab: ModuleType) -> list[str]:
    return ["holds"] * len(lab.EXPERIMENT.checks)


# Measurements


@pytest.mark.parametrize("lab", TINY, ids=lambda lab: lab.__name__.split(".")[-1])
def test_each_arm_gives_the_promised_finite_numbers(lab):
    for arm in lab.EXPERIMENT.arms:
        numbers = measured(lab, arm)
        for name, count in PROMISED[lab].items():
            found = numbers[name]
            values = list(found.values()) if isinstance(found, dict) else [found]
            assert len(values) == count, (arm, name)
            assert all(math.isfinite(value) for value in values), (arm, name)


@pytest.mark.parametrize("lab", [one_body_many_tasks_lab, tied_lab])
def test_the_same_seed_gives_the_same_numbers(lab):
    arm = lab.EXPERIMENT.arms[0]

    first = measured(lab, arm, 1)
    assert measured(lab, arm, 1) == first
    assert measured(lab, arm, 2) != first


# scale


def scale_numbers(power: float) -> Callable[[str, int], Measured]:
    def measure(arm: str, seed: int) -> Measured:
        parameters = 1000.0 * scale_lab.FACTORS[arm] ** 2
        noise = 1 + 1e-4 * seed
        loss = 5 * noise * parameters**-power
        return {"loss": loss, "right": 1 / loss, "parameters": parameters, "by FLOPs": {}}

    return measure


def test_scale_finds_a_planted_exponent():
    table = {(arm, 0): scale_numbers(0.07)(arm, 0) for arm in scale_lab.FACTORS}
    value = Results(scale_lab.EXPERIMENT, scale_lab.EXPERIMENT.small, table).reader(0)

    assert scale_lab.exponent(value) == pytest.approx(0.07)


def test_scale_judges_planted_numbers():
    assert verdicts(scale_lab, scale_numbers(0.07)) == all_hold(scale_lab)
    assert verdicts(scale_lab, scale_numbers(-0.07)) == ["does not hold"] * 3
    assert verdicts(scale_lab, scale_numbers(0.0)) == ["does not hold"] * 3


# tied


def test_tying_saves_whole_tables():
    counts = {arm: measured(tied_lab, arm)["parameters"] for arm in tied_lab.WAYS}
    tokens = tied_lab.fit_text(
        tied_lab.TransformerConfig(width=8, depth=1, heads=4, dropout=0.0), "turkish", 0,
        seed=0, device=CPU, tokenizer="words",
    ).task.tokenizer.vocabulary  # fmt: skip

    assert counts["two tied"] - counts["three tied"] == tokens * 8
    assert counts["none tied"] - counts["two tied"] == tokens * 8


def test_tied_judges_planted_numbers():
    def numbers(tied: float, untied: float) -> Callable[[str, int], Measured]:
        def measure(arm: str, seed: int) -> Measured:
            loss = untied if arm == "none tied" else tied
            parameters = {"three tied": 100.0, "two tied": 150.0, "none tied": 200.0}[arm]
            return {"loss": loss + 0.001 * seed, "parameters": parameters}

        return measure

    assert verdicts(tied_lab, numbers(1.0, 1.0)) == all_hold(tied_lab)
    assert verdicts(tied_lab, numbers(0.5, 1.0)) == all_hold(tied_lab)
    assert verdicts(tied_lab, numbers(1.2, 1.0))[1:] == ["does not hold"] * 2


def test_models_that_are_not_tied_contradict_the_claim(monkeypatch):
    monkeypatch.setattr(tied_lab, "WAYS", dict.fromkeys(tied_lab.WAYS, "none"))

    found = verdicts(tied_lab, lambda arm, seed: measured(tied_lab, arm, seed), seeds=1)
    assert found[0] == "does not hold"


# induction


def test_the_shape_of_a_curve():
    slow = {step: step / 20 for step in range(21)}
    fast = {step: float(step >= 12) for step in range(21)}

    assert learning_curve.steepest(slow) == pytest.approx(4 / 20)
    assert learning_curve.steepest(fast) == 1
    noise = {step: 0.01 * (step % 3) for step in range(20)}
    assert learning_curve.steepest(noise) == 0
    assert learning_curve.half_way(slow) == 10 / 20
    assert learning_curve.half_way(fast) == 12 / 20
    assert learning_curve.tenths([4.0, 2.0] * 10) == dict.fromkeys(range(2, 21, 2), 3.0)


def induction_numbers(two: str, later: float = 0.0) -> Callable[[str, int], Measured]:
    """Two layers, or the other arms, have the head."""

    def measure(arm: str, seed: int) -> Measured:
        height = 0.9 if (arm == "2 layers") == (two == "2 layers") else 0.1
        return {
            "best accuracy": height + 0.001 * seed, "highest score": height, "sudden": height,
            "half accuracy": 0.4, "half head": 0.4 + later,
        }  # fmt: skip

    return measure


def test_induction_judges_planted_numbers():
    assert verdicts(induction_lab, induction_numbers("2 layers")) == all_hold(induction_lab)

    swapped = verdicts(induction_lab, induction_numbers("1 wide layer"))
    assert swapped[:3] == ["does not hold"] * 3

    late = verdicts(induction_lab, induction_numbers("2 layers", later=0.3))
    assert late[3] == "does not hold"


def test_one_layer_in_place_of_two_contradicts_the_claim():
    one = induction_lab.ONE
    numbers = [measured(induction_lab, one, seed) for seed in range(3)]
    found = verdicts(induction_lab, lambda arm, seed: numbers[seed])

    assert found[:2] == ["does not hold"] * 2


# masked


def test_only_the_words_before_are_seen():
    cell = Cell("", 0, masked_lab.EXPERIMENT.size("small", **TINY[masked_lab]), CPU)
    ids = torch.tensor([[7, 8, 9, 10, 11]])
    other = torch.tensor([[7, 8, 9, 12, 13]])

    both = grammar_models.pretrain("BERT", cell, 0).model
    assert not torch.allclose(both.hidden(ids)[:, 1], both.hidden(other)[:, 1], atol=1e-6)

    masked_lab.see_left(both)
    torch.testing.assert_close(
        both.hidden(ids)[:, :3], both.hidden(other)[:, :3], atol=1e-6, rtol=0
    )


def test_a_gpt_never_reads_the_gap_or_what_follows():
    cell = Cell("", 0, masked_lab.EXPERIMENT.size("small", **TINY[masked_lab]), CPU)
    fitted = grammar_models.pretrain("GPT", cell, 0)
    tokenizer = fitted.task.tokenizer
    ids = torch.tensor([[7, 8, 9, 10, 11]])
    changed = torch.tensor([[7, 8, 12, 13, 14]])

    first = grammar_models.gap_logits(fitted.model, tokenizer, ids, 2)
    second = grammar_models.gap_logits(fitted.model, tokenizer, changed, 2)
    assert first.equal(second)


def test_accuracy_by_words_after_counts_every_gap(monkeypatch):
    cell = Cell("", 0, masked_lab.EXPERIMENT.size("small", **TINY[masked_lab]), CPU)
    fitted = grammar_models.pretrain("BERT", cell, 0)
    cat = fitted.task.tokenizer.encode("cat")[0]

    def always_cat(model, tokenizer, ids, place):
        return torch.nn.functional.one_hot(torch.full((len(ids),), cat), model.config.vocabulary)

    monkeypatch.setattr(grammar_models, "gap_logits", always_cat)
    found = grammar_models.accuracy_by_words_after(
        fitted.model, fitted.task.tokenizer, ["the cat saw a cat", "a dog saw a cat", "a cat"]
    )
    assert found == {0: 1.0, 1: 0.0, 2: 0.0, 3: 0.5, 4: 0.0, 5: 0.0}


def masked_numbers(both: float, left: float, end: float) -> Callable[[str, int], Measured]:
    """Accuracies of the BERT and of the others where words follow, and the BERT's at the end."""

    def measure(arm: str, seed: int) -> Measured:
        height = both if arm == "BERT" else left
        return {
            "accuracy": {0: end if arm == "BERT" else 0.3},
            "inside": height + 0.001 * seed,
            "filled": {"clue after": height},
        }

    return measure


def test_masked_judges_planted_numbers():
    assert verdicts(masked_lab, masked_numbers(0.6, 0.4, 0.3)) == all_hold(masked_lab)
    assert verdicts(masked_lab, masked_numbers(0.4, 0.6, 0.3))[:3] == ["does not hold"] * 3
    assert verdicts(masked_lab, masked_numbers(0.5, 0.5, 0.3))[:3] == ["does not hold"] * 3
    assert verdicts(masked_lab, masked_numbers(0.6, 0.4, 0.6))[2:4] == ["does not hold"] * 2


# pretraining, one-body-many-tasks


def test_labels_needed_are_read_off_the_curve():
    curve = {10: 0.5, 30: 0.8, 100: 1.0, 300: 1.0, 1000: 1.0}
    needed = pretraining_lab.labels_needed(lambda arm, name, x: curve[x], "GPT")
    assert needed == pytest.approx((math.log10(30) + 2) / 2)

    never = pretraining_lab.labels_needed(lambda arm, name, x: 0.5, "GPT")
    at_once = pretraining_lab.labels_needed(lambda arm, name, x: 0.95, "GPT")
    assert never == 3
    assert at_once == 1


def pretraining_numbers(few: str) -> Callable[[str, int], Measured]:
    """The arms whose name ends with `few` need a tenth of the labels."""

    def measure(arm: str, seed: int) -> Measured:
        factor = 10 if arm.endswith(few) else 1
        accuracy = {}
        for count in pretraining_lab.COUNTS:
            accuracy[count] = min(1.0, 0.3 * math.log10(factor * count) + 0.001 * seed)

        return {"accuracy": accuracy, "mean accuracy": sum(accuracy.values()) / 5}

    return measure


def test_pretraining_judges_planted_numbers():
    pretrained = pretraining_numbers("pre-trained")

    assert verdicts(pretraining_lab, pretrained) == all_hold(pretraining_lab)
    assert verdicts(pretraining_lab, pretraining_numbers("scratch")) == ["does not hold"] * 4
    assert verdicts(pretraining_lab, pretraining_numbers("none")) == ["does not hold"] * 4


def test_pretraining_without_steps_is_training_from_scratch(monkeypatch):
    monkeypatch.setattr(pretraining_lab, "COUNTS", (30,))
    untrained = Size(**{**vars(pretraining_lab.EXPERIMENT.small), "steps": 0})
    monkeypatch.setattr(
        pretraining_lab, "EXPERIMENT", replace(pretraining_lab.EXPERIMENT, small=untrained)
    )
    monkeypatch.delitem(TINY[pretraining_lab], "steps")

    pretrained = measured(pretraining_lab, "GPT, pre-trained")
    assert pretrained == measured(pretraining_lab, "GPT from scratch")


def test_a_frozen_body_keeps_its_weights_and_the_head_learns():
    size = one_body_many_tasks_lab.EXPERIMENT.size("small", **TINY[one_body_many_tasks_lab])
    cell = Cell("", 0, size, CPU)
    fitted = grammar_models.pretrain("BERT", cell, 0)
    before = {name: tensor.clone() for name, tensor in fitted.model.state_dict().items()}

    found = []
    original = grammar_models.task_model
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            grammar_models, "task_model", lambda *args: found.append(original(*args)) or found[-1]
        )
        grammar_models.tuned_accuracy(fitted, "tense", 8, cell, frozen=True)
        grammar_models.tuned_accuracy(fitted, "tense", 8, cell)

    frozen, tuned = (model.backbone.state_dict() for model in found)
    assert all(frozen[name].equal(before[name]) for name in frozen)
    assert not all(tuned[name].equal(before[name]) for name in tuned)
    assert not found[0].head.weight.equal(original(fitted, ("a", "b", "c"), cell).head.weight)


def one_body_numbers(good: tuple[str, ...], tuned: float = 0.8) -> Callable[[str, int], Measured]:
    def measure(arm: str, seed: int) -> Measured:
        accuracy = 0.8 if arm in good else 0.5
        if arm == one_body_many_tasks_lab.TUNED and arm in good:
            accuracy = tuned

        return {"mean accuracy": accuracy + 0.001 * seed}

    return measure


def test_one_body_judges_planted_numbers():
    lab = one_body_many_tasks_lab
    pretrained = (lab.FROZEN, lab.TUNED)
    untrained = (lab.RANDOM, lab.SCRATCH)

    assert verdicts(lab, one_body_numbers(pretrained)) == all_hold(lab)
    assert verdicts(lab, one_body_numbers(untrained))[:2] == ["does not hold"] * 2
    assert verdicts(lab, one_body_numbers(()))[:2] == ["does not hold"] * 2
    assert verdicts(lab, one_body_numbers(pretrained, tuned=1.0))[2] == "does not hold"
