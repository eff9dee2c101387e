"""CUDA graphs of training steps: forward and backward pass, one graph per batch shape."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields

import torch
from jaxtyping import Float
from torch import Tensor, nn

from qkv.data.batches.batch import Batch
from qkv.nn.cuda_graph import CudaGraph

Shape = tuple[tuple[str, tuple[int, ...]], ...]
Gradients = dict[nn.Parameter, Tensor]

MOST_GRAPHS = 8
"""The graph of every shape holds gradients of its own."""


class StepGraphRunner:
    """The loss and gradients of an objective, from CUDA graphs.

    A shape is captured when it comes for the first time, or, where shapes vary, after it has come
    `wait` times.
    """

    def __init__(self, objective: nn.Module, wait: int = 0) -> None:
        self.objective = objective
        self.wait = wait
        self.graphs: dict[Shape, CudaGraph[tuple[Tensor, Gradients]]] = {}
        self.counts: Counter[Shape] = Counter()

    def supports(self, batch: Batch) -> bool:
        """Whether there is a graph for the batch's shape, or one should be captured now."""
        shape = shape_of(batch)
        if shape in self.graphs:
            return True

        self.counts[shape] += 1
        most = MOST_GRAPHS if self.wait else 1
        return len(self.graphs) < most and self.counts[shape] > self.wait

    def gradients(self, batch: Batch, factor: Float[Tensor, ""], seed: int) -> Float[Tensor, ""]:
        """Set the gradients of loss * factor, with dropout from the seed; return the loss.

        The parameters must have no gradients before.
        """
        shape = shape_of(batch)
        if shape not in self.graphs:
            self.graphs[shape] = self.capture(batch, factor)

        torch.manual_seed(seed)  # after the capture, which draws random numbers too
        loss, gradients = self.graphs[shape].replay(*tensors_of(batch).values(), factor)
        for parameter, gradient in gradients.items():
            parameter.grad = gradient

        return loss

    def capture(self, batch: Batch, factor: Tensor) -> CudaGraph[tuple[Tensor, Gradients]]:
        """Capture a pass over a copy of the batch, into which others of its shape are copied."""
        objective = self.objective
        static_batch = batch.map(lambda tensor: tensor.to(factor.device, copy=True))
        static_factor = factor.clone()

        def forward_and_backward() -> tuple[Tensor, Gradients]:
            loss = objective(static_batch)
            (loss * static_factor).backward()
            gradients: Gradients = {}
            for parameter in objective.parameters():
                if parameter.grad is not None:
                    gradients[parameter] = parameter.grad

            return loss.detach(), gradients

        return CudaGraph(
            forward_and_backward,
            [*tensors_of(static_batch).values(), static_factor],
            reset=lambda: objective.zero_grad(set_to_none=True),
        )


def tensors_of(batch: Batch) -> dict[str, Tensor]:
    """The tensors of a batch by field name."""
    tensors: dict[str, Tensor] = {}
    for field in fields(batch):
        value = getattr(batch, field.name)
        if isinstance(value, Tensor):
            tensors[field.name] = value

    return tensors


def shape_of(batch: Batch) -> Shape:
    return tuple((name, tuple(tensor.shape)) for name, tensor in tensors_of(batch).items())
