"""The plan printed before training (parameters, memory, time), and the report printed after it."""

from __future__ import annotations

import math
from pathlib import Path

from qkv.tables import Table
from qkv.training.logging.progress import clock
from qkv.training.loop import TrainingResult
from qkv.training.run_config import OptimizerConfig, RunConfig
from qkv.training.schedule import highest_rate, learning_rate, warmup_steps
from qkv.training.setup.cost import Cost, cost, estimated_seconds
from qkv.training.setup.training_task import TrainingTask
from qkv.training.systems.distributed import World, uses_fsdp
from qkv.training.systems.precision import best_precision


def plan_table(
    task: TrainingTask, optimizer: OptimizerConfig, run: RunConfig, world: World
) -> Table:
    """Size, memory, cost and estimated time of a run, before it starts."""
    precision = run.precision or best_precision(world.device)

    # Cost and memory of one micro-batch on one rank
    batch_tokens = run.batch_tokens
    if task.steps is not None:
        batch_tokens = task.training.tokens_per_step

    rank_tokens = -(-batch_tokens // world.size)
    micro_tokens = min(run.micro_batch_tokens or rank_tokens, rank_tokens)
    costs = cost(
        task.config,
        micro_tokens,
        precision,
        task.workload,
        recompute=run.recompute,
        average=optimizer.average == "exponential",
    )
    shards = world.size if uses_fsdp(world, run.distributed) else 1

    # Cost and time of the whole run
    tokens = run.steps * task.training.tokens_per_step
    epochs = run.steps / task.training.steps_per_epoch
    flops = costs.flops_per_token * tokens
    seconds = estimated_seconds(flops, world.device, precision, world.size)
    highest = highest_rate(optimizer, task.config.width, run.steps)
    warmup = warmup_steps(optimizer, run.steps)

    rows = {
        "parameters": parameters_text(costs, task),
        "steps": f"{run.steps:,} of {task.training.tokens_per_step:,} tokens",
        "tokens": f"{tokens:,}, {epochs:,.1f} times through the data",
        "learning rate": f"{highest:.2e} after {warmup} steps, then {optimizer.schedule}",
        "estimated memory": memory_text(costs, shards),
        "cost": f"{flops:.2e} floating-point operations",
        "estimated time": f"{clock(seconds)} on {device_text(world)} (at 40% utilisation)",
        "precision": precision,
        "folder": str(run.out),
    }
    table = Table(show_header=False, title="The plan")
    for name, value in rows.items():
        table.add_row(name, value)

    return table


def parameters_text(costs: Cost, task: TrainingTask) -> str:
    text = f"{costs.parameters:,}"
    if task.trainable is None or task.workload.trained_fraction == 1:
        return text

    return f"{text}, of which {task.trainable:,} learn ({task.workload.trained_fraction:.2%})"


def memory_text(costs: Cost, shards: int) -> str:
    """Memory of one process."""
    weights = costs.weights / 2**30 / shards
    activations = costs.activations / 2**30
    return (
        f"{weights + activations:.2f} GiB: {weights:.2f} weights and optimizer, "
        f"{activations:.2f} activations"
    )


def device_text(world: World) -> str:
    name = {"cpu": "CPU", "cuda": "GPU"}.get(world.device.type, world.device.type)
    if world.size == 1:
        return f"this {name}"

    return f"{world.size} {name}s"


def warmup_notes(optimizer: OptimizerConfig, task: TrainingTask, run: RunConfig) -> tuple[str, ...]:
    """A note if the warm-up is longer than the run, which is probably a mistake."""
    warmup = warmup_steps(optimizer, run.steps)
    if warmup <= run.steps:
        return ()

    highest = highest_rate(optimizer, task.config.width, run.steps)
    last = learning_rate(optimizer, run.steps - 1, run.steps, highest)

    return (
        f"warmup: {warmup} steps of warm-up are more than the {run.steps} steps of the run, "
        f"so the learning rate only rises, to {last:.2e}, and never reaches {highest:.2e}; "
        "give a smaller --warmup, or leave it out",
    )


def report_table(out: Path, result: TrainingResult, *, perplexity: bool) -> Table:
    """One row of results and costs; for language models with the perplexity."""
    loss = math.nan
    if result.validation_loss is not None:
        loss = result.validation_loss

    cells = {
        "steps": f"{result.steps:,}",
        "tokens": f"{result.tokens:,}",
        "validation loss": f"{loss:.4f}",
    }
    if perplexity:
        cells["perplexity"] = f"{math.exp(loss):,.2f}" if loss < 20 else "-"

    cells["time"] = clock(result.seconds)
    cells["training cost (FLOPs)"] = f"{result.flops:.2e}"
    table = Table(*cells, title=str(out))
    table.add_row(*cells.values())

    return table
