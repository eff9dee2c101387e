"""Fine-tuning that is stopped and resumed, ended early, or uses gradient checkpointing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qkv.training.finetune import labelled_task
from qkv.training.logging.metrics import read_metrics
from qkv.training.resilience.checkpoint_writer import Checkpoints
from support.finetuning import assert_same_tuning, make_models, tuning_job
from support.small_training import model_of, same_bits

pytestmark = pytest.mark.usefixtures("without_shape_checks")  # test_finetune has them


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_models(tmp_path_factory.mktemp("models"))


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "everything": ("gpt", {"language": 0.5, "class_weights": ("balanced",), "dropout": 0.1}),
    "layers": (
        "bert",
        {"optimizer": {"layer_decay": 0.8, "average": "exponential"}, "dropout": 0.1},
    ),
    "adapters": ("gpt", {"train": "adapters", "adapter_dropout": 0.1, "dropout": 0.1}),
    "averaged in parts": (
        "bert",
        {"train": "adapters", "optimizer": {"average": "last"}, "micro_batch_tokens": 20},
    ),
    "early stopping": (
        "bert",
        {"stop_after": 2, "validate_every": 2, "optimizer": {"learning_rate": 0.1}},
    ),
}


@pytest.mark.parametrize("case", list(CASES))
def test_a_stopped_and_resumed_run_equals_an_undisturbed_one(
    case: str, models: Path, tmp_path: Path, stop_after: Callable[[int], None]
) -> None:
    family, changes = CASES[case]
    options = {"epochs": 1.5, "checkpoint_every": 4, **changes}
    whole = tuning_job(models, tmp_path, "classify", family, out="whole", **options)
    expected = whole.start()
    stopped = tuning_job(models, tmp_path, "classify", family, out="stopped", **options)
    for steps in (3, 2):
        stop_after(steps)
        assert not stopped.start().outcome.finished
        stopped = stopped.changed(resume=True)

    stop_after(-1)
    result = stopped.start()
    assert result.outcome.finished
    assert result.outcome.steps == expected.outcome.steps
    assert result.measured == expected.measured
    assert_same_tuning(stopped.run.out, whole.run.out)
    if case == "early stopping":
        assert result.outcome.steps < 12


def test_early_stopping_ends_the_run_and_saves_the_best(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accuracies = iter([0.5, 0.7, 0.6, 0.65, *[0.6] * 9])
    monkeypatch.setattr(
        labelled_task,
        "measures",
        lambda head, counted: {"accuracy": next(accuracies), "macro_f1": 0.0, "matthews": 0.0},
    )
    job = tuning_job(models, tmp_path, "classify", validate_every=3, stop_after=2, epochs=10)
    result = job.start()
    assert result.outcome.steps == 12
    assert result.outcome.finished
    rows = [row for row in read_metrics(job.run.out) if "accuracy" in row]
    assert [row["accuracy"] for row in rows] == [0.5, 0.7, 0.6, 0.65]
    best = Checkpoints(job.run.out / "checkpoints").best()
    assert best is not None
    assert best.step == 6
    assert same_bits(model_of(job.run.out), best.tensors("model/"))

    # Resumed, the run has ended, unless it may wait for longer
    assert job.changed(resume=True).start().outcome.steps == 12
    assert job.changed(resume=True, stop_after=3).start().outcome.steps > 12


@pytest.mark.parametrize("metric", ["loss", "accuracy"])
def test_the_best_weights_are_those_of_the_metric_then_of_the_loss(
    metric: str, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(labelled_task, "measures", lambda head, counted: {"accuracy": 1.0})
    job = tuning_job(
        models,
        tmp_path,
        "classify",
        metric=metric,
        validate_every=4,
        optimizer={"learning_rate": 0.05},
    )
    result = job.start()
    losses = [row["validation_loss"] for row in read_metrics(job.run.out) if "accuracy" in row]
    assert len(losses) == 6
    assert result.measured["loss"] == pytest.approx(min(losses), rel=1e-5)
    assert result.outcome.validation_loss == min(losses)


@pytest.mark.parametrize("family", ["gpt", "bert"])
def test_gradient_checkpointing_gives_the_same_run(
    family: str, models: Path, tmp_path: Path
) -> None:
    plain = tuning_job(models, tmp_path, "classify", family, epochs=0.5, dropout=0.1)
    recomputed = plain.changed(out=tmp_path / "recomputed", recompute=True)
    assert plain.start().measured == recomputed.start().measured
    assert same_bits(model_of(plain.run.out), model_of(recomputed.run.out))
