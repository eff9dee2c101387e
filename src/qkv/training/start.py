"""From what a person asked to a trained model: the folder, the data, the plan, the run, the report."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from rich.console import Console
from rich.table import Table

from qkv.models.bert import BERTConfig
from qkv.models.build import Config, Model
from qkv.models.foreign.folder import TOKENIZER
from qkv.text import Tokenizer
from qkv.training.config import DataConfig, OptimizerConfig, RunConfig
from qkv.training.cost import Cost, cost, measured_peak
from qkv.training.distributed import World, joined
from qkv.training.folder import check_same, claim, describe, locked, read_description, write_description
from qkv.training.loop import Outcome, train
from qkv.training.metrics import Metrics
from qkv.training.precision import best_precision
from qkv.training.run import begin
from qkv.training.task import Task, assemble

SampleMaker = Callable[[Tokenizer], Callable[[Model], list[str]]]


def start(
    config: Config,
    data: DataConfig,
    optimizer: OptimizerConfig,
    run: RunConfig,
    *,
    samples: SampleMaker | None = None,
    console: Console | None = None,
) -> Outcome | None:
    """Train, or go on training; None after a dry run. Under torchrun every process calls this."""
    if isinstance(config, BERTConfig):
        config = replace(config, pooler=False, next_sentence=False)  # guessing words teaches them nothing
    with joined(run.device) as world, ExitStack() as held:
        console = console or Console(highlight=False, quiet=not world.first)
        if world.size > 1 and "-" in data.data:
            raise ValueError("data: under torchrun only one process could read standard input; give a file")
        if run.dry_run:
            task = assemble(config, data, batch_tokens=run.batch_tokens, seed=run.seed)
            console.print(plan(task, optimizer, run, world))
            return None
        with world.in_turn():  # the first process claims the folder, learns the tokenizer and prepares the data
            if world.first:
                going_on = claim(run.out, run.resume)
                held.enter_context(locked(run.out))
            task = prepare(config, data, optimizer, run, going_on if world.first else True, console)
        console.print(plan(task, optimizer, run, world))
        metrics = Metrics(run.out, sinks=run.sinks, config=read_description(run.out), active=world.first)
        beginning = begin(task, optimizer, run, world, metrics=metrics)
        outcome = train(beginning, None if samples is None or sharded(run, world) else samples(task.tokenizer))
        if outcome.finished:
            console.print(report(task, run, outcome))
        return outcome


def prepare(
    config: Config, data: DataConfig, optimizer: OptimizerConfig, run: RunConfig, going_on: bool, console: Console
) -> Task:
    """The task; in a new run its tokenizer and description are left in the folder, in an old one they must fit."""
    learned = run.out if going_on and (run.out / TOKENIZER).exists() else None
    task = assemble(config, data, batch_tokens=run.batch_tokens, seed=run.seed, tokenizer=learned)
    for note in task.notes:
        console.print(note)
    description = describe(task.config, data, optimizer, run, task.fingerprint)
    if going_on:
        for change in check_same(run.out, description):
            console.print(f"Changed: {change}.")
    else:
        task.tokenizer.write(run.out)
        write_description(run.out, description)
    return task


def sharded(run: RunConfig, world: World) -> bool:
    return world.size > 1 and run.distributed == "fsdp"


def plan(task: Task, optimizer: OptimizerConfig, run: RunConfig, world: World) -> Table:
    """What is about to happen, in numbers."""
    precision = run.precision or best_precision(world.device)
    micro = min(run.micro_batch_tokens or run.batch_tokens, run.batch_tokens) // world.size
    price = cost(task.config, micro, precision, recompute=run.recompute, average=optimizer.average == "exponential")
    tokens = run.steps * task.training.tokens_per_step
    flops = price.flops_per_token * tokens
    seconds = flops / (0.4 * measured_peak(world.device, precision) * world.size)
    table = Table(show_header=False, title="The plan")
    rows = {
        "parameters": f"{price.parameters:,}",
        "steps": f"{run.steps:,} of {task.training.tokens_per_step:,} tokens",
        "tokens": f"{tokens:,}, {run.steps / task.training.steps_per_epoch:,.1f} times through the data",
        "memory, about": memory(price, precision),
        "cost": f"{flops:.2e} floating-point operations",
        "time, about": f"{clock(seconds)} on {world.size} x {world.device.type}, if 40% of its speed can be used",
        "precision": precision,
        "folder": str(run.out),
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def memory(price: Cost, precision: str) -> str:
    weights, activations = price.weights / 2**30, price.activations / 2**30
    return f"{weights + activations:.2f} GiB: {weights:.2f} weights and optimizer, {activations:.2f} activations"


def report(task: Task, run: RunConfig, outcome: Outcome) -> Table:
    """The row of a results table: what came out, and what it cost."""
    loss = outcome.validation_loss or math.nan
    table = Table(
        "steps", "tokens", "validation loss", "perplexity", "time", "training cost (FLOPs)", title=str(run.out)
    )
    perplexity = f"{math.exp(loss):,.2f}" if loss < 20 else "-"
    cells = [f"{outcome.steps:,}", f"{outcome.tokens:,}", f"{loss:.4f}", perplexity, clock(outcome.seconds)]
    table.add_row(*cells, f"{outcome.flops:.2e}")
    return table


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
