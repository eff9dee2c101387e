"""The Sparse Transformer's causal patterns without the pairs that they leave out.

Each block of queries meets its keys in the manner of flash attention: no scores are stored, and the
backward pass computes them again from the sums of exponentials. Time grows with
length x (stride + length / stride), and memory with the length.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from qkv.nn.attention.kernels.sparse_pattern import regrouped_parts, tile_backward, tile_forward
from qkv.nn.attention.kernels.table import AttentionCall, register_kernel
from qkv.nn.attention.mask import Causal, Mask
from qkv.nn.attention.sparse_mask import Fixed, Strided

HAS_TRITON = find_spec("triton") is not None
WIDEST_HEAD = 128  # on a GPU
HALF = (torch.float16, torch.bfloat16)


def supports(call: AttentionCall) -> bool:
    """True for a causal pattern and nothing else, with fewer than half of a causal mask's pairs."""
    query, key, value, mask, bias, _, dropout = call
    pattern = causal_pattern(mask)
    if pattern is None or bias is not None or dropout > 0:
        return False

    T, D = query.shape[2:]
    if key.shape[2] != T or value.shape[3] != D or 4 * pattern.stride >= T:
        return False

    return query.device.type == "cpu" or supports_on_gpu(query, key, value)


def supports_on_gpu(query: Tensor, key: Tensor, value: Tensor) -> bool:
    if not (query.is_cuda and HAS_TRITON) or dtype_of(query) not in HALF:
        return False

    # Positions within a row are 32-bit offsets.
    largest = max(x.stride(2) * x.shape[2] for x in (query, key, value))
    return query.shape[3] <= WIDEST_HEAD and largest < 2**31


def causal_pattern(mask: Mask | None) -> Strided | Fixed | None:
    """The pattern of a mask that is one pattern and causal; None for other masks."""
    if mask is None or not any(isinstance(part, Causal) for part in mask.members):
        return None

    patterns = [part for part in mask.members if not isinstance(part, Causal)]
    if len(patterns) == 1 and isinstance(patterns[0], Strided | Fixed):
        return patterns[0]

    return None


def dtype_of(x: Tensor) -> torch.dtype:
    """The dtype that attention computes in: autocast's where it is enabled."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def run(call: AttentionCall) -> Float[Tensor, "B H T D"]:
    pattern = causal_pattern(call.mask)
    T, D = call.query.shape[2:]
    same_shape = call.key.shape[2] == T and call.value.shape[3] == D
    if pattern is None or not same_shape or call.bias is not None or call.dropout:
        raise ValueError(
            "kernel sparse_flash: expected Causal with Strided or Fixed, T = S, values as wide as "
            "keys, no bias and no dropout"
        )
    if call.query.device.type != "cpu" and not supports_on_gpu(*call[:3]):
        raise ValueError(
            "kernel sparse_flash: expected half precision, heads of at most "
            f"{WIDEST_HEAD} and Triton on a GPU"
        )

    tensors = [x.to(dtype_of(x)).transpose(1, 2) for x in call[:3]]  # (B, T, H, D)
    if call.query.is_cuda:
        missing = tile_forward.power_of_two(D) - D
        tensors = [F.pad(x, (0, missing)) if missing else x for x in tensors]

    summary = pattern.summary if isinstance(pattern, Fixed) else 0
    output, _ = sparse_flash(*tensors, pattern.stride, summary, call.scale)
    return output[..., :D].transpose(1, 2)  # (B, H, T, D)


# Custom operators, so that torch.compile does not trace into them.

INPUTS = "Tensor query, Tensor key, Tensor value"
OPTIONS = "int stride, int summary, float scale"


@torch.library.custom_op(
    "qkv::sparse_flash", mutates_args=(), schema=f"({INPUTS}, {OPTIONS}) -> (Tensor, Tensor)"
)
def sparse_flash(
    query: Tensor, key: Tensor, value: Tensor, stride: int, summary: int, scale: float
) -> tuple[Tensor, Tensor]:
    """The output (B, T, H, D) and the sums (B, H, T) for the backward pass; 0 summary: strided."""
    forward = tile_forward.forward if query.is_cuda else regrouped_parts.forward
    output, sums = forward(query, key, value, stride, summary, scale)
    return output.contiguous(), sums.contiguous()


@sparse_flash.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, stride: int, summary: int, scale: float
) -> tuple[Tensor, Tensor]:
    B, T, H, _ = query.shape
    sums = query.new_empty(B, H, T, dtype=torch.promote_types(query.dtype, torch.float32))
    return query.new_empty(query.shape), sums


SCHEMA = f"(Tensor gradient, {INPUTS}, Tensor output, Tensor sums, {OPTIONS})"


@torch.library.custom_op(
    "qkv::sparse_flash_backward", mutates_args=(), schema=f"{SCHEMA} -> (Tensor, Tensor, Tensor)"
)
def sparse_flash_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    sums: Tensor,
    stride: int,
    summary: int,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    backward = tile_backward.backward if query.is_cuda else regrouped_parts.backward
    dq, dk, dv = backward(gradient, query, key, value, output, sums, stride, summary, scale)
    return dq.contiguous(), dk.contiguous(), dv.contiguous()


@sparse_flash_backward.register_fake
def _(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    sums: Tensor,
    stride: int,
    summary: int,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    return query.new_empty(query.shape), key.new_empty(key.shape), value.new_empty(value.shape)


def save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:3], *output)
    ctx.options = inputs[3:]


def backward(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    gradients = sparse_flash_backward(gradient, *ctx.saved_tensors, *ctx.options)
    return *gradients, None, None, None


sparse_flash.register_autograd(backward, setup_context=save_for_backward)

register_kernel("sparse_flash", supports, run, rank=25)
