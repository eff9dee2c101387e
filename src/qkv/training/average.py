"""Averages of weights: the exponential moving average, and the mean of several checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from qkv.training.resilience.checkpoint_writer import Checkpoint


class ExponentialAverage:
    """Exponential moving average of the weights, which moves faster at the start of a run."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = copied_weights(model)

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """After a step: move the average by 1 - decay towards the weights."""
        decay = min(self.decay, (1 + step) / (10 + step))
        names, parameters = zip(*trainable_parameters(model), strict=True)
        averages = [self.weights[name] for name in names]
        torch._foreach_lerp_(averages, parameters, 1 - decay)

    @contextmanager
    def in_place(self, model: nn.Module) -> Iterator[None]:
        """While the context is open, the model has the averaged weights."""
        with torch.no_grad():
            trained = copied_weights(model)
            copy_weights(self.weights, model)
            try:
                yield
            finally:
                copy_weights(trained, model)


def trainable_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Names and parameters that are trained; frozen ones are those of the pre-trained model."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            yield name, parameter


def copied_weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in trainable_parameters(model)}


@torch.no_grad()
def copy_weights(weights: dict[str, Tensor], model: nn.Module, origin: str = "weights") -> None:
    """Copy weights into the trainable parameters of a model; the names must be the same."""
    parameters = dict(trainable_parameters(model))
    if weights.keys() != parameters.keys():
        other = sorted(weights.keys() ^ parameters.keys())[0]
        raise ValueError(f"{origin}: it is of another model: {other} is only in one of them")

    for name, parameter in parameters.items():
        parameter.copy_(weights[name])


def mean_of(
    checkpoints: Sequence[Checkpoint], prefix: str, like: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Mean of the tensors below a prefix, by their names without it; summed in float64."""
    total: dict[str, Tensor] = {}
    for checkpoint in checkpoints:
        for name, tensor in checkpoint.tensors(prefix, like).items():
            total[name] = tensor.double() + total.get(name, 0.0)

    return {name: (tensor / len(checkpoints)).float() for name, tensor in total.items()}
