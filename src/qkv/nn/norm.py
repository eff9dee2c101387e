"""Norms: every vector brought to a common scale, so that deep stacks train."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from qkv.nn.stack_config import Norm
from qkv.nn.unchanged import fused


@fused
class LayerNorm(nn.Module):
    """gain * (x - mean) / sqrt(variance + epsilon) + bias, with mean and variance over the E
    numbers of one vector.
    """

    def __init__(self, width: int, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.epsilon = epsilon

    def forward(self, x: Float[Tensor, "*n E"]) -> Float[Tensor, "*n E"]:
        return F.layer_norm(x, x.shape[-1:], self.gain, self.bias, self.epsilon)


@fused
class RMSNorm(nn.Module):
    """gain * x / sqrt(mean(x^2) + epsilon): layer norm without the mean and the bias."""

    def __init__(self, width: int, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: Float[Tensor, "*n E"]) -> Float[Tensor, "*n E"]:
        return F.rms_norm(x, x.shape[-1:], self.gain, self.epsilon)


def norm(kind: Norm, width: int, epsilon: float) -> LayerNorm | RMSNorm:
    return LayerNorm(width, epsilon) if kind == "layer" else RMSNorm(width, epsilon)
