"""CUDA graphs of training steps: forward and backward pass, one graph per batch shape."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from qkv.data.batches.batch import Batch
from qkv.nn.cuda_graph import CudaGraph

Shape = tuple[tuple[str, tuple[int, ...]], ...]
Gradients = dict[nn.Parameter, Tensor]
StepGraph = CudaGraph[tuple[Tensor, Gradients]]

MOST_GRAPHS = 64
"""Graphs of a run whose shapes vary; batches of other shapes run in eager mode."""


class StepGraphRunner:
    """The loss and gradients of an objective, from CUDA graphs.

    A shape is captured when it comes for the first time, or, where shapes vary, after it has come
    `wait` times. Graphs of several shapes share their memory, and write the gradients to the same
    tensors.
    """

    def __init__(
        self, objective: nn.Module, wait: int = 0, shaped: Callable[[Batch], Batch] | None = None
    ) -> None:
        """Nothing is captured yet.

        Args:
            objective: From a batch to its summed loss.
            wait: How often a shape comes before it is captured.
            shaped: Pads a batch to one of few shapes (default: shapes stay as they are).
        """
        self.objective = objective
        self.wait = wait
        self.shaped: Callable[[Batch], Batch] = shaped or (lambda batch: batch)
        self.varied = bool(wait) or shaped is not None
        self.graphs: dict[Shape, StepGraph] = {}
        self.counts: Counter[Shape] = Counter()
        self.capturable: bool | None = None
        """Whether a pass never waits for the GPU; None before the first one."""
        self.pool: Any = None
        self.shared_gradients: Gradients = {}
        """Of graphs of several shapes: where each writes the gradients."""
        self.parameters = list(objective.parameters())
        self.addresses: list[int] = []
        """Where the parameters were at the capture; PyTorch's recurrent layers may move them."""

    def supports(self, batch: Batch) -> bool:
        """Whether there is a graph for the batch's shape, or one should be captured now."""
        shape = shape_of(batch)
        if shape in self.graphs:
            return True
        if self.capturable is False:
            return False

        self.counts[shape] += 1
        most = MOST_GRAPHS if self.varied else 1
        return len(self.graphs) < most and self.counts[shape] > self.wait

    def gradients(
        self, batch: Batch, factor: Float[Tensor, ""], seed: int
    ) -> Float[Tensor, ""] | None:
        """Set the gradients of loss * factor, with dropout from the seed; return the loss.

        The parameters must have no gradients before. None is returned, and nothing set, if the
        pass waits for the GPU, which cannot be captured.
        """
        self.check_addresses()
        shape = shape_of(batch)
        if shape not in self.graphs:
            graph = self.capture(batch, factor)
            if graph is None:
                return None

            self.graphs[shape] = graph

        torch.manual_seed(seed)  # after the capture, which draws random numbers too
        loss, gradients = self.graphs[shape].replay(*tensors_of(batch).values(), factor)
        for parameter, gradient in gradients.items():
            parameter.grad = gradient

        return loss

    def check_addresses(self) -> None:
        """Forget all graphs if a parameter has moved: they read where it was."""
        addresses = [parameter.data_ptr() for parameter in self.parameters]
        if addresses != self.addresses:
            self.addresses = addresses
            self.graphs.clear()
            self.pool = None

    def capture(self, batch: Batch, factor: Tensor) -> StepGraph | None:
        """Capture a pass over a copy of the batch, into which others of its shape are copied.

        None if the pass waits for the GPU, as an attention of a user's own may.
        """
        objective = self.objective
        static_batch = batch.map(lambda tensor: tensor.to(factor.device, copy=True))
        static_factor = factor.clone()
        if self.varied and self.pool is None:
            self.pool = torch.cuda.graph_pool_handle()

        def forward_and_backward() -> tuple[Tensor, Gradients]:
            loss = objective(static_batch)
            (loss * static_factor).backward()
            gradients: Gradients = {}
            for parameter in objective.parameters():
                if parameter.grad is not None:
                    gradients[parameter] = parameter.grad

            if self.varied:
                gradients = self.copied(gradients)
                objective.zero_grad(set_to_none=True)  # the next graph uses their memory

            return loss.detach(), gradients

        def reset() -> None:
            objective.zero_grad(set_to_none=True)

        if self.capturable is None:
            # Compiling waits for the GPU itself, and compiled code does not.
            compiled = getattr(objective, "compiled", None) is not None
            self.capturable = compiled or runs_without_waiting(forward_and_backward)
            reset()
        if not self.capturable:
            return None

        inputs = [*tensors_of(static_batch).values(), static_factor]
        return CudaGraph(forward_and_backward, inputs, pool=self.pool, reset=reset)

    def copied(self, gradients: Gradients) -> Gradients:
        """The gradients in the tensors that all graphs share; the warm-up allocates them."""
        for parameter, gradient in gradients.items():
            if parameter not in self.shared_gradients:
                self.shared_gradients[parameter] = torch.empty_like(gradient)

        shared = {parameter: self.shared_gradients[parameter] for parameter in gradients}
        torch._foreach_copy_(list(shared.values()), list(gradients.values()))

        return shared


def runs_without_waiting(step: Callable[[], object]) -> bool:
    """Whether a step runs to its end without reading a value back from the GPU."""
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")

    try:
        step()
    except RuntimeError as error:
        if "synchronizing CUDA operation" not in str(error):
            raise

        return False
    finally:
        torch.cuda.set_sync_debug_mode(mode)

    return True


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
