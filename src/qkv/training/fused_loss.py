"""Fused softmax cross-entropy on a GPU (Triton): loss and gradient of a row of logits, in place."""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.data.batches.batch import IGNORE

try:
    import triton
    import triton.language as tl
except ImportError:  # PyTorch brings it along only where there is a GPU to use it
    triton = None


def supports(logits: Tensor) -> bool:
    return triton is not None and logits.is_cuda


def softmax_loss_(
    logits: Tensor, V: int, targets: Tensor, smoothing: float, shares: Tensor | None = None
) -> Tensor:
    """The same as `loss.softmax_loss_`, which defines it, in one pass per row."""
    return losses_of_rows(logits, V, targets, smoothing, shares).sum()


def losses_of_rows(
    logits: Tensor,
    V: int,
    targets: Tensor,
    smoothing: float,
    shares: Tensor | None = None,
    log_totals: Tensor | None = None,
) -> Tensor:
    """The loss of every row; its gradient overwrites the logits.

    With `log_totals` the logits stay, and the logarithm of each row's sum of exponentials is
    written there.
    """
    rows = logits.shape[0]
    losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
    row_shares = losses  # a tensor must be passed; it is not read
    if shares is not None:
        row_shares = shares.float()

    loss_of_row[(rows,)](
        logits,
        targets,
        losses,
        row_shares,
        losses if log_totals is None else log_totals,
        V,
        logits.shape[1],
        logits.stride(0),
        smoothing,
        IGNORE,
        SMOOTH=smoothing > 0,
        SHARES=shares is not None,
        SLOPES=log_totals is None,
        LANES=4096,
        DEEP=2,
        num_warps=16,
    )

    return losses


if triton is not None:
    LOG2_E = tl.constexpr(1.4426950408889634)

    @triton.jit
    def add_exponentials(x, top, total):  # type: ignore[no-untyped-def]
        """Online softmax: the new maximum of each lane, and its sum of exponentials below it."""
        higher = tl.maximum(top, tl.max(x, 0))
        total = total * tl.exp2((top - higher) * LOG2_E) + tl.sum(
            tl.exp2((x - higher[None, :]) * LOG2_E), 0
        )
        return higher, total

    @triton.jit
    def loss_of_row(  # type: ignore[no-untyped-def]
        logits, targets, losses, shares, log_totals, V, P, stride, smoothing, ignore,
        SMOOTH: tl.constexpr, SHARES: tl.constexpr, SLOPES: tl.constexpr,
        LANES: tl.constexpr, DEEP: tl.constexpr,
    ):  # fmt: skip
        """Loss and gradient of one row of logits, in tiles of DEEP x LANES columns.

        Every lane holds the maximum and the sum of exponentials of its columns; they are combined
        at the end. Only the last tile needs a mask.
        """
        row = tl.program_id(0).to(tl.int64)
        logits += row * stride
        target = tl.load(targets + row)
        has_target = target != ignore
        at_target = tl.load(logits + tl.where(has_target, target, 0)).to(tl.float32)
        tile = tl.arange(0, DEEP)[:, None] * LANES + tl.arange(0, LANES)[None, :]
        whole = V // (DEEP * LANES) * (DEEP * LANES)

        # First pass: logsumexp, and the sum of the logits for label smoothing
        top = tl.full((LANES,), -1e30, tl.float32)
        total = tl.zeros((LANES,), tl.float32)
        summed = tl.zeros((LANES,), tl.float32)
        for start in range(0, whole, DEEP * LANES):
            x = tl.load(logits + start + tile).to(tl.float32)
            top, total = add_exponentials(x, top, total)
            if SMOOTH:
                summed += tl.sum(x, 0)

        rest = whole + tile
        x = tl.load(logits + rest, mask=rest < V, other=float("-inf")).to(tl.float32)
        top, total = add_exponentials(x, top, total)
        if SMOOTH:
            summed += tl.sum(tl.where(rest < V, x, 0.0), 0)

        # The loss of the row
        highest = tl.max(top, 0)
        log_total = highest + tl.log(tl.sum(total * tl.exp2((top - highest) * LOG2_E), 0))
        loss = log_total - (1 - smoothing) * at_target
        if SMOOTH:
            loss -= smoothing * tl.sum(summed, 0) / V

        share = tl.load(shares + row) if SHARES else 1.0
        tl.store(losses + row, tl.where(has_target, loss * share, 0.0))

        if SLOPES:
            # Second pass: the gradient overwrites the logits
            scale = tl.where(has_target, share, 0.0)
            uniform = scale * smoothing / V
            for start in range(0, whole, DEEP * LANES):
                x = tl.load(logits + start + tile).to(tl.float32)
                slope = tl.exp2((x - log_total) * LOG2_E) * scale - uniform
                tl.store(logits + start + tile, slope.to(logits.dtype.element_ty))

            x = tl.load(logits + rest, mask=rest < V, other=float("-inf")).to(tl.float32)
            slope = tl.where(rest < V, tl.exp2((x - log_total) * LOG2_E) * scale - uniform, 0.0)
            tl.store(logits + rest, slope.to(logits.dtype.element_ty), mask=rest < P)

            # The target's own gradient, after all the others are written
            tl.debug_barrier()
            if has_target:
                at_target = (tl.exp2((at_target - log_total) * LOG2_E) - (1 - smoothing)) * scale
                tl.store(logits + target, (at_target - uniform).to(logits.dtype.element_ty))
        else:
            tl.store(log_totals + row, log_total)
