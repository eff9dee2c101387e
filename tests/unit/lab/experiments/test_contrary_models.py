"""Experiments that are fed models which contradict their claim, and say so.

Either the arms get the same model, or one that has learned nothing.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from qkv.data.sources.named import NAMED_SOURCES
from qkv.lab import Cell, Results, find
from qkv.lab.experiments.inside import position_probes
from qkv.lab.experiments.recurrent import bottleneck_lab, distance_lab
from qkv.lab.experiments.translation import forcing_lab, table2_lab
from qkv.lab.experiments.translation import translators as tr
from qkv.training.setup.training_task import TrainingTask

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def little_data(small_task: TrainingTask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tr, "turkish_task", lambda: small_task)
    monkeypatch.setattr(tr, "LONGEST", 3)
    lines = ["def add(a, b):\n    return a + b\n"] * 40
    texts = NAMED_SOURCES["python"]._replace(read=lambda split: lines)
    monkeypatch.setitem(NAMED_SOURCES, "python", texts)


def results_of(name: str, **settings: Any) -> Results:
    """Three seeds of every arm at a tiny size."""
    experiment = find(name)
    size = experiment.size("small", **settings)
    measured = {}
    for seed in range(3):
        for arm in experiment.arms:
            torch.manual_seed(seed)
            measured[arm, seed] = experiment.measure(Cell(arm, seed, size, CPU))

    return Results(experiment, size, measured)


def test_bottleneck_without_attention_in_any_arm(monkeypatch: pytest.MonkeyPatch) -> None:
    for arm in bottleneck_lab.MODELS:
        monkeypatch.setitem(bottleneck_lab.MODELS, arm, (1, "none"))

    results = results_of("bottleneck", steps=2, longest=8, width=8)
    assert results.findings[0].effect.mean == 0
    assert results.verdict == "does not hold"


def test_distance_with_models_that_have_learned_nothing() -> None:
    results = results_of("distance", steps=1, farthest=16, width=4)
    assert results.findings[0].verdict != "holds"
    assert results.verdict != "holds"


def test_distance_with_attention_in_every_arm(monkeypatch: pytest.MonkeyPatch) -> None:
    config = distance_lab.models.language_model
    monkeypatch.setattr(
        distance_lab.models,
        "language_model",
        lambda name, **sizes: config("attention", **{**sizes, "depth": 1, "width": 8, "window": 9}),
    )
    results = results_of("distance", steps=1, farthest=8, width=4)
    assert results.findings[0].effect.mean == 0
    assert results.verdict == "does not hold"


def test_forcing_with_right_words_in_every_arm(monkeypatch: pytest.MonkeyPatch) -> None:
    for arm, (family, _) in forcing_lab.ARMS.items():
        monkeypatch.setitem(forcing_lab.ARMS, arm, (family, 0.0))

    results = results_of("forcing", width=8, steps=4, points=2, sentences=3)
    assert [finding.effect.mean for finding in results.findings] == [0, 0]
    assert results.verdict == "does not hold"


def test_scores_with_models_that_have_learned_nothing() -> None:
    assert results_of("scores", width=8, steps=2, points=2, sentences=3).verdict != "holds"


def test_table2_with_one_model_in_every_arm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tr, "transformer", lambda width: tr.rnn(width))
    monkeypatch.setitem(table2_lab.RATES, table2_lab.NEW, table2_lab.RATES[table2_lab.RIVAL])
    results = results_of("table2", width=8, budget=2e7, points=2, sentences=3)
    assert results.findings[0].effect.mean == 0
    assert results.verdict == "does not hold"


def test_positions_with_a_causal_model_that_is_not_causal(monkeypatch: pytest.MonkeyPatch) -> None:
    config = position_probes.position_config
    monkeypatch.setattr(
        position_probes,
        "position_config",
        lambda arm, **shape: config(position_probes.BIDIRECTIONAL, **shape),
    )
    monkeypatch.setattr("qkv.lab.experiments.inside.positions_lab.NONE", "causal, none")
    sizes = {"width": 8, "depth": 1, "context": 8, "steps": 2, "tokens": 64, "windows": 5}
    results = results_of("positions", **sizes)
    assert results.findings[0].effect.mean == 0
    assert results.verdict != "holds"


def test_explain_with_a_model_that_has_learned_nothing() -> None:
    sizes = {"width": 8, "depth": 1, "steps": 2, "sentences": 3, "line": 2}
    assert results_of("explain", **sizes).verdict != "holds"
