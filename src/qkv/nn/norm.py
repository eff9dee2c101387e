"""Layer norm and RMS norm: every vector is brought to a common scale, so that deep stacks train."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from qkv.nn.stack_config import Norm
from qkv.nn.unchanged import fused


@fused
class LayerNorm(nn.Module):
    """gain * (x - mean) / sqrt(variance + epsilon) + bias, over the E numbers of a vector.

    Args:
        width: E.
        epsilon: Added to the variance.

    Example:
        >>> import torch
        >>> LayerNorm(2)(torch.tensor([1.0, 3.0])).detach().round(decimals=2)
        tensor([-1.,  1.])
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
    """gain * x / sqrt(mean(x^2) + epsilon): layer norm without the mean and the bias.

    Args:
        width: E.
        epsilon: Added to the mean square.

    Example:
        >>> import torch
        >>> RMSNorm(2)(torch.tensor([3.0, 3.0])).detach().round(decimals=2)
        tensor([1., 1.])
    """

    def __init__(self, width: int, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: Float[Tensor, "*n E"]) -> Float[Tensor, "*n E"]:
        return F.rms_norm(x, x.shape[-1:], self.gain, self.epsilon)


def norm(kind: Norm, width: int, epsilon: float) -> LayerNorm | RMSNorm:
    """A new norm of the given kind."""
    return LayerNorm(width, epsilon) if kind == "layer" else RMSNorm(width, epsilon)
