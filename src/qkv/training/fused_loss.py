"""A substitute for `softmax_loss_` on a GPU: one kernel scores a row of logits and overwrites it
with its slope.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkv.data.batches.batch import IGNORE

try:
    import triton
    import triton.language as tl
except ImportError:  # it comes with PyTorch where there is a GPU to use it
    triton = None


def supports(logits: Tensor) -> bool:
    return triton is not None and logits.is_cuda


def softmax_loss_(
    logits: Float[Tensor, "N P"],
    V: int,
    targets: Int[Tensor, "N"],
    smoothing: float,
    shares: Float[Tensor, "N"] | None = None,
) -> Float[Tensor, ""]:
    losses = torch.empty(logits.shape[0], dtype=torch.float32, device=logits.device)
    score_row[(logits.shape[0],)](
        logits,
        targets,
        losses,
        losses if shares is None else shares.float(),
        V,
        logits.shape[1],
        logits.stride(0),
        smoothing,
        IGNORE,
        SMOOTH=smoothing > 0,
        SHARES=shares is not None,
        LANES=4096,
        DEEP=2,
        num_warps=16,
    )

    return losses.sum()


if triton is not None:
    LOG2_E = tl.constexpr(1.4426950408889634)

    @triton.jit
    def score_row(  # type: ignore[no-untyped-def]
        logits,
        targets,
        losses,
        shares,
        V,
        P,
        stride,
        smoothing,
        ignore,
        SMOOTH: tl.constexpr,
        SHARES: tl.constexpr,
        LANES: tl.constexpr,
        DEEP: tl.constexpr,
    ):
        """Every lane keeps the largest logit and the sum of exponentials of its columns; they are
        joined at the end.

        Exponentials are powers of two. Whole tiles of DEEP x LANES columns need no mask; the last
        one does.
        """
        row = tl.program_id(0).to(tl.int64)
        logits += row * stride
        target = tl.load(targets + row)
        asked = target != ignore
        at_target = tl.load(logits + tl.where(asked, target, 0)).to(tl.float32)
        tile = tl.arange(0, DEEP)[:, None] * LANES + tl.arange(0, LANES)[None, :]  # (DEEP, LANES)
        whole = V // (DEEP * LANES) * (DEEP * LANES)

        top = tl.full((LANES,), -1e30, tl.float32)
        total = tl.zeros((LANES,), tl.float32)
        summed = tl.zeros((LANES,), tl.float32)

        for start in range(0, whole, DEEP * LANES):
            x = tl.load(logits + start + tile).to(tl.float32)
            higher = tl.maximum(top, tl.max(x, 0))
            total = total * tl.exp2((top - higher) * LOG2_E) + tl.sum(
                tl.exp2((x - higher[None, :]) * LOG2_E), 0
            )
            top = higher
            if SMOOTH:
                summed += tl.sum(x, 0)

        beyond = whole + tile
        x = tl.load(logits + beyond, mask=beyond < V, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(top, tl.max(x, 0))
        total = total * tl.exp2((top - higher) * LOG2_E) + tl.sum(
            tl.exp2((x - higher[None, :]) * LOG2_E), 0
        )
        if SMOOTH:
            summed += tl.sum(tl.where(beyond < V, x, 0.0), 0)

        highest = tl.max(higher, 0)
        log_total = highest + tl.log(tl.sum(total * tl.exp2((higher - highest) * LOG2_E), 0))
        loss = log_total - (1 - smoothing) * at_target
        if SMOOTH:
            loss -= smoothing * tl.sum(summed, 0) / V

        share = tl.load(shares + row) if SHARES else 1.0
        tl.store(losses + row, tl.where(asked, loss * share, 0.0))

        scale = tl.where(asked, share, 0.0)
        everyone = scale * smoothing / V

        for start in range(0, whole, DEEP * LANES):
            x = tl.load(logits + start + tile).to(tl.float32)
            slope = tl.exp2((x - log_total) * LOG2_E) * scale - everyone
            tl.store(logits + start + tile, slope.to(logits.dtype.element_ty))

        x = tl.load(logits + beyond, mask=beyond < V, other=float("-inf")).to(tl.float32)
        slope = tl.where(beyond < V, tl.exp2((x - log_total) * LOG2_E) * scale - everyone, 0.0)
        tl.store(logits + beyond, slope.to(logits.dtype.element_ty), mask=beyond < P)
        tl.debug_barrier()  # the target's own slope comes after everyone's
        if asked:
            own = (tl.exp2((at_target - log_total) * LOG2_E) - (1 - smoothing)) * scale - everyone
            tl.store(logits + target, own.to(logits.dtype.element_ty))
