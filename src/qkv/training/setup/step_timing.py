"""How long a training step takes on this machine, measured before training begins."""

from __future__ import annotations

import statistics
import time

import torch

from qkv.models.registry import build
from qkv.training.optimizer import Optimizers, gradient_norm
from qkv.training.run_config import OptimizerConfig, RunConfig
from qkv.training.setup.training_task import TrainingTask
from qkv.training.step import gradients_of
from qkv.training.systems.distributed import World, device_named
from qkv.training.systems.precision import best_precision

WARM_UP = 2
TIMED = 8


def seconds_per_step(task: TrainingTask, optimizer: OptimizerConfig, run: RunConfig) -> float:
    """Median time of the first steps, without compiling, on a model that is thrown away."""
    device = device_named(run.device)
    world = World(device)
    precision = run.precision or best_precision(device)
    random_state = torch.get_rng_state()

    # A model as in training, with a learning rate that changes nothing
    model = build(task.config).to(device).train()
    objective = task.objective(model, precision=precision, smoothing=optimizer.smoothing)
    optimizers = Optimizers(model, optimizer)
    optimizers.set_rate(1e-6, 1e-6)
    bad = torch.zeros((), device=device)
    divisor = torch.ones((), device=device)

    seconds = []
    for step in range(WARM_UP + TIMED):
        batch = task.training.batch(step)
        begin = time.perf_counter()
        gradients_of(objective, batch, world)
        gradient_norm(model.parameters())
        optimizers.step(bad, divisor)
        optimizers.zero_gradients()
        seconds.append(time.perf_counter() - begin)

    torch.set_rng_state(random_state)

    return statistics.median(seconds[WARM_UP:])
