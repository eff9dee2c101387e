"""The experiment on token positions runs from one command, resumes, and reports its numbers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qkv.insight.probing.activations import ProbeData
from qkv.insight.probing.probe_model import LayerScore
from qkv.insight.probing.probe_tasks import ProbeTask
from qkv.insight.render.figures.probe_figure import Panel
from qkv.lab import positions as lab
from qkv.lab.positions import MASKED, PositionExperiment, Trained, configs_of, positions
from qkv.models import build
from support.families import words
from support.sentences import SENTENCES

SMALL: dict[str, Any] = {"width": 8, "depth": 1, "heads": 1, "context": 8}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("\n".join(SENTENCES * 20))
    return str(tmp_path / "text.txt")


def test_from_one_command_to_the_figure(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "[bold]out"  # a path is not read as markup
    options: dict[str, Any] = {
        "only": ("none", "masked"),
        "vocabulary": 280,
        "steps": 2,
        "batch_tokens": 64,
        "windows": 20,
        "hidden": 4,
        "device": "cpu",
    }
    positions(PositionExperiment(data=(data,), out=out, **SMALL, **options))
    report = json.loads((out / "results.json").read_text())
    assert [model["positions"] for model in report["models"]] == ["none", MASKED]
    assert report["always_the_middle"] == 2
    for model in report["models"]:
        assert math.isfinite(model["validation_loss"])
        layers = [score["layer"] for score in model["distance"]["hidden"]]
        assert layers == ["embedding", "0", "norm"]
        assert len(model["distance"]["linear"]) == 3
    assert (out / "positions.png").stat().st_size > 1000
    printed = capsys.readouterr().out
    assert "always the middle: 2.0; at random: 2.7" in " ".join(printed.split())
    assert f"{out / 'positions.png'} and {out / 'results.json'}" in printed

    monkeypatch.setattr(lab, "probed", lambda *_: {kind: [] for kind in ("hidden", "linear")})
    monkeypatch.setattr(lab, "table", lambda *_: "")
    monkeypatch.setattr(lab, "draw", lambda *_: out)
    weights = {path: path.stat().st_mtime_ns for path in out.glob("*/model.safetensors")}
    positions(PositionExperiment(data=(data,), out=out, **SMALL, **options))
    assert len(weights) == 2
    # Finished models are not trained again.
    assert weights == {path: path.stat().st_mtime_ns for path in weights}


def test_the_table_and_the_figure_have_the_same_layers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The reported layer is the best on the validation windows, with its test score."""
    test, validation = (3.0, 1.0, 2.0), (3.0, 2.0, 1.0)
    scores = []
    for layer, score, chosen in zip(("embedding", "0", "norm"), test, validation, strict=True):
        scores.append(LayerScore("model", "distance", layer, (score,), None, None, chosen))
    results = [Trained("none", 1.0, {"hidden": scores, "linear": scores})]
    texts = ProbeData([np.arange(4)], [np.arange(4)], np.arange(4))
    task = ProbeTask("position", (texts, texts, texts), tuple("0123"), ("distance", "accuracy"))
    columns = [list(column.cells) for column in lab.table(results, task).columns]
    assert columns[3:] == [["2.00"], ["norm"], ["2.00"], ["norm"]]
    drawn: list[Panel] = []
    monkeypatch.setattr(lab, "draw_panels", lambda panels, path, *_: drawn.extend(panels) or path)
    lab.draw(results, task, tmp_path / "a.png")
    assert [panel.lines[0].scores for panel in drawn] == [scores, scores]


def test_without_encoding_only_a_causal_model_can_tell_positions_apart() -> None:
    """A bidirectional model gives moved tokens the same vectors; a causal one does not."""
    configs = configs_of(SMALL | {"vocabulary": 13})
    for name in ("none", MASKED):
        torch.manual_seed(0)
        model = build(configs[name]).eval()
        row = words(1, 8)
        moved = row.roll(3, dims=1)
        with torch.no_grad():
            one, other = model.hidden(row), model.hidden(moved)
        same = torch.allclose(one.roll(3, dims=1), other, atol=1e-6)
        assert same == (name == MASKED)


def test_the_models_differ_in_their_positional_encoding_only() -> None:
    configs = configs_of(SMALL | {"vocabulary": 13})
    assert list(configs) == ["none", "learned", "sinusoidal", "rotary", "alibi", MASKED]
    assert [config.position for config in configs.values()] == [*list(configs)[:5], "none"]
    shapes = {
        name: sum(weight.numel() for weight in build(config).stack.parameters())
        for name, config in configs.items()
    }
    assert len(set(shapes.values())) == 1
    assert configs[MASKED].norm_placement == configs["none"].norm_placement == "before"


def test_invalid_settings_are_refused(data: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"hidden: .*not 0"):
        positions(PositionExperiment(data=(data,), out=tmp_path / "out", hidden=0))
    assert not (tmp_path / "out").exists()
