"""Cross-entropy summed in float32, in chunks, without ever holding all logits.

With a vocabulary of 50,000 the logits are by far the largest tensor of training: 32 sequences of
1,024 tokens make 6 GiB of them in float32. So the output layer and the loss go through the
positions in chunks. The logits of a chunk are overwritten with their gradient, from which the
gradients of features and weight follow at once; nothing of size V is stored for the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from qkv.data.batches.batch import IGNORE
from qkv.nn.linear import onednn_product
from qkv.nn.linear.onednn_product import product
from qkv.training import fp8_loss, fused_loss
from qkv.training.kernels import native_loss

CHUNK_LOGITS = 2**25
"""Logits of one chunk on a CPU; as many are never chunked."""
GPU_CHUNK_ROWS = 2**13
GPU_CHUNK_LOGITS = 2**29


def loss_sum(
    features: Float[Tensor, "*n E"],
    weight: Float[Tensor, "V E"],
    bias: Float[Tensor, "V"] | None,
    targets: Int[Tensor, "*n"],
    *,
    smoothing: float = 0.0,
    shares: Float[Tensor, "*n"] | None = None,
    chunk: int | None = None,
    fp8: bool = False,
) -> Float[Tensor, ""]:
    """Sum over the positions of the cross-entropy of softmax(features weight^T + bias).

    Args:
        features: What the output layer reads.
        weight: The output layer's matrix. It is used in the dtype of `features`; its gradient has
            its own dtype, which may be more precise.
        bias: The output layer's bias, or None.
        targets: Token ids; positions with IGNORE have no loss.
        smoothing: Label smoothing: the probability moved from the target to all tokens equally.
        shares: Weight of the loss of each position (default 1).
        chunk: Positions per chunk (default: chosen by size).
        fp8: Compute the output layer in FP8 where that is supported.

    Raises:
        ValueError: If there are not as many targets, or shares, as positions.
        IndexError, RuntimeError: On a CPU, if a target is not a token of the vocabulary.
    """
    features = features.flatten(0, -2)  # (N, E)
    targets = targets.flatten()  # (N,)
    chunk = chunk or chunk_rows(features.shape[0], weight.shape[0], features.is_cuda)
    if shares is not None:
        shares = shares.flatten()  # (N,)

    for name, values in (("targets", targets), ("shares", shares)):
        if values is not None and len(values) != len(features):
            raise ValueError(
                f"{name}: expected {len(features)}, one for each position, not {len(values)}"
            )

    if fp8 and fp8_loss.supports(features, weight, bias, shares):
        return fp8_loss.fp8_loss_sum(features, weight, targets, smoothing, chunk)

    return ChunkedLoss.apply(features, weight, bias, targets, smoothing, chunk, shares)


def chunk_rows(N: int, V: int, gpu: bool) -> int:
    """Rows per chunk: all if their logits are few, else enough for efficient matrix products.

    A tensor that is chunked is cut into two chunks at least.
    """
    if N * V <= CHUNK_LOGITS:
        return max(1, N)

    most = CHUNK_LOGITS // V
    if gpu:
        most = min(GPU_CHUNK_ROWS, GPU_CHUNK_LOGITS // V)

    return min(max(1, most), -(-N // 2))


class ChunkedLoss(torch.autograd.Function):
    """The gradients are computed in the forward pass, chunk by chunk, and scaled in backward."""

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
        W = padded_rows(weight.to(features.dtype))  # (P, E): P is V, or a little more

        # Where the gradients and the loss are accumulated
        needs_features, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        weight_dtype = torch.promote_types(weight.dtype, torch.float32)
        loss_dtype = torch.promote_types(features.dtype, torch.float32)
        total = torch.zeros((), dtype=loss_dtype, device=features.device)
        d_features: Tensor | None = None
        d_weight: Tensor | None = None
        d_bias: Tensor | None = None
        if needs_features:
            d_features = torch.empty_like(features)
        if bias is not None and needs_bias:
            d_bias = torch.zeros_like(bias, dtype=weight_dtype)

        for start in range(0, features.shape[0], chunk):
            part = slice(start, start + chunk)
            logits = product(features[part], W.t())  # (n, P)
            if bias is not None:
                logits[:, :V] += bias.to(features.dtype)

            part_shares = None
            if shares is not None:
                part_shares = shares[part]

            total += softmax_loss_(logits, V, targets[part], smoothing, part_shares)
            slope = logits  # overwritten: the derivative of the loss for each logit

            if d_features is not None:
                product(slope, W, out=d_features[part])
            if needs_weight:
                d_weight = add_product(d_weight, slope.T, features[part], weight_dtype)
            if d_bias is not None:
                d_bias += slope[:, :V].sum(0, dtype=weight_dtype)

        if d_weight is not None:
            d_weight = d_weight[:V]

        ctx.save_for_backward(d_features, d_weight, d_bias)
        ctx.dtype = weight.dtype

        return total

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        d_features, d_weight, d_bias = ctx.saved_tensors
        scale = upstream[0]
        if d_features is not None:
            d_features = d_features * scale.to(d_features.dtype)
        if d_weight is not None:
            d_weight = (d_weight * scale).to(ctx.dtype)
        if d_bias is not None:
            d_bias = (d_bias * scale).to(ctx.dtype)

        return d_features, d_weight, d_bias, None, None, None, None


def softmax_loss_(
    logits: Float[Tensor, "N P"],
    V: int,
    targets: Int[Tensor, "N"],
    smoothing: float,
    shares: Float[Tensor, "N"] | None = None,
) -> Float[Tensor, ""]:
    """Summed loss of the first V columns; overwrites the logits with its derivative (0 beyond V).

    This is the definition; fused kernels compute the same on a GPU and on a CPU.
    """
    if fused_loss.supports(logits):
        return fused_loss.softmax_loss_(logits, V, targets, smoothing, shares)
    if native_loss.supports(logits, V, targets, shares):
        return native_loss.softmax_loss_(logits, targets, smoothing, shares)

    # The largest probability of each row gives all logarithms: exp of log_softmax would be 70 times
    # slower on a CPU where it underflows
    has_target = targets != IGNORE
    target = targets.where(has_target, 0).unsqueeze(1)  # (N, 1)
    dtype = torch.promote_types(logits.dtype, torch.float32)
    scores = logits[:, :V].to(dtype)
    probability = scores.softmax(dim=1)  # (N, V)
    highest = scores.amax(dim=1, keepdim=True)  # (N, 1)
    log_highest = probability.amax(dim=1, keepdim=True).log()

    # The loss of each row
    loss = -(1 - smoothing) * (scores.gather(1, target) - highest + log_highest)
    if smoothing:
        loss -= smoothing * (scores.mean(dim=1, keepdim=True) - highest + log_highest)

    # How much each row counts
    row_weight = has_target.to(dtype).unsqueeze(1)  # (N, 1)
    if shares is not None:
        row_weight = row_weight * shares.to(dtype).unsqueeze(1)

    # The derivative: softmax minus the smoothed target distribution
    slope = probability
    if smoothing:
        slope -= smoothing / V
    slope.scatter_add_(1, target, slope.new_full(target.shape, -(1 - smoothing)))
    torch.mul(slope, row_weight, out=logits[:, :V])
    logits[:, V:] = 0

    return (loss * row_weight).sum()


def padded_rows(weight: Float[Tensor, "V E"], multiple: int = 128) -> Float[Tensor, "P E"]:
    """On a GPU, pad with rows of zeros: matrix products of a width like 50,257 are slow there."""
    missing = -weight.shape[0] % multiple
    if not weight.is_cuda or not missing:
        return weight

    return F.pad(weight, (0, 0, 0, missing))


def add_product(total: Tensor | None, a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """total + a @ b in a dtype that may be more precise than that of a and b; updates the total."""
    if a.dtype != dtype and a.is_cuda:
        if total is None:
            return torch.mm(a, b, out_dtype=dtype)

        return torch.addmm(total, a, b, out_dtype=dtype, out=total)

    if total is None:
        return product(a, b).to(dtype)
    if a.dtype == dtype and not onednn_product.supports(a, b.t()):
        return total.addmm_(a, b)

    return total.add_(product(a, b))
