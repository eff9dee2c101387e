"""Fine-tuning: one pre-trained model, a task, its data; the same loop as training, and what came
out, measured.
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from rich.console import Console

from qkv import artifact, storage
from qkv.models.task_model import TaskModel
from qkv.training.finetune.finetune_config import DEFAULTS as DEFAULTS
from qkv.training.finetune.finetune_config import HEADS, FinetuneConfig, FinetuneRunConfig
from qkv.training.finetune.labelled_task import labelled_task
from qkv.training.finetune.language_task import chat_task, translation_task
from qkv.training.finetune.task_metrics import confusion, measures
from qkv.training.finetune.task_objective import TaskObjective
from qkv.training.loop import TrainingResult
from qkv.training.run_config import OptimizerConfig, RunConfig, RunOptions
from qkv.training.setup.training_task import TrainingTask
from qkv.training.step import validate
from qkv.training.systems.distributed import World, device_named, first_process
from qkv.training.train import SampleMaker, run_training

SCORES = "scores.json"


class FinetuneResult(NamedTuple):
    """What came out."""

    outcome: TrainingResult
    measured: dict[str, float]
    """Of the weights that were kept, on validation: loss, accuracy ..."""
    labels: tuple[str, ...] = ()
    confusion: Float[np.ndarray, "C C"] | None = None
    """How often each class (row) was called what (column)."""


def finetune(
    tune: FinetuneConfig,
    optimizer: OptimizerConfig,
    run: FinetuneRunConfig,
    *,
    remember: dict[str, Any] | None = None,
    samples: SampleMaker | None = None,
    console: Console | None = None,
) -> FinetuneResult | None:
    """Fine-tune, or go on with it; None after a dry run. The folder then holds one model that does
    the task. What is to `remember` is kept in run.json."""
    kept: list[TrainingTask] = []

    def assembled(learned: Path | None) -> TrainingTask:
        kept[:] = [assemble(tune, run)]
        return kept[0]

    asked = {"epochs": run.epochs, "batch": run.batch, **(remember or {})}
    outcome = run_training(
        assembled, tune, optimizer, as_run(run), asked=asked, samples=samples, console=console
    )
    if outcome is None:
        return None
    if (
        not first_process()
        or not outcome.finished
        or tune.task not in HEADS
        or outcome.validation_loss is None
    ):
        return FinetuneResult(
            outcome, {} if outcome.validation_loss is None else {"loss": outcome.validation_loss}
        )

    return measured(outcome, kept[0], run)


def assemble(tune: FinetuneConfig, run: FinetuneRunConfig) -> TrainingTask:
    if tune.task == "chat":
        return chat_task(tune, run)

    return translation_task(tune, run) if tune.task == "translate" else labelled_task(tune, run)


def as_run(run: FinetuneRunConfig) -> RunConfig:
    """As the loop has it; how many steps it takes, the task says."""
    own = {field.name: getattr(run, field.name) for field in fields(RunOptions)}
    return RunConfig(**{**own, "compile": bool(run.compile)}, steps=1, batch_tokens=run.batch)


def measured(outcome: TrainingResult, task: TrainingTask, run: FinetuneRunConfig) -> FinetuneResult:
    """Of the model as it lies in its folder, so that what is told is what can be used."""
    model = artifact.load(run.out).model
    assert isinstance(model, TaskModel)
    device = device_named(run.device)
    objective = TaskObjective(model.to(device)).eval()
    loss, counted = validate(objective, task.validation, World(device))
    head = model.config.head
    found = {"loss": loss, **measures(head, counted)}
    counts = confusion(head, counted) if head.labels else None
    told = {"metric": task.metric, "measured": found, "labels": head.labels, "steps": outcome.steps}
    told |= {"confusion": None if counts is None else counts.astype(int).tolist()}
    storage.write_text(run.out / SCORES, json.dumps(told, indent=1, ensure_ascii=False))

    return FinetuneResult(outcome, found, head.labels, counts)
