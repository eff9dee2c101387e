"""The same kernels every step: on a GPU they are recorded once and replayed as one (a CUDA graph).

The host then launches one thing a step instead of some hundreds, and the GPU does not wait between
them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import fields

import torch
from jaxtyping import Float
from torch import Tensor, nn

from qkv.data.batches.batch import Batch

Shape = tuple[tuple[str, tuple[int, ...]], ...]

MOST = 8
"""Each shape that is recorded holds gradients of its own, so there are not too many."""


class StepGraphRunner:
    """Forward and backward pass of an objective for batches of a few shapes.

    A shape is recorded when it comes for the first time, or, where many differ, only after it has
    come `wait` times.
    """

    def __init__(self, objective: nn.Module, wait: int = 0) -> None:
        self.objective, self.wait = objective, wait
        self.recorded: dict[Shape, TrainingGraph] = {}
        self.seen: Counter[Shape] = Counter()

    def fits(self, batch: Batch) -> bool:
        shape = shape_of(batch)
        if shape in self.recorded:
            return True

        self.seen[shape] += 1
        return len(self.recorded) < (MOST if self.wait else 1) and self.seen[shape] > self.wait

    def gradients(self, batch: Batch, factor: Float[Tensor, ""], seed: int) -> Float[Tensor, ""]:
        """The loss, and the gradient of loss * factor in the parameters, which had none; dropout
        from the seed.
        """
        shape = shape_of(batch)
        if shape not in self.recorded:
            self.recorded[shape] = TrainingGraph(self.objective, batch, factor)

        own = self.recorded[shape]
        own.take(batch, factor)
        torch.manual_seed(seed)  # only now: to record has drawn, too
        own.graph.replay()

        for parameter, gradient in own.gradient.items():
            parameter.grad = gradient

        return own.loss


class TrainingGraph:
    """One pass over a batch in memory of its own, which others of its shape are copied to."""

    def __init__(self, objective: nn.Module, batch: Batch, factor: Tensor) -> None:
        self.objective = objective
        self.batch = batch.map(lambda tensor: tensor.to(factor.device, copy=True))
        self.factor = factor.clone()
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())

        with torch.cuda.stream(aside):  # compiled and tuned before it is recorded
            for _ in range(2):
                self.pass_through()
                objective.zero_grad(set_to_none=True)

        torch.cuda.current_stream().wait_stream(aside)
        torch.cuda.empty_cache()
        self.graph = torch.cuda.CUDAGraph()

        with torch.cuda.graph(self.graph):
            self.loss = self.pass_through()

        self.gradient = {
            each: each.grad for each in objective.parameters() if each.grad is not None
        }

    def take(self, batch: Batch, factor: Tensor) -> None:
        for own, given in zip(tensors_of(self.batch), tensors_of(batch), strict=True):
            own.copy_(given, non_blocking=True)

        self.factor.copy_(factor)

    def pass_through(self) -> Tensor:
        loss = self.objective(self.batch)
        (loss * self.factor).backward()
        return loss.detach()


def tensors_of(batch: Batch) -> list[Tensor]:
    values = [getattr(batch, field.name) for field in fields(batch)]
    return [value for value in values if isinstance(value, Tensor)]


def shape_of(batch: Batch) -> Shape:
    named = [(field.name, getattr(batch, field.name)) for field in fields(batch)]
    return tuple((name, tuple(value.shape)) for name, value in named if isinstance(value, Tensor))
