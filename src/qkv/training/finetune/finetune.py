"""Fine-tuning a pre-trained model for a task: trained by the same loop, then measured."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from rich.console import Console

from qkv import artifact, storage
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
    """How fine-tuning ended."""

    outcome: TrainingResult
    measured: dict[str, float]
    """Metrics of the saved weights on validation: loss, accuracy ..."""
    labels: tuple[str, ...] = ()
    confusion: Float[np.ndarray, "C C"] | None = None
    """The confusion matrix: rows are true classes, columns predicted ones."""


def finetune(
    tune: FinetuneConfig,
    optimizer: OptimizerConfig,
    run: FinetuneRunConfig,
    *,
    remember: dict[str, Any] | None = None,
    samples: SampleMaker | None = None,
    console: Console | None = None,
) -> FinetuneResult | None:
    """Fine-tune a pre-trained model into a folder, or resume the run there.

    Args:
        tune: The model, the task and its data.
        optimizer: Optimizer and schedule; `DEFAULTS` in this module suits most tasks.
        run: Folder, epochs, batch size, device and other options.
        remember: More values to store in run.json.
        samples: Given the task, returns a function from the model to texts that are shown.
        console: Where to print (default: standard output).

    Returns:
        The metrics of the model in the folder, or None after a dry run.

    Raises:
        ValueError: The model, the data, the folder or an option cannot be used.

    Example:
        >>> import io, tempfile
        >>> from qkv import save
        >>> from qkv.models import GPT, GPTConfig
        >>> from qkv.text import train
        >>> folder = Path(tempfile.mkdtemp())
        >>> tokenizer = train("words", ["good bad day"], 32)
        >>> gpt = GPT(GPTConfig(vocabulary=tokenizer.vocabulary, width=16, depth=1, heads=2))
        >>> save(gpt, folder / "gpt", tokenizer=tokenizer)
        >>> data = folder / "rows.tsv"
        >>> _ = data.write_text("sentence\\tlabel\\n" + "good day\\tyes\\nbad day\\tno\\n" * 8)
        >>> tune = FinetuneConfig(model=str(folder / "gpt"), task="classify", data=(str(data),))
        >>> run = FinetuneRunConfig(out=folder / "run", epochs=1, batch=8, device="cpu")
        >>> result = finetune(tune, DEFAULTS, run, console=Console(file=io.StringIO()))
        >>> result.outcome.finished, result.labels
        (True, ('no', 'yes'))
    """
    tasks: list[TrainingTask] = []

    def build_task(folder: Path | None) -> TrainingTask:
        tasks[:] = [assemble(tune, run)]
        return tasks[0]

    outcome = run_training(
        build_task, tune, optimizer, to_run_config(run),
        extra_flags={"epochs": run.epochs, "batch": run.batch, **(remember or {})},
        samples=samples, console=console,
    )  # fmt: skip
    if outcome is None:
        return None

    return with_metrics(outcome, tasks[0], tune, run)


def assemble(tune: FinetuneConfig, run: FinetuneRunConfig) -> TrainingTask:
    """The training task of a fine-tuning."""
    tasks = {"chat": chat_task, "translate": translation_task}
    return tasks.get(tune.task, labelled_task)(tune, run)


def to_run_config(run: FinetuneRunConfig) -> RunConfig:
    """The options as the loop expects them; the task sets the number of steps."""
    options = {field.name: getattr(run, field.name) for field in fields(RunOptions)}
    options["compile"] = bool(run.compile)
    return RunConfig(**options, steps=1, batch_tokens=run.batch)


def with_metrics(
    outcome: TrainingResult, task: TrainingTask, tune: FinetuneConfig, run: FinetuneRunConfig
) -> FinetuneResult:
    """The result with its metrics: all of them, and scores.json, if a head was trained."""
    if outcome.validation_loss is None:
        return FinetuneResult(outcome, {})
    if not outcome.finished or tune.task not in HEADS or not first_process():
        return FinetuneResult(outcome, {"loss": outcome.validation_loss})

    # Validate the model as it is saved in the folder
    model: Any = artifact.load(run.out).model
    device = device_named(run.device)
    objective = TaskObjective(model.to(device)).eval()
    loss, counted = validate(objective, task.validation, World(device))

    head = model.task
    metrics = {"loss": loss, **measures(head, counted)}
    matrix = confusion(head, counted) if head.labels else None
    scores = {
        "metric": task.metric,
        "measured": metrics,
        "labels": head.labels,
        "steps": outcome.steps,
        "confusion": None if matrix is None else matrix.astype(int).tolist(),
    }
    storage.write_text(run.out / SCORES, json.dumps(scores, indent=1, ensure_ascii=False))

    return FinetuneResult(outcome, metrics, head.labels, matrix)
