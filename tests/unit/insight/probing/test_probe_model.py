"""Probe scores do not depend on where activations are stored, and the controls score low."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

from qkv.insight.probing.activations import ProbeData, block_vectors
from qkv.insight.probing.linear_probe import ProbeTraining
from qkv.insight.probing.probe_model import (
    LayerScore,
    ProbeResult,
    best_of,
    probe,
    randomised,
)
from qkv.insight.probing.probe_tasks import Measure, ProbeTask
from support.families import V, gpt

LEARNING = ProbeTraining(epochs=4, rate=0.02)


def random_texts(count: int, seed: int, numbers: bool = False) -> ProbeData:
    """Random texts; the target of a token is its half of the vocabulary, or its id as a number."""
    random = np.random.default_rng(seed)
    ids = [random.integers(V, size=random.integers(2, 9)) for _ in range(count)]
    tokens = np.concatenate(ids)
    targets = tokens.astype(float) if numbers else (tokens > 6).astype(int)
    return ProbeData(ids, [np.arange(len(row)) for row in ids], targets)


def halves(numbers: bool = False) -> ProbeTask:
    parts = random_texts(80, 0, numbers), random_texts(20, 1, numbers), random_texts(30, 2, numbers)
    if numbers:
        return ProbeTask("half", parts, (), ("distance",))
    return ProbeTask("half", parts, ("small", "large"), ("accuracy",))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def result() -> ProbeResult:
    torch.manual_seed(0)
    return probe(gpt().float(), halves(), seeds=2, learning=LEARNING, keep="memory")


def test_the_model_scores_high_and_shuffled_labels_do_not(result: ProbeResult) -> None:
    assert result.layers == ("embedding", "0", "1", "norm")
    assert result.of("model")[0].mean > 0.97  # the token is in its embedding
    assert result.of("random model")[0].mean > 0.9
    for score in result.of("shuffled labels"):
        assert abs(score.mean - 0.5) < 0.2
    best = result.best
    assert best.validation == max(score.validation for score in result.of("model"))
    assert best.low is not None
    assert best.low <= best.mean <= (best.high or 0)
    assert len(best.seeds) == 2
    assert result.facts["places"]["test"] == len(halves().parts[2].targets)


@pytest.mark.parametrize("keep", ["disk", "recompute"])
def test_disk_and_recomputing_give_the_same_numbers(result: ProbeResult, keep: str) -> None:
    torch.manual_seed(0)
    other = probe(gpt().float(), halves(), seeds=2, learning=LEARNING, keep=keep)  # type: ignore[arg-type]
    assert [score[:3] for score in sorted(other.scores)] == [
        score[:3] for score in sorted(result.scores)
    ]
    for one, same in zip(sorted(result.scores), sorted(other.scores), strict=True):
        assert same.seeds == pytest.approx(one.seeds, abs=0.01)
    for name, weight in result.weights.items():
        assert_close(other.weights[name], weight, rtol=1e-3, atol=1e-3)


def test_saved_weights_predict_as_the_probe_did(result: ProbeResult, tmp_path: Path) -> None:
    result.save(tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "probes.safetensors",
        "results.json",
    ]
    report = json.loads((tmp_path / "out" / "results.json").read_text())
    assert report["best"] == {
        "layer": result.best.layer, "score": result.best.mean, "validation": result.best.validation,
    }  # fmt: skip
    assert {score["way"] for score in report["scores"]} == {
        "model",
        "random model",
        "shuffled labels",
    }
    weights = load_file(tmp_path / "out" / "probes.safetensors")
    torch.manual_seed(0)
    model, test = gpt().float(), halves().parts[2]
    x = block_vectors(model, test, range(len(test)), ("1",))[0]
    layer = {
        part: weights[f"model/1/{part}"] for part in ("mean", "deviation", "first", "first_bias")
    }
    x = (x - layer["mean"]) / layer["deviation"]
    outputs = x @ layer["first"][1] + layer["first_bias"][1]
    accuracy = float((outputs.argmax(-1) == torch.from_numpy(test.targets)).double().mean())
    (score,) = [score for score in result.of("model") if score.layer == "1"]
    assert accuracy == pytest.approx(score.seeds[1])


@pytest.mark.parametrize("hidden", [0, 4])
def test_probes_trained_together_are_saved_separately(tmp_path: Path, hidden: int) -> None:
    """With controls and all layers at once the weights are slices of the same tensors."""
    learning = ProbeTraining(hidden=hidden, epochs=1)
    result = probe(
        gpt().float(), halves(), seeds=2, learning=learning, controls=True, keep="recompute"
    )
    result.save(tmp_path)
    saved = load_file(tmp_path / "probes.safetensors")
    assert {name.rpartition("/")[0] for name in saved} == {
        f"{way}/{layer}"
        for way in ("model", "random model", "shuffled labels")
        for layer in ("embedding", "0", "1", "norm")
    }
    assert saved.keys() == result.weights.keys()
    for name, weight in saved.items():
        assert weight.equal(result.weights[name])


def test_controls_do_not_change_the_scores_of_the_model(result: ProbeResult) -> None:
    torch.manual_seed(0)
    alone = probe(
        gpt().float(),
        halves(),
        seeds=2,
        learning=LEARNING,
        controls=False,
        keep="memory",
        layers=["embedding", "1"],
    )
    assert len(alone.scores) == len(alone.of("model")) == 2
    for same in alone.scores:
        (one,) = [score for score in result.of("model") if score.layer == same.layer]
        assert same.seeds == pytest.approx(one.seeds, abs=0.01)
        assert same.validation == pytest.approx(one.validation, abs=0.01)
    for name, weight in alone.weights.items():
        assert_close(weight, result.weights[name], rtol=1e-3, atol=1e-3)


def test_the_best_layer_is_chosen_by_validation_and_reported_by_the_test(
    result: ProbeResult,
) -> None:
    def scored(measure: Measure, layer: str, test: float, validation: float) -> LayerScore:
        return LayerScore("model", measure, layer, (test,), None, None, validation)

    accuracy = [scored("accuracy", "0", 0.9, 0.5), scored("accuracy", "1", 0.7, 0.8)]
    assert best_of(accuracy) == accuracy[1]
    assert replace(result, scores=accuracy).best.mean == 0.7
    distance = [scored("distance", "0", 1.0, 3.0), scored("distance", "1", 2.0, 2.5)]
    assert best_of(distance) == distance[1]


def test_the_validation_score_is_that_of_the_validation_part() -> None:
    task = halves()
    training, validation, _ = task.parts
    other = ProbeTask("half", (training, validation, validation), task.labels, task.measures)
    result = probe(
        gpt().float(), other, seeds=2, learning=ProbeTraining(epochs=1), keep="memory", layers=["1"]
    )
    for score in result.scores:
        assert score.validation == pytest.approx(score.mean)


def test_numbers_with_a_hidden_layer() -> None:
    learning = ProbeTraining(hidden=16, epochs=8, rate=0.02)
    result = probe(
        gpt().float(),
        halves(numbers=True),
        seeds=1,
        learning=learning,
        keep="memory",
        layers=["embedding"],
    )
    assert result.of("model")[0].mean < 1 < 2.5 < result.of("shuffled labels")[0].mean
    assert result.best.measure == "distance"
    assert result.baseline["distance"] == pytest.approx(3.2, abs=0.4)
    assert result.weights["model/embedding/second"].shape == (1, 16, 1)


def test_the_random_model_is_untrained_and_reproducible() -> None:
    model = gpt().float()
    one, other = randomised(model), randomised(model)
    weights = [part.stack.blocks[0].attention.qkv.weight for part in (model, one, other)]
    assert weights[1].equal(weights[2])
    assert not weights[0].equal(weights[1])


def test_progress_is_reported() -> None:
    progress: dict[str, float] = {}

    def stage(what: str, part: float) -> None:
        progress[what] = progress.get(what, 0) + part

    probe(
        gpt().float(),
        halves(),
        seeds=1,
        learning=ProbeTraining(epochs=2),
        layers=["0", "1"],
        stage=stage,
    )
    assert list(progress) == [
        "reading the texts with the model",
        "training probes on the model",
        "reading the texts with the random-weight control",
        "training probes on the random model",
    ]
    assert list(progress.values()) == pytest.approx([1, 1, 1, 1])


def test_zero_seeds_are_refused() -> None:
    with pytest.raises(ValueError, match=r"seeds: .*not 0"):
        probe(gpt(), halves(), seeds=0)
