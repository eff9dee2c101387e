"""Training for experiments: gradients, loss, optimizer and schedule are those of `qkv train`."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from statistics import fmean
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from qkv.models.model import Model
from qkv.models.registry import Config, build
from qkv.training.objective import Objective
from qkv.training.optimizer import Optimizers, gradient_norm
from qkv.training.run_config import DataConfig, OptimizerConfig
from qkv.training.schedule import learning_rate
from qkv.training.setup.training_task import TrainingTask, assemble
from qkv.training.step import gradients_of, validate
from qkv.training.systems.distributed import World
from qkv.training.systems.precision import Precision


class Fitted(NamedTuple):
    """A trained model of a task, and its losses."""

    model: Model
    losses: list[float]
    validation_loss: float
    task: TrainingTask


def fit(
    model: nn.Module,
    batch: Callable[[int], Any],
    steps: int,
    *,
    rate: float = 1e-3,
    seed: int = 0,
    loss: Callable[[Any], Tensor] | None = None,
    every: Callable[[int], object] | None = None,
    precision: Precision = "float32",
    **options: Any,
) -> list[float]:
    """Train a model on batches, and return the loss of every step.

    Args:
        model: The model, on its device; the batches are moved there.
        batch: The batch of a step, counted from 0.
        steps: Number of steps.
        rate: The highest learning rate: after a warm-up over a tenth of the steps, it falls along a
            cosine to a tenth.
        seed: Seed of dropout.
        loss: Mean loss of what `batch` returns; by default the model's own cross-entropy of a
            `Batch`.
        every: Called after each step with the number of steps done.
        precision: Precision of the forward pass.
        options: Fields of `OptimizerConfig`, such as weight_decay or clip.

    Returns:
        The mean loss of each step, before its update.

    Example:
        >>> from qkv.data.embedded.synthetic_batches import copy_batch
        >>> from qkv.lab.fit import fit
        >>> from qkv.models import RNN, RNNConfig
        >>> model = RNN(RNNConfig(vocabulary=12, width=8))
        >>> losses = fit(model, lambda step: copy_batch(0, step, 4, 3, 10), steps=2)
        >>> len(losses)
        2
    """
    options = {"warmup": max(1, steps // 10), **options}
    config = OptimizerConfig(learning_rate=rate, **options)
    optimizers = Optimizers(model, config)
    world = World(next(model.parameters()).device)
    objective: Objective | None = None
    if loss is None:
        assert isinstance(model, Model)
        objective = Objective(model, precision=precision).train()

    model.train()
    fine = torch.zeros((), device=world.device)
    losses: list[Tensor] = []
    for step in range(steps):
        # Forward and backward
        if objective is None:
            assert loss is not None
            current = loss(batch(step))
            current.backward()
            current = current.detach()
        else:
            current, _ = gradients_of(objective, batch(step), world, seed=(seed, step))

        # Clipping and update
        divisor = torch.ones((), device=world.device)
        if config.clip:
            divisor = (gradient_norm(model.parameters()) / config.clip).clamp(min=1.0)

        optimizers.set_rate(learning_rate(config, step, steps, rate), rate)
        optimizers.step(fine, divisor)
        optimizers.zero_gradients()
        losses.append(current)
        if every is not None:
            every(step + 1)

    model.eval()
    return torch.stack(losses).tolist() if losses else []


def fit_text(
    config: Config,
    data: str | tuple[str, ...] | DataConfig,
    steps: int,
    *,
    seed: int,
    device: torch.device,
    batch_tokens: int = 1024,
    tokenizer: str = "characters",
    surgery: Callable[[Model], object] | None = None,
    validation_batches: int | None = None,
    every: Callable[[int, Model, TrainingTask], object] | None = None,
    **options: Any,
) -> Fitted:
    """Build a model, train it on data by name, and validate it: `qkv train` without a folder.

    Args:
        config: The model; its vocabulary comes from the tokenizer.
        data: Names of data, as "python" or "turkish"; or a `DataConfig` with more choices, whose
            tokenizer counts.
        steps: Number of steps.
        seed: Seed of the weights, the order of the data and dropout.
        device: Where to train.
        batch_tokens: Tokens in a step.
        tokenizer: Kind of the tokenizer: characters, words or byte-pair.
        surgery: Changes the model before training.
        validation_batches: Validate on this many batches (default: all held-out data).
        every: Called after each step with the number of steps, the model and the task.
        options: As in `fit`.

    Returns:
        The model, the losses of all steps, and the loss on held-out data.
    """
    if not isinstance(data, DataConfig):
        names = (data,) if isinstance(data, str) else data
        data = DataConfig(data=names, tokenizer=tokenizer)

    task = assemble(config, data, batch_tokens=batch_tokens, seed=seed)
    torch.manual_seed(seed)
    model = build(task.config).to(device)
    if surgery is not None:
        surgery(model)

    def after(step: int) -> None:
        if every is not None:
            every(step, model, task)

    losses = fit(model, task.training.batch, steps, seed=seed, every=after, **options)
    held_out_loss = validation_loss(model, task, validation_batches)
    return Fitted(model, losses, held_out_loss, task)


def validation_loss(model: Model, task: TrainingTask, batches: int | None = None) -> float:
    """The mean loss on the held-out data, after which the model is in training mode no more.

    With `batches`, only the first ones are read.
    """
    world = World(next(model.parameters()).device)
    data: Any = SimpleNamespace(ordered=lambda: islice(task.validation.ordered(), batches))
    mean, _ = validate(Objective(model), data, world)
    model.eval()
    return mean


@torch.no_grad()
def validation_accuracy(model: Model, task: TrainingTask, batches: int) -> float:
    """The fraction of next tokens that a language model gets right in held-out text."""
    model.eval()
    device = next(model.parameters()).device
    right = []
    for batch in islice(task.validation.ordered(), batches):
        batch = batch.to(device)
        right.append(accuracy(model(batch.ids), batch.targets))

    return fmean(right)


def accuracy(logits: Tensor, targets: Tensor) -> float:
    """The fraction of targets that have the highest logit; negative targets do not count."""
    counted = targets >= 0
    correct = (logits.argmax(-1) == targets) & counted
    return float(correct.sum() / counted.sum().clamp(min=1))
