"""The loss: cross-entropy as a sum, in float32, without ever holding all logits.

With a vocabulary of 50,000 the logits are the largest thing in training by far: 32 texts of 1,024
words make 6 GiB of them in float32. So the output layer and the loss go through the positions in
chunks. A chunk's logits become their own gradient in place, and that becomes at once the gradient
of what made them; nothing of size V is kept for the way back.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from qkv.data.batches.batch import IGNORE
from qkv.training import fused_loss

LOGITS = 2**25  # so many at once are no burden; and so many in one chunk on a CPU
ROWS_ON_GPU, LOGITS_ON_GPU = 2**13, 2**29


def loss_sum(
    features: Float[Tensor, "*n E"],
    weight: Float[Tensor, "V E"],
    bias: Float[Tensor, "V"] | None,
    targets: Int[Tensor, "*n"],
    *,
    smoothing: float = 0.0,
    shares: Float[Tensor, "*n"] | None = None,
    chunk: int | None = None,
) -> Float[Tensor, ""]:
    """Sum over the positions of the cross-entropy between softmax(features weight^T + bias) and
    their targets.

    A target of IGNORE asks nothing. With `shares` each position counts as much as its share says.
    Label smoothing takes `smoothing` of the probability from the target and gives it to all words
    alike. `weight` may be of a finer dtype than `features`: it is used in theirs, its gradient in
    its own.
    """
    features, targets = features.flatten(0, -2), targets.flatten()  # (N, E), (N,)
    chunk = chunk or rows_at_once(features.shape[0], weight.shape[0], features.is_cuda)
    shares = None if shares is None else shares.flatten()  # (N,)

    return ChunkedLoss.apply(features, weight, bias, targets, smoothing, chunk, shares)


def rows_at_once(N: int, V: int, gpu: bool) -> int:
    """All, where their logits are few; else as many as keep matrix products efficient, and never
    more than half.
    """
    if N * V <= LOGITS:
        return max(1, N)

    most = min(ROWS_ON_GPU, LOGITS_ON_GPU // V) if gpu else LOGITS // V
    return min(max(1, most), -(-N // 2))


class ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        features: Float[Tensor, "N E"],
        weight: Float[Tensor, "V E"],
        bias: Float[Tensor, "V"] | None,
        targets: Int[Tensor, "N"],
        smoothing: float,
        chunk: int,
        shares: Float[Tensor, "N"] | None,
    ) -> Float[Tensor, ""]:
        V = weight.shape[0]
        W = aligned(weight.to(features.dtype))  # (P, E): P is V, or a little more
        b = None if bias is None else bias.to(features.dtype)
        wanted = ctx.needs_input_grad[:3]
        d_features = torch.empty_like(features) if wanted[0] else None
        finer = torch.promote_types(weight.dtype, torch.float32)  # what chunks are added up in
        d_weight: Tensor | None = None
        d_bias = torch.zeros_like(bias, dtype=finer) if bias is not None and wanted[2] else None
        total = torch.zeros(
            (), dtype=torch.promote_types(features.dtype, torch.float32), device=features.device
        )

        for start in range(0, features.shape[0], chunk):
            part = slice(start, start + chunk)
            logits = F.linear(features[part], W)  # (n, P)
            if b is not None:
                logits[:, :V] += b

            total += softmax_loss_(
                logits, V, targets[part], smoothing, None if shares is None else shares[part]
            )
            slope = logits  # no longer: it now holds the loss's derivative for each of them
            if d_features is not None:
                torch.mm(slope, W, out=d_features[part])

            if wanted[1]:
                d_weight = plus_product(d_weight, slope.T, features[part], finer)

            if d_bias is not None:
                d_bias += slope[:, :V].sum(0, dtype=finer)

        ctx.save_for_backward(d_features, None if d_weight is None else d_weight[:V], d_bias)
        ctx.dtype = weight.dtype

        return total

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        d_features, d_weight, d_bias = ctx.saved_tensors
        scale = upstream[0]
        return (
            None if d_features is None else d_features * scale.to(d_features.dtype),
            None if d_weight is None else (d_weight * scale).to(ctx.dtype),
            None if d_bias is None else (d_bias * scale).to(ctx.dtype),
            None,
            None,
            None,
            None,
        )


def softmax_loss_(
    logits: Float[Tensor, "N P"],
    V: int,
    targets: Int[Tensor, "N"],
    smoothing: float,
    shares: Float[Tensor, "N"] | None = None,
) -> Float[Tensor, ""]:
    """The loss of the first V columns, summed; the logits are overwritten with its derivative,
    columns beyond V with 0.

    This is the definition; on a GPU one fused pass takes its place.
    """
    if fused_loss.supports(logits):
        return fused_loss.softmax_loss_(logits, V, targets, smoothing, shares)

    asked = targets != IGNORE
    target = targets.where(asked, 0).unsqueeze(1)  # (N, 1)
    finer = torch.promote_types(logits.dtype, torch.float32)
    log_probability = F.log_softmax(logits[:, :V].to(finer), dim=-1)  # (N, V)
    loss = -(1 - smoothing) * log_probability.gather(1, target).squeeze(1)
    if smoothing:
        loss -= smoothing * log_probability.mean(1)

    slope = log_probability.exp_()
    slope -= smoothing / V
    slope.scatter_add_(1, target, slope.new_full(target.shape, -(1 - smoothing)))
    counted = asked.to(finer) if shares is None else asked * shares.to(finer)  # (N,)
    slope *= counted.unsqueeze(1)
    logits[:, :V] = slope
    logits[:, V:] = 0

    return (loss * counted).sum()


def aligned(weight: Float[Tensor, "V E"], multiple: int = 128) -> Float[Tensor, "P E"]:
    """On a GPU, rows of zeros up to a round number: matrix products of a width like 50,257 are slow
    there.
    """
    beyond = -weight.shape[0] % multiple
    return F.pad(weight, (0, 0, 0, beyond)) if weight.is_cuda and beyond else weight


def plus_product(total: Tensor | None, a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """total + a @ b, in a dtype that may be finer than that of a and b; the total is overwritten."""
    if a.dtype == dtype:
        return a @ b if total is None else total.addmm_(a, b)

    if a.is_cuda:
        if total is None:
            return torch.mm(a, b, out_dtype=dtype)

        return torch.addmm(total, a, b, out_dtype=dtype, out=total)

    return (a @ b).to(dtype) if total is None else total.add_(a @ b)
