"""From what a person asked to a trained model: the folder, the data, the plan, the run, the report."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from qkv.checkpoint import RUN
from qkv.models.bert import BERTConfig
from qkv.models.convert.hf_folder import TOKENIZER
from qkv.models.registry import Config, Model
from qkv.models.rnn import RNNConfig
from qkv.tables import Table
from qkv.training.finetune.finetune_config import FinetuneConfig
from qkv.training.logging.metrics import Metrics
from qkv.training.logging.progress import Progress, clock
from qkv.training.loop import TrainingResult, training_loop
from qkv.training.resilience.resume_checks import check_order, check_steps, rate_change
from qkv.training.run import begin, cost_of
from qkv.training.run_config import DataConfig, OptimizerConfig, RunConfig
from qkv.training.schedule import highest_rate, learning_rate, warmup_steps
from qkv.training.setup.cost import Cost, measured_peak
from qkv.training.setup.run_folder import (
    check_choices,
    check_same,
    claim,
    describe,
    described,
    locked,
    read_description,
    write_description,
)
from qkv.training.setup.training_task import TrainingTask, assemble
from qkv.training.systems.distributed import World, joined, sharded
from qkv.training.systems.precision import best_precision, check_precision

SampleMaker = Callable[[TrainingTask], Callable[[Model], list[str]]]
Fit = Callable[[TrainingTask, OptimizerConfig, RunConfig], RunConfig]
"""Changes a new run once its task is known, before anything is written: the demo keeps to its time
this way.
"""


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
    """Train, or go on training; None after a dry run. Under torchrun every process calls this."""
    if isinstance(config, BERTConfig):
        config = replace(
            config, pooler=False, next_sentence=False
        )  # guessing words teaches them nothing

    check_possible(config, optimizer, run)

    def assembled(learned: Path | None) -> TrainingTask:
        return assemble(
            config, data, batch_tokens=run.batch_tokens, seed=run.seed, tokenizer=learned
        )

    return run_training(assembled, data, optimizer, run, samples=samples, console=console, fit=fit)


def run_training(
    assembled: Callable[[Path | None], TrainingTask],
    data: DataConfig | FinetuneConfig,
    optimizer: OptimizerConfig,
    run: RunConfig,
    *,
    asked: dict[str, Any] | None = None,
    samples: SampleMaker | None = None,
    console: Console | None = None,
    fit: Fit | None = None,
) -> TrainingResult | None:
    """The same for training and fine-tuning, which differ in how the task is assembled. The
    tokenizer that a run learned before it was resumed is handed on. `asked` is what else a person
    asked of the run, to be remembered."""
    if run.deterministic:
        os.environ.setdefault(
            "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
        )  # read once, at the first matrix product on a GPU

    with joined(run.device) as world, ExitStack() as held:
        shown, console = console, console or Console(highlight=False, quiet=not world.first)
        with (
            world.in_turn()
        ):  # the first process claims the folder, learns the tokenizer and prepares the data
            slow = check_precision(run.precision or best_precision(world.device), world.device)
            if slow is not None:
                console.print(slow)

            if world.size > 1 and "-" in data.data:
                raise ValueError(
                    "data: under torchrun only one process could read standard input; give a file"
                )

            going_on = False
            if not run.dry_run:
                going_on = held.enter_context(claimed(run)) if world.first else found(run)

            if going_on and (run.out / RUN).exists():
                check_choices(
                    run.out, described(data)
                )  # before data of another kind is read in vain

            task = assembled(run.out if going_on and (run.out / TOKENIZER).exists() else None)
            run = replace(run, steps=task.steps or run.steps)
            if fit is not None and not going_on:
                run = fit(task, settled(optimizer, task, run, going_on), run)

            optimizer = settled(optimizer, task, run, going_on)
            check_possible(task.config, optimizer, run)
            for note in (*task.notes, *warmup_note(optimizer, task, run)):
                console.print(note)

            written = RunDescription({}, False)
            if not run.dry_run:
                written = describe_run(task, data, optimizer, run, going_on, console, asked or {})

        console.print(plan(task, optimizer, run, world))
        if run.dry_run:
            return None

        metrics = Metrics(run.out, sinks=run.sinks, config=written.description, active=world.first)
        shards = sharded(world, run.distributed)  # no process has a whole model to sample from
        progress = Progress(
            run.steps, every=run.log_every, console=shown, active=world.first, metric=task.metric
        )
        beginning = begin(task, optimizer, run, world, metrics=metrics, progress=progress)
        if written.changed and world.first:  # only now is it certain that the run goes on
            write_description(run.out, written.description)

        outcome = training_loop(beginning, None if samples is None or shards else samples(task))
        if outcome.finished:
            console.print(report(run, outcome, perplexity=task.metric == "loss"))

        return outcome


@contextmanager
def claimed(run: RunConfig) -> Iterator[bool]:
    """The run's folder is this process's alone; whether there is a run in it to go on with."""
    claim(run.out, run.resume)
    with locked(run.out):
        yield claim(run.out, run.resume)  # again: another process may have been here until now


def found(run: RunConfig) -> bool:
    """For the processes after the first, there always is one."""
    if not (run.out / RUN).exists():
        raise ValueError(
            f"out: {run.out}, made by the first process, is not here; use a disk that all machines share"
        )

    return True


class RunDescription(NamedTuple):
    """What run.json says, or will say when the run goes on."""

    description: dict[str, Any]
    changed: bool
    """Whether it says something else in the folder until then."""


def describe_run(
    task: TrainingTask,
    data: DataConfig | FinetuneConfig,
    optimizer: OptimizerConfig,
    run: RunConfig,
    going_on: bool,
    console: Console,
    asked: dict[str, Any],
) -> RunDescription:
    """In a new run its tokenizer and description are left in the folder, in an old one they must
    fit.
    """
    order = task.training.order_version
    description = describe(task.config, data, optimizer, run, task.fingerprint, order)
    description["run"] |= asked
    if not going_on:
        write_description(
            run.out, description
        )  # first, as what is here is then known to be a run's
        task.tokenizer.write(run.out)
        return RunDescription(description, False)

    changes = check_same(run.out, description)
    before, reached = (
        read_description(run.out),
        check_steps(run.out, run.steps, counted_in_epochs=bool(task.steps)),
    )
    if reached < run.steps:
        check_order(run.out, before["order"], order)

    for change in changes:
        console.print(f"Changed: {change}.")

    if jump := rate_change(before, optimizer, run.steps, task.config.width, reached):
        console.print(jump)

    return RunDescription(description, bool(changes))


def settled(
    optimizer: OptimizerConfig, task: TrainingTask, run: RunConfig, going_on: bool
) -> OptimizerConfig:
    """With the numbers that a person left to us, so that the run's description has them; a run that
    goes on has the warm-up that it began with."""
    warmup = warmup_steps(optimizer, run.steps, task.warmup)
    if optimizer.warmup is None and going_on:
        warmup = read_description(run.out)["optimizer"]["warmup"]

    return replace(optimizer, learning_rate=optimizer.learning_rate or task.rate, warmup=warmup)


def warmup_note(optimizer: OptimizerConfig, task: TrainingTask, run: RunConfig) -> tuple[str, ...]:
    """A warm-up that is longer than the run is probably a mistake."""
    warmup = warmup_steps(optimizer, run.steps)
    if warmup <= run.steps:
        return ()

    highest = highest_rate(optimizer, task.config.width, run.steps)
    last = learning_rate(optimizer, run.steps - 1, run.steps, highest)

    return (
        f"warmup: {warmup} steps of warm-up are more than the {run.steps} steps of the run, so the learning rate only "
        f"rises, to {last:.2e}, and never reaches {highest:.2e}; give a smaller --warmup, or leave it out",
    )


def check_possible(config: Config, optimizer: OptimizerConfig, run: RunConfig) -> None:
    """What this model cannot do is refused before there is anything in the folder."""
    if run.recompute and isinstance(config, RNNConfig):
        raise ValueError("recompute: an RNN has no blocks to recompute; leave it out")
    if optimizer.optimizer == "muon" and isinstance(config, RNNConfig):
        raise ValueError(
            "optimizer: muon is for the matrices of blocks, and an RNN has none; use adamw"
        )


def plan(task: TrainingTask, optimizer: OptimizerConfig, run: RunConfig, world: World) -> Table:
    """What is about to happen, in numbers."""
    precision = run.precision or best_precision(world.device)
    own = -(
        -(run.batch_tokens if task.steps is None else task.training.tokens_per_step) // world.size
    )
    micro = min(run.micro_batch_tokens or own, own)
    average = optimizer.average == "exponential"
    price = cost_of(task, micro, precision, recompute=run.recompute, average=average)
    shards = world.size if sharded(world, run.distributed) else 1
    highest = highest_rate(optimizer, task.config.width, run.steps)
    tokens = run.steps * task.training.tokens_per_step
    flops = price.flops_per_token * tokens
    seconds = flops / (0.4 * measured_peak(world.device, precision) * world.size)
    table = Table(show_header=False, title="The plan")
    rows = {
        "parameters": f"{price.parameters:,}" + trained_share(task),
        "steps": f"{run.steps:,} of {task.training.tokens_per_step:,} tokens",
        "tokens": f"{tokens:,}, {run.steps / task.training.steps_per_epoch:,.1f} times through the data",
        "learning rate": f"{highest:.2e} after {warmup_steps(optimizer, run.steps)} steps, then {optimizer.schedule}",
        "memory, about": memory(price, shards),
        "cost": f"{flops:.2e} floating-point operations",
        "time, about": f"{clock(seconds)} on {world.size} x {world.device.type}, if 40% of its speed can be used",
        "precision": precision,
        "folder": str(run.out),
    }

    for name, value in rows.items():
        table.add_row(name, value)

    return table


def trained_share(task: TrainingTask) -> str:
    all_learn = task.learning is None or task.trained == 1
    return "" if all_learn else f", of which {task.learning:,} learn ({task.trained:.2%})"


def memory(price: Cost, shards: int) -> str:
    """Of one process."""
    weights, activations = price.weights / 2**30 / shards, price.activations / 2**30
    return f"{weights + activations:.2f} GiB: {weights:.2f} weights and optimizer, {activations:.2f} activations"


def report(run: RunConfig, outcome: TrainingResult, *, perplexity: bool = True) -> Table:
    """The row of a results table: what came out, and what it cost; of words, also their perplexity."""
    loss = math.nan if outcome.validation_loss is None else outcome.validation_loss
    cells = {
        "steps": f"{outcome.steps:,}",
        "tokens": f"{outcome.tokens:,}",
        "validation loss": f"{loss:.4f}",
    }
    if perplexity:
        cells["perplexity"] = f"{math.exp(loss):,.2f}" if loss < 20 else "-"

    cells |= {"time": clock(outcome.seconds), "training cost (FLOPs)": f"{outcome.flops:.2e}"}
    table = Table(*cells, title=str(run.out))
    table.add_row(*cells.values())

    return table
