"""Training from configuration to model: folder, data, plan, run, report."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from qkv.checkpoint import RUN
from qkv.models.convert.hf_folder import TOKENIZER
from qkv.models.model import Model
from qkv.models.registry import Config
from qkv.nn.fused import fp8
from qkv.plugins import find_plugin
from qkv.training import fp8_loss
from qkv.training.finetune.finetune_config import FinetuneConfig
from qkv.training.loop import TrainingResult, training_loop
from qkv.training.objective import Objective
from qkv.training.resilience.resume_checks import check_order, check_steps, rate_change
from qkv.training.run import Run
from qkv.training.run_config import OBJECTIVES, OPTIMIZERS, DataConfig, OptimizerConfig, RunConfig
from qkv.training.schedule import warmup_steps
from qkv.training.setup.run_folder import (
    check_same_data,
    check_same_run,
    claim,
    describe,
    describe_data,
    locked,
    read_description,
    write_description,
)
from qkv.training.setup.training_plan import plan_table, report_table, warmup_notes
from qkv.training.setup.training_task import TrainingTask, assemble, meta_model
from qkv.training.systems.distributed import World, join_process_group, uses_fsdp
from qkv.training.systems.precision import best_precision, check_precision

SampleMaker = Callable[[TrainingTask], Callable[[Model], list[str]]]
"""Given the task, returns a function that generates texts to show, given the model."""
Fit = Callable[[TrainingTask, OptimizerConfig, RunConfig], RunConfig]
"""Changes a new run once its task is known, before anything is written; the demo fits its steps to
a time this way."""
TaskBuilder = Callable[[Path | None], TrainingTask]
"""Builds the task; given the folder of a run that is resumed, with the tokenizer in it."""


def train(
    config: Config,
    data: DataConfig,
    optimizer: OptimizerConfig,
    run: RunConfig,
    *,
    samples: SampleMaker | None = None,
    console: Console | None = None,
    fit: Fit | None = None,
) -> TrainingResult | None:
    """Train a model into a folder, or resume the run there.

    Under torchrun every process calls this.

    Args:
        config: The model's configuration; its vocabulary is set to the tokenizer's.
        data: What to train and validate on.
        optimizer: Optimizer and learning rate schedule.
        run: Folder, steps, batch size, device and other options.
        samples: Given the task, returns a function from the model to texts that are shown.
        console: Where to print (default: standard output).
        fit: Changes the options of a new run once its task is known.

    Returns:
        How training ended, or None after a dry run.

    Raises:
        ValueError: The data, the folder or an option cannot be used.

    Example:
        >>> import io, tempfile
        >>> from qkv.models import GPTConfig
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "text.txt").write_text("cats chase mice\\n" * 40)
        >>> result = train(
        ...     GPTConfig(vocabulary=64, context=8, width=16, depth=1, heads=2),
        ...     DataConfig(data=(str(folder / "text.txt"),), tokenizer="words"),
        ...     OptimizerConfig(),
        ...     RunConfig(out=folder / "run", steps=2, batch_tokens=32, device="cpu"),
        ...     console=Console(file=io.StringIO()),
        ... )
        >>> result.finished, (folder / "run" / "model.safetensors").exists()
        (True, True)
    """
    check_supported(config, optimizer, run)

    def build_task(folder: Path | None) -> TrainingTask:
        return assemble(
            config, data, batch_tokens=run.batch_tokens, seed=run.seed, tokenizer=folder
        )

    return run_training(build_task, data, optimizer, run, samples=samples, console=console, fit=fit)


def run_training(
    build_task: TaskBuilder,
    data: DataConfig | FinetuneConfig,
    optimizer: OptimizerConfig,
    run: RunConfig,
    *,
    extra_flags: dict[str, Any] | None = None,
    samples: SampleMaker | None = None,
    console: Console | None = None,
    fit: Fit | None = None,
) -> TrainingResult | None:
    """Train or fine-tune, which differ in how the task is built; None after a dry run.

    `extra_flags` are stored in run.json besides the options of the run.
    """
    if run.deterministic:  # read once, at the first matrix product on a GPU
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

    with join_process_group(run.device) as world, ExitStack() as stack:
        printer = console or Console(highlight=False, quiet=not world.first)

        # Prepare: the first process claims the folder, learns the tokenizer and tokenizes the data
        with world.first_rank_first():
            check_machine(data, run, world, printer)
            resuming = stack.enter_context(claimed_folder(run, world))
            if resuming:
                check_same_data(run.out, describe_data(data))

            task, optimizer, run = prepare(build_task, optimizer, run, resuming, fit)
            for note in (*task.notes, *warmup_notes(optimizer, task, run)):
                printer.print(note)

            description = describe(task, data, optimizer, run, extra_flags)
            changes: list[str] = []
            if resuming:
                changes = check_resumed(task, optimizer, run, description, printer)
            elif not run.dry_run:
                write_description(run.out, description)  # first: it marks the folder as a run's
                task.tokenizer.write(run.out)

        # Plan
        printer.print(plan_table(task, optimizer, run, world))
        if run.dry_run:
            return None

        # Train
        training = Run.create(task, optimizer, run, world, description=description, console=console)
        if changes and world.first:  # only now is it certain that the run resumes
            write_description(run.out, description)

        if training.sharded:
            samples = None  # no process has a whole model to sample from

        result = training_loop(training, samples and samples(task))

        # Report
        if result.finished:
            printer.print(report_table(run.out, result, perplexity=task.metric == "loss"))

        return result


def check_machine(
    data: DataConfig | FinetuneConfig, run: RunConfig, world: World, console: Console
) -> None:
    """Check that this machine can compute in the precision, and that all processes can read."""
    precision = run.precision or best_precision(world.device)
    warning = check_precision(precision, world.device)
    if warning is not None:
        console.print(warning)

    if run.fp8:
        fp8.check_supported(world.device)
        if precision == "float32":
            raise ValueError("fp8: expected bf16 or fp16 for all other layers, not float32")
        if uses_fsdp(world, run.distributed):
            raise ValueError("fp8: expected one GPU or --distributed ddp, not fsdp")

    if world.size > 1 and "-" in data.data:
        raise ValueError(
            "data: under torchrun only one process could read standard input; give a file"
        )
    if world.size > 1 and getattr(data, "carry_memory", False):
        raise ValueError("carry_memory: it is stored by one process; expected no torchrun")


@contextmanager
def claimed_folder(run: RunConfig, world: World) -> Iterator[bool]:
    """Lock the run's folder on the first rank; yield whether it has a run to resume."""
    if run.dry_run:
        yield False
    elif not world.first:
        # The first rank has created it.
        if not (run.out / RUN).exists():
            raise ValueError(
                f"out: {run.out}, made by the first process, is not here; "
                "use a disk that all machines share"
            )

        yield True
    else:
        claim(run.out, run.resume)
        with locked(run.out):
            yield claim(run.out, run.resume)  # again: another process may have just finished


def prepare(
    build_task: TaskBuilder,
    optimizer: OptimizerConfig,
    run: RunConfig,
    resuming: bool,
    fit: Fit | None,
) -> tuple[TrainingTask, OptimizerConfig, RunConfig]:
    """Build the task; return it with the configuration whose defaults depend on it filled in."""
    folder = None
    if resuming and (run.out / TOKENIZER).exists():
        folder = run.out

    task = with_objective(build_task(folder), optimizer)
    run = replace(run, steps=task.steps or run.steps)
    if fit is not None and not resuming:
        run = fit(task, with_defaults(optimizer, task, run, resuming), run)

    optimizer = with_defaults(optimizer, task, run, resuming)
    check_supported(task.config, optimizer, run)

    return task, optimizer, run


def with_objective(task: TrainingTask, optimizer: OptimizerConfig) -> TrainingTask:
    """The task with the objective that was added from outside, if one was chosen."""
    if optimizer.objective is None:
        return task
    if task.objective is not Objective:
        raise ValueError("objective: a task with a head has its own; leave it out")

    return replace(task, objective=find_plugin(optimizer.objective, OBJECTIVES, "objective"))


def with_defaults(
    optimizer: OptimizerConfig, task: TrainingTask, run: RunConfig, resuming: bool
) -> OptimizerConfig:
    """Fill in learning rate and warm-up, so that run.json has them; a resumed run keeps its own."""
    warmup = warmup_steps(optimizer, run.steps, task.warmup)
    if optimizer.warmup is None and resuming:
        warmup = read_description(run.out)["optimizer"]["warmup"]

    rate = optimizer.learning_rate or task.learning_rate
    return replace(optimizer, learning_rate=rate, warmup=warmup)


def check_supported(config: Config, optimizer: OptimizerConfig, run: RunConfig) -> None:
    """Raise for options that the model does not support, before anything is written."""
    find_plugin(optimizer.optimizer, OPTIMIZERS, "optimizer")
    model = meta_model(config)
    if run.fp8:
        fp8_loss.check_model(model)
    if model.stacks:
        return
    if run.recompute:
        raise ValueError("recompute: an RNN has no blocks to recompute; leave it out")
    if optimizer.optimizer == "muon":
        raise ValueError(
            "optimizer: muon is for the matrices of blocks, and an RNN has none; use adamw"
        )


def check_resumed(
    task: TrainingTask,
    optimizer: OptimizerConfig,
    run: RunConfig,
    description: dict[str, Any],
    console: Console,
) -> list[str]:
    """Check that this resumes the run in the folder; print and return what changes in run.json."""
    changes = check_same_run(run.out, description)
    before = read_description(run.out)
    reached = check_steps(run.out, run.steps, counted_in_epochs=bool(task.steps))
    if reached < run.steps:
        check_order(run.out, before["order"], description["order"])

    for change in changes:
        console.print(f"Changed: {change}.")

    jump = rate_change(before, optimizer, run.steps, task.config.width, reached)
    if jump is not None:
        console.print(jump)

    return changes
