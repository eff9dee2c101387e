"""Which steps are captured as CUDA graphs, and a run whose pairs are padded to buckets."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from qkv.data.batches.batch import Batch
from qkv.data.batches.shape_buckets import pad_to_bucket
from qkv.data.batches.streams import StreamedData
from qkv.models import build
from qkv.training import run as run_module
from qkv.training.logging.metrics import read_metrics
from qkv.training.objective import Objective
from qkv.training.setup.objective_setup import enable_cuda_graph, has_outside_code
from qkv.training.systems import training_cuda_graph
from support.small_training import MODELS, model_of, small_job

CAPTURED = {"gpt": True, "bert": True, "transformer": True, "rnn": True, "rnn-lm": False}


@pytest.mark.parametrize("family", list(MODELS))
def test_what_is_captured(family: str, tmp_path: Path) -> None:
    """All steps, except those of recurrent language models, which are few calls of cuDNN."""
    task = small_job(family, tmp_path).task()
    objective = Objective(build(task.config))
    enable_cuda_graph(objective, task.training)
    assert (objective.cuda_graphs is not None) == CAPTURED[family]
    if objective.cuda_graphs is None:
        return

    # Pairs are padded to few shapes, other batches stay as they are.
    batch = task.training.batch(0)
    shaped = objective.cuda_graphs.shaped(batch)
    assert (shaped is batch) == (family in ("gpt", "bert"))
    assert objective.cuda_graphs.varied == (family in ("transformer", "rnn"))


def test_pairs_are_not_padded_beyond_learned_positions(tmp_path: Path) -> None:
    task = small_job("transformer", tmp_path).task()
    objective = Objective(build(replace(task.config, position="learned", context=17)))
    enable_cuda_graph(objective, task.training)
    assert objective.cuda_graphs is not None
    ids = torch.ones(2, 17, dtype=torch.int64)
    shaped = objective.cuda_graphs.shaped(Batch(ids=ids, targets=ids, source=ids))
    assert shaped.ids.shape == (2, 17)


class OwnLayer(nn.Linear):
    """A layer of a user."""


def test_code_from_outside_is_not_captured(tmp_path: Path) -> None:
    task = small_job("transformer", tmp_path).task()
    model = build(task.config)
    assert not has_outside_code(Objective(model))
    model.encoder.blocks[0].feed_forward.up = OwnLayer(16, 24)
    objective = Objective(model)
    enable_cuda_graph(objective, task.training)
    assert objective.cuda_graphs is None


def test_streams_are_not_captured(tmp_path: Path) -> None:
    task = small_job("gpt", tmp_path).task()
    data = task.training
    assert hasattr(data, "tokens")
    objective = Objective(build(task.config))
    enable_cuda_graph(objective, StreamedData(data.tokens, 4, 2, 0))
    assert objective.cuda_graphs is None


class NoGraph(training_cuda_graph.StepGraphRunner):
    """Pads the batches, and captures nothing."""

    def supports(self, batch: Batch) -> bool:
        return False


@pytest.fixture
def padded_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs on the CPU pad their batches as on a GPU."""
    build_objective = run_module.build_objective

    def build_padded(*arguments: Any) -> Any:
        model, objective = build_objective(*arguments)
        objective.cuda_graphs = NoGraph(objective, shaped=partial(pad_to_bucket, longest=None))
        return model, objective

    monkeypatch.setattr(run_module, "build_objective", build_padded)


@pytest.mark.parametrize("family", ["transformer", "rnn"])
def test_a_resumed_run_with_padded_pairs_ends_with_the_same_bits(
    family: str, tmp_path: Path, padded_pairs: None
) -> None:
    whole = small_job(
        family, tmp_path, tmp_path / "whole", optimizer={"schedule": "constant", "warmup": 1}
    )
    whole.train()
    whole.with_run(out=tmp_path / "parts", steps=6).train()
    whole.with_run(out=tmp_path / "parts", resume=True).train()
    expected = model_of(tmp_path / "whole")
    for name, weight in model_of(tmp_path / "parts").items():
        assert torch.equal(weight, expected[name]), name


@pytest.mark.parametrize("family", ["transformer", "rnn"])
def test_padded_pairs_train_as_pairs_do(
    family: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    config = replace(MODELS[family], dropout=0.0)
    plain = small_job(family, tmp_path, tmp_path / "plain")._replace(config=config)
    plain.train()
    request.getfixturevalue("padded_pairs")
    plain.with_run(out=tmp_path / "padded").train()
    losses: list[list[float]] = []
    for name in ("plain", "padded"):
        rows = read_metrics(tmp_path / name)
        losses.append([row["loss"] for row in rows if "loss" in row])

    assert len(losses[0]) == 12
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
