"""Probing a model gives the same numbers however its vectors are kept, and its controls know
nothing.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

from qkv.insight.probing.activations import ProbeData, vectors
from qkv.insight.probing.linear_probe import Learning
from qkv.insight.probing.probe_model import Measure, Probed, Scored, best_of, probe, randomised
from qkv.insight.probing.probe_tasks import ProbeTask
from support.families import V, gpt

LEARNING = Learning(epochs=4, rate=0.02)


def some(count: int, seed: int, numbers: bool = False) -> ProbeData:
    """The class of each word is the half of the vocabulary that it is from, or its id is the
    number.
    """
    random = np.random.default_rng(seed)
    ids = [random.integers(V, size=random.integers(2, 9)) for _ in range(count)]
    every = np.concatenate(ids)
    return ProbeData(
        ids,
        [np.arange(len(each)) for each in ids],
        every.astype(float) if numbers else (every > 6).astype(int),
    )


def halves(numbers: bool = False) -> ProbeTask:
    parts = some(80, 0, numbers), some(20, 1, numbers), some(30, 2, numbers)
    labels, measures = ((), ("distance",)) if numbers else (("small", "large"), ("accuracy",))
    return ProbeTask("half", parts, labels, measures)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def found() -> Probed:
    torch.manual_seed(0)
    return probe(gpt().float(), halves(), seeds=2, learning=LEARNING, keep="memory")


def test_the_model_knows_and_its_controls_do_not(found: Probed) -> None:
    assert found.layers == ("embedding", "0", "1", "norm")
    assert found.of("model")[0].mean > 0.97  # the word is in its embedding
    assert found.of("random model")[0].mean > 0.9
    for score in found.of("shuffled labels"):
        assert abs(score.mean - 0.5) < 0.2
    best = found.best
    assert best.validation == max(score.validation for score in found.of("model"))
    assert best.low is not None
    assert best.low <= best.mean <= (best.high or 0)
    assert len(best.seeds) == 2
    assert found.facts["places"]["test"] == len(halves().parts[2].answers)


@pytest.mark.parametrize("keep", ["disk", "recompute"])
def test_files_and_computing_again_give_the_same_numbers(found: Probed, keep: str) -> None:
    torch.manual_seed(0)
    other = probe(gpt().float(), halves(), seeds=2, learning=LEARNING, keep=keep)  # type: ignore[arg-type]
    assert [score[:3] for score in sorted(other.scores)] == [
        score[:3] for score in sorted(found.scores)
    ]
    for one, same in zip(sorted(found.scores), sorted(other.scores), strict=True):
        assert same.seeds == pytest.approx(one.seeds, abs=0.01)
    for name, weight in found.weights.items():
        assert_close(other.weights[name], weight, rtol=1e-3, atol=1e-3)


def test_what_is_saved_answers_as_the_probe_did(found: Probed, tmp_path: Path) -> None:
    found.save(tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "probes.safetensors",
        "results.json",
    ]
    told = json.loads((tmp_path / "out" / "results.json").read_text())
    assert told["best"] == {
        "layer": found.best.layer, "score": found.best.mean, "validation": found.best.validation,
    }  # fmt: skip
    assert {score["way"] for score in told["scores"]} == {
        "model",
        "random model",
        "shuffled labels",
    }
    weights = load_file(tmp_path / "out" / "probes.safetensors")
    torch.manual_seed(0)
    model, test = gpt().float(), halves().parts[2]
    x = vectors(model, test, range(len(test)), ("1",))[0]
    own = {
        part: weights[f"model/1/{part}"] for part in ("mean", "deviation", "first", "first_bias")
    }
    said = ((x - own["mean"]) / own["deviation"]) @ own["first"][1] + own["first_bias"][1]
    right = float((said.argmax(-1) == torch.from_numpy(test.answers)).double().mean())
    (score,) = [each for each in found.of("model") if each.layer == "1"]
    assert right == pytest.approx(score.seeds[1])


@pytest.mark.parametrize("hidden", [0, 4])
def test_probes_that_learned_together_are_saved_apart(tmp_path: Path, hidden: int) -> None:
    """With controls, and all layers at once: their weights are parts of the same tensors."""
    learning = Learning(hidden=hidden, epochs=1)
    found = probe(
        gpt().float(), halves(), seeds=2, learning=learning, controls=True, keep="recompute"
    )
    found.save(tmp_path)
    saved = load_file(tmp_path / "probes.safetensors")
    assert {name.rpartition("/")[0] for name in saved} == {
        f"{way}/{layer}"
        for way in ("model", "random model", "shuffled labels")
        for layer in ("embedding", "0", "1", "norm")
    }
    assert saved.keys() == found.weights.keys()
    for name, weight in saved.items():
        assert weight.equal(found.weights[name])


def test_controls_change_nothing_of_the_models_own_scores(found: Probed) -> None:
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
        (one,) = [score for score in found.of("model") if score.layer == same.layer]
        assert same.seeds == pytest.approx(one.seeds, abs=0.01)
        assert same.validation == pytest.approx(one.validation, abs=0.01)
    for name, weight in alone.weights.items():
        assert_close(weight, found.weights[name], rtol=1e-3, atol=1e-3)


def test_the_best_layer_is_chosen_by_validation_and_reported_by_the_test(found: Probed) -> None:
    def scored(measure: Measure, layer: str, test: float, validation: float) -> Scored:
        return Scored("model", measure, layer, (test,), None, None, validation)

    right = [scored("accuracy", "0", 0.9, 0.5), scored("accuracy", "1", 0.7, 0.8)]
    assert best_of(right) == right[1]
    assert replace(found, scores=right).best.mean == 0.7
    off = [scored("distance", "0", 1.0, 3.0), scored("distance", "1", 2.0, 2.5)]
    assert best_of(off) == off[1]


def test_the_validation_score_is_that_of_the_validation_part() -> None:
    question = halves()
    training, validation, _ = question.parts
    other = ProbeTask(
        "half", (training, validation, validation), question.labels, question.measures
    )
    found = probe(
        gpt().float(), other, seeds=2, learning=Learning(epochs=1), keep="memory", layers=["1"]
    )
    for score in found.scores:
        assert score.validation == pytest.approx(score.mean)


def test_numbers_with_a_hidden_layer() -> None:
    learning = Learning(hidden=16, epochs=8, rate=0.02)
    found = probe(
        gpt().float(),
        halves(numbers=True),
        seeds=1,
        learning=learning,
        keep="memory",
        layers=["embedding"],
    )
    assert found.of("model")[0].mean < 1 < 2.5 < found.of("shuffled labels")[0].mean
    assert found.best.measure == "distance"
    assert found.baseline["distance"] == pytest.approx(3.2, abs=0.4)
    assert found.weights["model/embedding/second"].shape == (1, 16, 1)


def test_the_random_model_is_another_one_and_always_the_same() -> None:
    model = gpt().float()
    one, other = randomised(model), randomised(model)
    weights = [each.stack.blocks[0].attention.qkv.weight for each in (model, one, other)]
    assert weights[1].equal(weights[2])
    assert not weights[0].equal(weights[1])


def test_it_can_be_watched() -> None:
    heard: dict[str, float] = {}

    def stage(what: str, part: float) -> None:
        heard[what] = heard.get(what, 0) + part

    probe(
        gpt().float(),
        halves(),
        seeds=1,
        learning=Learning(epochs=2),
        layers=["0", "1"],
        stage=stage,
    )
    assert list(heard) == [
        "the model reads", "probes of the model", "the random model reads", "probes of the random model",
    ]  # fmt: skip
    assert list(heard.values()) == pytest.approx([1, 1, 1, 1])


def test_no_seed_is_no_probe() -> None:
    with pytest.raises(ValueError, match=r"^seeds: expected 1 or more, not 0$"):
        probe(gpt(), halves(), seeds=0)
