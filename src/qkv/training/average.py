"""Averages of weights, which often do better than the last ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from qkv.training.resilience.checkpoint_writer import Checkpoint


class ExponentialAverage:
    """After each step the average moves by (1 - decay) towards the weights; sooner at the start of
    a run.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = {name: parameter.detach().clone() for name, parameter in learning(model)}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        decay = min(self.decay, (1 + step) / (10 + step))
        names, now = zip(*learning(model), strict=True)
        torch._foreach_lerp_([self.weights[name] for name in names], now, 1 - decay)

    @contextmanager
    def in_place(self, model: nn.Module) -> Iterator[None]:
        """While the context is open, the model has the average's weights."""
        with torch.no_grad():
            kept = {name: parameter.detach().clone() for name, parameter in learning(model)}
            put(model, self.weights)
            try:
                yield
            finally:
                put(model, kept)


def learning(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters that are trained, by name; those that are frozen are in the model that a run
    began from.
    """
    return (
        (name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad
    )


@torch.no_grad()
def put(model: nn.Module, weights: dict[str, Tensor]) -> None:
    for name, parameter in learning(model):
        parameter.copy_(weights[name])


def mean_of(checkpoints: Sequence[Checkpoint], prefix: str) -> dict[str, Tensor]:
    """The mean of the tensors whose names begin with the prefix, without it, added up in float64."""
    total: dict[str, Tensor] = {}
    for checkpoint in checkpoints:
        for name, tensor in checkpoint.tensors(prefix).items():
            total[name] = tensor.double() + total.get(name, 0.0)

    return {name: (tensor / len(checkpoints)).float() for name, tensor in total.items()}
