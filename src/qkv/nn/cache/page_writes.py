"""Writing keys and values into the pages on a GPU (Triton): both in one kernel."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # Triton comes with PyTorch's GPU builds
    triton = None

WIDEST = 16384  # numbers of a key in all heads


def supports(key: Tensor, value: Tensor) -> bool:
    """True on a GPU for keys and values of one layout, without autograd."""
    if triton is None or not key.is_cuda or torch.is_grad_enabled():
        return False
    if key.stride() != value.stride() or key.shape != value.shape or key.stride(3) != 1:
        return False

    return key.shape[1] * key.shape[3] <= WIDEST and key.shape[2] > 0


def store(
    keys: Float[Tensor, "P K D"],
    values: Float[Tensor, "P K D"],
    slots: Int[Tensor, "N"],
    key: Float[Tensor, "1 K N D"],
    value: Float[Tensor, "1 K N D"],
) -> None:
    """Copy token n's key and value to slot `slots[n]`."""
    _, K, N, D = key.shape
    lanes = triton.next_power_of_2(K * D)
    store_token[(N,)](
        keys, values, slots, key, value, K * D, key.stride(1), key.stride(2),
        D=D, LANES=lanes, num_warps=min(8, max(1, lanes // 256)),
    )  # fmt: skip


if triton is not None:

    @triton.jit
    def store_token(  # type: ignore[no-untyped-def]
        keys, values, slots, key, value, width, head_stride, token_stride,
        D: tl.constexpr, LANES: tl.constexpr,
    ):  # fmt: skip
        """All heads of one token."""
        n = tl.program_id(0).to(tl.int64)
        lane = tl.arange(0, LANES)
        source = n * token_stride + lane // D * head_stride + lane % D
        target = tl.load(slots + n) * width + lane
        inside = lane < width
        tl.store(keys + target, tl.load(key + source, mask=inside), mask=inside)
        tl.store(values + target, tl.load(value + source, mask=inside), mask=inside)
