"""The feed-forward layer in training on a GPU, with GELU inside the matrix products.

GELU is a pass over the widest tensor of a block, and so is its derivative. cuBLASLt computes them
on the tiles of a product before it writes them: GELU with the up projection, and its derivative
with the gradient of the down projection. `FeedForward.forward` is the definition; `install`
replaces it from outside.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from qkv.nn.feed_forward import FeedForward
from qkv.nn.fused import cublaslt
from qkv.nn.linear.linear import Linear
from qkv.nn.unchanged import same_computation, unchanged

FEWEST_ROWS = 1024
"""Fewer rows are too few tiles for all multiprocessors."""


def install(model: nn.Module) -> None:
    """Let every feed-forward layer that the kernels support use them in training."""
    for module in model.modules():
        if not isinstance(module, FeedForward) or not supports_layer(module):
            continue
        if "forward" in vars(module):  # replaced already
            continue
        if cublaslt.available(module.up.weight.device):
            # As a partial function it is copied and pickled together with its layer.
            module.forward = same_computation(partial(fused_forward, module))  # type: ignore


def supports_layer(layer: FeedForward) -> bool:
    """Whether a layer is two plain linear layers with GPT-2's GELU, of aligned sizes."""
    if layer.activation != "gelu_tanh" or not is_plain(layer):
        return False

    return layer.up.in_features % 8 == 0 and layer.up.out_features % 8 == 0


def is_plain(layer: FeedForward) -> bool:
    """Whether a layer is what its class says: nothing replaced, no adapters."""
    if not unchanged(layer, FeedForward):
        return False
    for linear in (layer.up, layer.down):
        if not unchanged(linear, Linear) or linear.adapters is not None:
            return False

    return True


def supports(layer: FeedForward, x: Tensor) -> bool:
    """Whether to use the kernels for this input: many rows in half precision, with gradients."""
    if not x.is_cuda or not torch.is_grad_enabled():
        return False
    if x.dtype.itemsize != 2 or layer.up.weight.dtype != x.dtype:
        return False
    if torch.is_autocast_enabled("cuda") or layer.hooks.callback("hidden") is not None:
        return False

    return x.numel() >= FEWEST_ROWS * x.shape[-1]


def fused_forward(layer: FeedForward, x: Float[Tensor, "B T E"]) -> Float[Tensor, "B T E"]:
    """The layer's forward method, with the kernels where they support the input."""
    if not supports(layer, x):
        return FeedForward.forward(layer, x)

    up = layer.up
    down = layer.down
    output: Tensor = FusedFeedForward.apply(x, up.weight, up.bias, down.weight, down.bias)
    return output


class FusedFeedForward(torch.autograd.Function):
    """down(GELU(up(x))); stores x, up(x) and its GELU."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Float[Tensor, "*n E"],
        up_weight: Float[Tensor, "F E"],
        up_bias: Float[Tensor, "F"] | None,
        down_weight: Float[Tensor, "E F"],
        down_bias: Float[Tensor, "E"] | None,
    ) -> Float[Tensor, "*n E"]:
        rows = x.reshape(-1, x.shape[-1])  # (M, E)
        hidden, activated = linear_gelu(rows, up_weight, up_bias)  # (M, F) each
        ctx.save_for_backward(rows, hidden, activated, up_weight, down_weight)
        ctx.biases = (up_bias is not None, down_bias is not None)

        return F.linear(activated, down_weight, down_bias).view(x.shape)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        rows, hidden, activated, up_weight, down_weight = ctx.saved_tensors
        has_up_bias, has_down_bias = ctx.biases
        gradient = upstream[0].reshape(-1, down_weight.shape[0])  # (M, E)

        # Through the down projection and GELU
        d_down = gradient.T @ activated  # (E, F)
        d_down_bias = gradient.sum(0) if has_down_bias else None
        slope = gelu_gradient(gradient, down_weight, hidden)  # (M, F)

        # Through the up projection
        d_up = slope.T @ rows  # (F, E)
        d_up_bias = slope.sum(0) if has_up_bias else None
        d_x = (slope @ up_weight).view(upstream[0].shape)

        return d_x, d_up, d_up_bias, d_down, d_down_bias


# As operators the products are opaque to torch.compile. An operator exists once in a process: it
# looks up its function when it is called, in case this package was imported twice, as tests do.


@torch.library.custom_op(
    "qkv::linear_gelu",
    mutates_args=(),
    schema="(Tensor x, Tensor weight, Tensor? bias) -> (Tensor, Tensor)",
)
def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    from qkv.nn.fused import cublaslt

    return cublaslt.linear_gelu(x.contiguous(), weight.contiguous(), bias)


@linear_gelu.register_fake
def empty_gelu(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    hidden = x.new_empty(x.shape[0], weight.shape[0])
    return hidden, torch.empty_like(hidden)


@torch.library.custom_op(
    "qkv::gelu_gradient",
    mutates_args=(),
    schema="(Tensor gradient, Tensor weight, Tensor hidden) -> Tensor",
)
def gelu_gradient(gradient: Tensor, weight: Tensor, hidden: Tensor) -> Tensor:
    from qkv.nn.fused import cublaslt

    return cublaslt.gelu_gradient(gradient.contiguous(), weight.contiguous(), hidden)


@gelu_gradient.register_fake
def empty_slope(gradient: Tensor, weight: Tensor, hidden: Tensor) -> Tensor:
    return torch.empty_like(hidden)
