"""The feed-forward layer in training on a GPU, with its six matrix products in FP8.

Scales are computed anew from the numbers of each pass, so that nothing is carried from step to
step. They need no pass over the widest tensors. The largest norm of a row bounds every number of a
matrix, and by Cauchy and Schwarz the norm of a row times that of a column bounds every number of a
product. GELU is no larger than its input, and its derivative never above 1.13. The norms of the
input, the gradient and the weights therefore bound the hidden layer and its gradient, too. A bound
is some 5 to 30 times the largest number: floating point then loses the smallest numbers, a few of
15 powers of 2 (e4m3) or of 30 (e5m2), and no precision. A number that is NaN or infinite makes its
scale so, and with it every result.

torch.compile fuses the norms with the kernels that compute their matrices. `FeedForward.forward` is
the definition; `install` replaces it from outside.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from qkv.nn.feed_forward import FeedForward
from qkv.nn.fused import cublaslt, fp8_layouts, fused_feed_forward
from qkv.nn.fused.fp8 import ALIGNMENT, E4M3, E5M2, Fp8Tensor, product, rounded_up
from qkv.nn.fused.fp8_layouts import APPROXIMATIONS, both_layouts
from qkv.nn.fused.fused_feed_forward import fused_forward, is_plain
from qkv.nn.unchanged import same_computation

FEWEST_COLUMNS = 768
"""In a narrower layer FP8 saves less time than rounding takes."""
GRADIENT = E5M2
MOST = torch.finfo(E4M3).max
MOST_OF_GRADIENT = torch.finfo(GRADIENT).max
STEEPEST = 1.13
"""The largest derivative of GELU."""
SMALLEST = 1e-12
"""A norm of zero counts as this."""


def install(model: nn.Module) -> None:
    """Let every feed-forward layer that FP8 supports use it in training."""
    for module in model.modules():
        if not isinstance(module, FeedForward) or not supports_layer(module):
            continue

        # Where FP8 does not support an input: as without it
        fallback: Callable[..., Tensor] = FeedForward.forward
        available = cublaslt.available(module.up.weight.device)
        if available and fused_feed_forward.supports_layer(module):
            fallback = fused_forward

        # As a partial function it is copied and pickled together with its layer.
        module.forward = same_computation(partial(fp8_forward, module, fallback))  # type: ignore


def supports_layer(layer: FeedForward) -> bool:
    """Whether a layer is two plain linear layers with GELU, wide enough and of aligned sizes."""
    if layer.activation not in APPROXIMATIONS or not is_plain(layer):
        return False
    if layer.up.in_features % ALIGNMENT or layer.up.out_features % ALIGNMENT:
        return False

    return layer.up.in_features >= FEWEST_COLUMNS


def supports(layer: FeedForward, x: Tensor) -> bool:
    """Whether to use FP8 for this input: many rows in half precision, in training."""
    if fp8_layouts.triton is None or not layer.training:
        return False

    return fused_feed_forward.supports(layer, x)


def fp8_forward(
    layer: FeedForward, fallback: Callable[..., Tensor], x: Float[Tensor, "B T E"]
) -> Float[Tensor, "B T E"]:
    """The layer's forward method, in FP8 where that supports the input."""
    if not supports(layer, x):
        return fallback(layer, x)

    up = layer.up
    down = layer.down
    output: Tensor = Fp8FeedForward.apply(
        x, up.weight, up.bias, down.weight, down.bias, layer.activation
    )
    return output


class Fp8FeedForward(torch.autograd.Function):
    """down(GELU(up(x))); stores up(x), and in FP8 the transposes of x, GELU and weights."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Float[Tensor, "*n E"],
        up_weight: Float[Tensor, "F E"],
        up_bias: Float[Tensor, "F"] | None,
        down_weight: Float[Tensor, "E F"],
        down_bias: Float[Tensor, "E"] | None,
        activation: str,
    ) -> Float[Tensor, "*n E"]:
        rows = x.reshape(-1, x.shape[-1])  # (M, E)
        of_x = largest_norm(rows, dim=1)
        of_up = largest_norm(up_weight, dim=1)
        of_down = largest_norm(down_weight, dim=0)
        of_hidden = of_x * of_up
        if up_bias is not None:
            of_hidden = of_hidden + up_bias.abs().amax().float()

        scales = [bound / MOST for bound in (of_x, of_up, of_hidden, of_down)]
        output, *stored = forward_products(
            rows, up_weight, up_bias, down_weight, down_bias, scales, activation
        )
        ctx.save_for_backward(*stored, *scales)
        ctx.activation = activation
        ctx.biases = (up_bias is not None, down_bias is not None)

        return output.view(x.shape)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        stored = list(ctx.saved_tensors[:5])
        scales = list(ctx.saved_tensors[5:])
        has_up_bias, has_down_bias = ctx.biases
        gradient = upstream[0].reshape(-1, upstream[0].shape[-1])  # (M, E)
        of_gradient = largest_norm(gradient, dim=1)
        of_slope = of_gradient * scales[-1] * (MOST * STEEPEST)
        scales += [bound / MOST_OF_GRADIENT for bound in (of_gradient, of_slope)]
        d_x, d_up, d_up_bias, d_down = backward_products(
            gradient, stored, scales, ctx.activation, has_up_bias
        )

        return (
            d_x.view(upstream[0].shape),
            d_up,
            d_up_bias if has_up_bias else None,
            d_down,
            gradient.sum(0) if has_down_bias else None,
            None,
        )


def largest_norm(x: Float[Tensor, "M P"], dim: int) -> Float[Tensor, ""]:
    """The largest norm of a row (dim 1) or of a column (dim 0)."""
    norms = torch.linalg.vector_norm(x, dim=dim, dtype=torch.float32)
    return norms.amax().clamp(min=SMALLEST)


def compute_forward(
    x: Float[Tensor, "M E"],
    up_weight: Float[Tensor, "F E"],
    up_bias: Float[Tensor, "F"] | None,
    down_weight: Float[Tensor, "E F"],
    down_bias: Float[Tensor, "E"] | None,
    scales: list[Tensor],
    activation: str,
) -> tuple[Tensor, ...]:
    """The output and what the backward pass needs; scales of x, up, the hidden layer, down."""
    x_scale, up_scale, hidden_scale, down_scale = scales
    x8 = both_layouts(x.contiguous(), x_scale)  # (M, E)
    up = both_layouts(up_weight.contiguous(), up_scale)  # (F, E)
    down = both_layouts(down_weight.contiguous(), down_scale)  # (E, F)

    hidden = product(x8.by_rows(), up.by_rows(), x.dtype, bias=up_bias)  # (M, F)
    activated = fp8_layouts.activated(hidden, hidden_scale, activation)  # (M, F)
    output = product(activated.by_rows(), down.by_rows(), x.dtype, bias=down_bias)  # (M, E)

    return output, hidden, x8.columns, activated.columns, up.columns, down.columns


def compute_backward(
    gradient: Float[Tensor, "M E"],
    stored: list[Tensor],
    scales: list[Tensor],
    activation: str,
    with_up_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of x, the up projection, its bias (if there is one) and the down projection."""
    hidden, *columns = stored
    x_scale, up_scale, hidden_scale, down_scale, gradient_scale, slope_scale = scales
    x = Fp8Tensor(columns[0], x_scale)  # (E, M), as far as a multiple of 16
    activated = Fp8Tensor(columns[1], hidden_scale)  # (F, M)
    up = Fp8Tensor(columns[2], up_scale)  # (E, F)
    down = Fp8Tensor(columns[3], down_scale)  # (F, E)

    # Through the down projection
    dtype = gradient.dtype
    gradient8 = both_layouts(gradient.contiguous(), gradient_scale, GRADIENT)  # (M, E)
    d_down = product(gradient8.by_columns(), activated, dtype, fast=False)  # (E, F)
    d_activated = product(gradient8.by_rows(), down, dtype, fast=False)  # (M, F)

    # Through GELU and the up projection
    slope, sums = fp8_layouts.through_activation(
        d_activated, hidden, slope_scale, GRADIENT, activation, with_sums=with_up_bias
    )  # (M, F)
    d_up = product(slope.by_columns(), x, dtype, fast=False)  # (F, E)
    d_x = product(slope.by_rows(), up, dtype, fast=False)  # (M, E)
    if sums is None:
        sums = gradient.new_empty(0)

    return d_x, d_up, sums.to(dtype), d_down


# As operators the passes are opaque to torch.compile. An operator exists once in a process: it
# looks up its function when it is called, in case this package was imported twice, as tests do.


@torch.library.custom_op(
    "qkv::fp8_feed_forward",
    mutates_args=(),
    schema="(Tensor x, Tensor up_weight, Tensor? up_bias, Tensor down_weight, Tensor? down_bias, "
    "Tensor[] scales, str activation) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def forward_products(
    x: Tensor,
    up_weight: Tensor,
    up_bias: Tensor | None,
    down_weight: Tensor,
    down_bias: Tensor | None,
    scales: list[Tensor],
    activation: str,
) -> tuple[Tensor, ...]:
    from qkv.nn.fused import fp8_feed_forward

    return fp8_feed_forward.compute_forward(
        x, up_weight, up_bias, down_weight, down_bias, scales, activation
    )


@forward_products.register_fake
def empty_forward(
    x: Tensor,
    up_weight: Tensor,
    up_bias: Tensor | None,
    down_weight: Tensor,
    down_bias: Tensor | None,
    scales: list[Tensor],
    activation: str,
) -> tuple[Tensor, ...]:
    M, E = x.shape
    width = up_weight.shape[0]
    padded = rounded_up(M)
    shapes = [(E, padded), (width, padded), (E, width), (width, E)]
    columns = [x.new_empty(shape, dtype=E4M3) for shape in shapes]

    return x.new_empty(M, E), x.new_empty(M, width), *columns


@torch.library.custom_op(
    "qkv::fp8_feed_forward_gradients",
    mutates_args=(),
    schema="(Tensor gradient, Tensor[] stored, Tensor[] scales, str activation, "
    "bool with_up_bias) -> (Tensor, Tensor, Tensor, Tensor)",
)
def backward_products(
    gradient: Tensor,
    stored: list[Tensor],
    scales: list[Tensor],
    activation: str,
    with_up_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from qkv.nn.fused import fp8_feed_forward

    return fp8_feed_forward.compute_backward(gradient, stored, scales, activation, with_up_bias)


@backward_products.register_fake
def empty_gradients(
    gradient: Tensor,
    stored: list[Tensor],
    scales: list[Tensor],
    activation: str,
    with_up_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    M, E = gradient.shape
    width = stored[0].shape[1]
    d_up = gradient.new_empty(width, E)
    d_up_bias = gradient.new_empty(width if with_up_bias else 0)
    return gradient.new_empty(M, E), d_up, d_up_bias, gradient.new_empty(E, width)
