"""The same kernels every step: on a GPU they are recorded once and replayed as one (a CUDA graph).

The host then launches one thing a step instead of some hundreds, and the GPU does not wait between them.
"""

from __future__ import annotations

from dataclasses import fields

import torch
from jaxtyping import Float
from torch import Tensor, nn

from qkv.data.batch import Batch


class Replay:
    """Forward and backward pass of an objective for batches of one shape: the first of that shape is recorded."""

    def __init__(self, objective: nn.Module) -> None:
        self.objective = objective
        self.batch: Batch | None = None

    def fits(self, batch: Batch) -> bool:
        return self.batch is None or shape_of(batch) == shape_of(self.batch)

    def gradients(self, batch: Batch, factor: Float[Tensor, ""], seed: int) -> Float[Tensor, ""]:
        """The loss, and the gradient of loss * factor in the parameters, which had none; dropout from the seed."""
        if self.batch is None:
            self.record(batch, factor)
        assert self.batch is not None
        for own, given in zip(tensors_of(self.batch), tensors_of(batch), strict=True):
            own.copy_(given, non_blocking=True)
        self.factor.copy_(factor)
        torch.manual_seed(seed)  # only now: to record has drawn, too
        self.graph.replay()
        for parameter, gradient in self.gradient.items():
            parameter.grad = gradient
        return self.loss

    def record(self, batch: Batch, factor: Tensor) -> None:
        static = batch.map(lambda tensor: tensor.to(factor.device, copy=True))
        self.factor = factor.clone()
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # compiled and tuned before it is recorded
            for _ in range(2):
                self.pass_through(static)
                self.objective.zero_grad(set_to_none=True)
        torch.cuda.current_stream().wait_stream(aside)
        torch.cuda.empty_cache()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss = self.pass_through(static)
        self.gradient = {
            parameter: parameter.grad for parameter in self.objective.parameters() if parameter.grad is not None
        }
        self.batch = static

    def pass_through(self, batch: Batch) -> Tensor:
        loss = self.objective(batch)
        (loss * self.factor).backward()
        return loss.detach()


def tensors_of(batch: Batch) -> list[Tensor]:
    values = [getattr(batch, field.name) for field in fields(batch)]
    return [value for value in values if value is not None]


def shape_of(batch: Batch) -> list[tuple[str, torch.Size]]:
    named = [(field.name, getattr(batch, field.name)) for field in fields(batch)]
    return [(name, value.shape) for name, value in named if value is not None]
