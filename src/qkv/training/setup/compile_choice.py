"""Whether compiling pays: the seconds that it takes against those that it saves in the run.

PyTorch keeps what it compiled on disk, so that the same model compiles faster the next time; the
estimate is of the first time.
"""

from __future__ import annotations

from qkv.training.run_config import RunConfig
from qkv.training.setup.cost import cost, estimated_seconds
from qkv.training.setup.training_task import TrainingTask, meta_model
from qkv.training.systems.distributed import World
from qkv.training.systems.precision import Precision

SECONDS = 15.0
"""Compiling a model without blocks."""
SECONDS_PER_BLOCK = 2.0
SAVED = 0.3
"""Of the plan's time of a step, the fraction that compiled code saves."""


def compile_seconds(blocks: int) -> float:
    """Estimated time to compile a model, in which every block is compiled anew."""
    return SECONDS + SECONDS_PER_BLOCK * blocks


def compiling_pays(steps: int, seconds_per_step: float, blocks: int) -> bool:
    """Whether compiled steps save more time than compiling takes."""
    return steps * seconds_per_step * SAVED > compile_seconds(blocks)


def pays_in_run(task: TrainingTask, run: RunConfig, world: World, precision: Precision) -> bool:
    """Whether compiling pays in a run, by the plan's estimate of a step on the first rank.

    The estimate depends on a measurement: a run that must be deterministic does not ask.
    """
    flops = cost(task.config, 1, precision, task.workload).flops_per_token
    flops *= task.training.tokens_per_step
    seconds = estimated_seconds(flops, world.device, precision, world.size)
    stacks = meta_model(task.config).stacks.values()
    blocks = sum(len(stack.blocks) for stack in stacks)

    pays = compiling_pays(run.steps, seconds, blocks)
    return bool(world.broadcast(int(pays)))
