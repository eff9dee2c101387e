"""The feed-forward part of a block: each position on its own, wide in the middle."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from qkv.nn.hooks import HookPoints
from qkv.nn.linear.linear import Linear
from qkv.nn.stack_config import Activation
from qkv.nn.unchanged import fused


def activate(x: Tensor, kind: Activation) -> Tensor:
    if kind == "relu":
        return F.relu(x)
    if kind == "gelu":
        return F.gelu(x)
    if kind == "gelu_tanh":  # GPT-2's approximation
        return F.gelu(x, approximate="tanh")
    if kind == "silu":
        return F.silu(x)
    if kind == "relu2":
        return F.relu(x).square()

    gate, up = x.chunk(2, dim=-1)  # swiglu: one half of a twice as wide layer gates the other

    return F.silu(gate) * up


@fused
class FeedForward(nn.Module):
    """down(activation(up(x)))"""

    def __init__(
        self, width: int, hidden: int, activation: Activation = "gelu", *, bias: bool = True
    ) -> None:
        super().__init__()
        self.activation: Activation = activation
        self.up = Linear(width, 2 * hidden if activation == "swiglu" else hidden, bias=bias)
        self.down = Linear(hidden, width, bias=bias)
        self.hooks = HookPoints("hidden")

    def forward(self, x: Float[Tensor, "B T E"]) -> Float[Tensor, "B T E"]:
        hidden = self.activate(self.up(x))  # (B, T, F)
        return self.down(self.hooks("hidden", hidden))

    def activate(self, x: Float[Tensor, "*n U"]) -> Float[Tensor, "*n F"]:
        return activate(x, self.activation)
