"""The feed-forward layer (MLP) of a block, with its activations: ReLU, GELU, SiLU, SwiGLU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from qkv.nn.hooks import TRANSFORMER_LENS, HookPoints
from qkv.nn.linear.gemv import ACTIVATIONS
from qkv.nn.linear.linear import Linear
from qkv.nn.native import native_library
from qkv.nn.stack_config import Activation
from qkv.nn.unchanged import fused


def activate(x: Tensor, kind: Activation) -> Tensor:
    """The activation of x; swiglu halves the last dimension."""
    if kind == "relu":
        return F.relu(x)
    if kind == "gelu":
        return F.gelu(x)
    if kind == "gelu_tanh":  # GPT-2's approximation
        return gelu_tanh(x)
    if kind == "silu":
        return F.silu(x)
    if kind == "relu2":
        return F.relu(x).square()

    gate, up = x.chunk(2, dim=-1)  # swiglu: one half of a twice as wide layer gates the other

    return F.silu(gate) * up


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU with tanh: on a CPU, without autograd, by the kernel in C, four times as fast."""
    no_gradient = not torch.is_grad_enabled() or not x.requires_grad
    if no_gradient and native_library.in_memory(x):  # False for torch.compile
        kernels = native_library.library()
        if kernels is not None:
            return kernels.activate(x, ACTIVATIONS["gelu_tanh"])

    return F.gelu(x, approximate="tanh")


@fused
class FeedForward(nn.Module):
    """down(activation(up(x))), for each position separately.

    Args:
        width: Model width E.
        hidden: Width F in the middle.
        activation: The activation; swiglu has a gate beside `up`, in the same matrix.
        bias: Biases of both layers.

    Example:
        >>> import torch
        >>> FeedForward(8, 32, "swiglu")(torch.zeros(1, 3, 8)).shape
        torch.Size([1, 3, 8])
    """

    def __init__(
        self, width: int, hidden: int, activation: Activation = "gelu", *, bias: bool = True
    ) -> None:
        super().__init__()
        self.activation: Activation = activation
        self.up = Linear(width, 2 * hidden if activation == "swiglu" else hidden, bias=bias)
        self.down = Linear(hidden, width, bias=bias)
        self.hooks = HookPoints("hidden", aliases=TRANSFORMER_LENS)

    def forward(self, x: Float[Tensor, "B T E"]) -> Float[Tensor, "B T E"]:
        hidden = self.activate(self.up(x))  # (B, T, F)
        return self.down(self.hooks("hidden", hidden))

    def activate(self, x: Float[Tensor, "*n U"]) -> Float[Tensor, "*n F"]:
        return activate(x, self.activation)
