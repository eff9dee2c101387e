"""CUDA graphs of training steps: a step's kernels are captured once and replayed with one launch.

The host launches one graph per step instead of hundreds of kernels, and the GPU does not wait
between them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import fields

import torch
from jaxtyping import Float
from torch import Tensor, nn

from qkv.data.batches.batch import Batch

Shape = tuple[tuple[str, tuple[int, ...]], ...]

MOST_GRAPHS = 8
"""The graph of every shape holds gradients of its own."""


class StepGraphRunner:
    """Forward and backward pass of an objective as CUDA graphs, one per batch shape.

    A shape is captured when it comes for the first time, or, where shapes vary, after it has come
    `wait` times.
    """

    def __init__(self, objective: nn.Module, wait: int = 0) -> None:
        self.objective = objective
        self.wait = wait
        self.graphs: dict[Shape, TrainingGraph] = {}
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
            self.graphs[shape] = TrainingGraph(self.objective, batch, factor)

        captured = self.graphs[shape]
        captured.copy_inputs(batch, factor)
        torch.manual_seed(seed)  # after the capture, which draws random numbers too
        captured.graph.replay()

        for parameter, gradient in captured.gradients.items():
            parameter.grad = gradient

        return captured.loss


class TrainingGraph:
    """One captured pass over a static batch, into which other batches of its shape are copied."""

    def __init__(self, objective: nn.Module, batch: Batch, factor: Tensor) -> None:
        self.objective = objective
        self.batch = batch.map(lambda tensor: tensor.to(factor.device, copy=True))
        self.factor = factor.clone()

        # Compile and autotune before the capture, on a side stream
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self.forward_and_backward()
                objective.zero_grad(set_to_none=True)

        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.empty_cache()

        # Capture
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss = self.forward_and_backward()

        self.gradients: dict[nn.Parameter, Tensor] = {}
        for parameter in objective.parameters():
            if parameter.grad is not None:
                self.gradients[parameter] = parameter.grad

    def copy_inputs(self, batch: Batch, factor: Tensor) -> None:
        targets = tensors_of(self.batch).values()
        sources = tensors_of(batch).values()
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source, non_blocking=True)

        self.factor.copy_(factor)

    def forward_and_backward(self) -> Tensor:
        loss = self.objective(self.batch)
        (loss * self.factor).backward()
        return loss.detach()


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
