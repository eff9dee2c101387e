"""Fine-tuning that is stopped, resumed, ended early or recomputed: the weights are those of a run
that was not.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qkv.training.finetune import labelled_task
from qkv.training.logging.metrics import read_metrics
from qkv.training.resilience.checkpoint_writer import Checkpoints
from support.finetuning import asked, assert_same_tuning, make_models
from support.small_training import model_of, same_bits

pytestmark = pytest.mark.usefixtures("without_shape_checks")  # which the tests of the tasks have on


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
def test_stopped_and_resumed_is_never_stopped(
    case: str, models: Path, tmp_path: Path, stop_after: Callable[[int], None]
) -> None:
    family, changes = CASES[case]
    whole = asked(
        models,
        tmp_path,
        "classify",
        family,
        out="whole",
        **{"epochs": 1.5, "checkpoint_every": 4, **changes},
    )
    expected = whole.start()
    stopped = asked(
        models,
        tmp_path,
        "classify",
        family,
        out="stopped",
        **{"epochs": 1.5, "checkpoint_every": 4, **changes},
    )
    for steps in (3, 2):
        stop_after(steps)
        assert not stopped.start().outcome.finished
        stopped = stopped.but(resume=True)
    stop_after(-1)
    made = stopped.start()
    assert made.outcome.finished
    assert made.outcome.steps == expected.outcome.steps
    assert made.measured == expected.measured
    assert_same_tuning(stopped.run.out, whole.run.out)
    if case == "early stopping":
        assert made.outcome.steps < 12


def test_early_stopping_ends_the_run_and_keeps_the_best(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accuracies = iter([0.5, 0.7, 0.6, 0.65, *[0.6] * 9])
    monkeypatch.setattr(
        labelled_task, "measures",
        lambda head, counted: {"accuracy": next(accuracies), "macro_f1": 0.0, "matthews": 0.0},
    )
    plan = asked(models, tmp_path, "classify", validate_every=3, stop_after=2, epochs=10)
    made = plan.start()
    assert (made.outcome.steps, made.outcome.finished) == (12, True)
    assert Checkpoints(plan.run.out / "checkpoints").best().step == 6
    assert [row["accuracy"] for row in read_metrics(plan.run.out) if "accuracy" in row] == [
        0.5,
        0.7,
        0.6,
        0.65,
    ]
    kept = Checkpoints(plan.run.out / "checkpoints").best().tensors("model/")
    assert same_bits(model_of(plan.run.out), kept)
    again = plan.but(resume=True).start()
    assert again.outcome.steps == 12, "it has ended"
    assert plan.but(resume=True, stop_after=3).start().outcome.steps > 12, "and goes on when it may"


@pytest.mark.parametrize("metric", ["loss", "accuracy"])
def test_the_metric_says_which_weights_are_the_best_and_then_the_loss(
    metric: str, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        labelled_task, "measures", lambda head, counted: {"accuracy": 1.0}
    )
    plan = asked(
        models,
        tmp_path,
        "classify",
        metric=metric,
        validate_every=4,
        optimizer={"learning_rate": 0.05},
    )
    made = plan.start()
    losses = [row["validation_loss"] for row in read_metrics(plan.run.out) if "accuracy" in row]
    assert len(losses) == 6
    assert made.measured["loss"] == pytest.approx(min(losses), rel=1e-5)
    assert made.outcome.validation_loss == min(losses)


@pytest.mark.parametrize("family", ["gpt", "bert"])
def test_recomputed_it_is_the_same_run(family: str, models: Path, tmp_path: Path) -> None:
    plain, again = (
        asked(
            models,
            tmp_path,
            "classify",
            family,
            out=f"recompute {how}",
            recompute=how,
            epochs=0.5,
            dropout=0.1,
        )
        for how in (False, True)
    )
    assert plain.start().measured == again.start().measured
    assert same_bits(model_of(plain.run.out), model_of(again.run.out))
