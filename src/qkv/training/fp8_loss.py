"""The output layer and its loss in FP8 on a GPU: `loss.ChunkedLoss` with 8-bit matrix products.

Logits are computed and stored for one chunk at a time, as there. Their derivative lies between -1
and 1, so that its scale is known in advance. It is written in FP8 by rows, for the gradient of the
features, and by columns, for the gradient of the weight, which is one product over all chunks.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from qkv.data.batches.batch import IGNORE
from qkv.models.model import Model
from qkv.nn.fused.fp8 import (
    ALIGNMENT,
    E4M3,
    E5M2,
    Fp8Tensor,
    product,
    quantised,
    rounded_up,
    scale_of,
)
from qkv.training import fused_loss

try:
    import triton
    import triton.language as tl
except ImportError:  # PyTorch brings it along only where there is a GPU to use it
    triton = None

SLOPE_SCALE = 2.0**-15
"""A derivative of 1 becomes 32,768, below e5m2's largest number; the smallest is 2^-31."""
TILE = {"ROWS": 64, "COLUMNS": 64, "num_warps": 4}
MULTIPLE = 128
"""The vocabulary is padded to a multiple of this with rows of zeros."""


def check_model(model: Model) -> None:
    """Raise if the output layer of a model cannot be computed in FP8."""
    weight, bias = model.output_layer
    if model.predicts != "next" or bias is not None:
        raise ValueError("fp8: expected a gpt, whose output layer has no bias; leave it out")

    width = weight.shape[1]
    if width % ALIGNMENT:
        above = rounded_up(width)
        choices = [str(size) for size in (above - ALIGNMENT, above) if size]
        raise ValueError(
            f"fp8: expected a width that is a multiple of {ALIGNMENT}, not {width}; "
            f"choose {' or '.join(choices)}, or leave fp8 out"
        )


def supports(features: Tensor, weight: Tensor, bias: Tensor | None, shares: Tensor | None) -> bool:
    """True for the training of an output layer without bias, in half precision on a GPU."""
    if triton is None or not features.is_cuda or features.dtype.itemsize != 2:
        return False
    if bias is not None or shares is not None or not torch.is_grad_enabled():
        return False
    if not len(features):
        return False

    if features.shape[1] % ALIGNMENT:
        return False

    return features.requires_grad and weight.requires_grad


def fp8_loss_sum(
    features: Float[Tensor, "N E"],
    weight: Float[Tensor, "V E"],
    targets: Int[Tensor, "N"],
    smoothing: float,
    chunk: int,
) -> Float[Tensor, ""]:
    """The loss of `loss.loss_sum`; positions without a target fill the last product."""
    N = features.shape[0]
    missing = rounded_up(N) - N
    if missing:
        features = F.pad(features, (0, 0, 0, missing))  # (N + missing, E)
        targets = F.pad(targets, (0, missing), value=IGNORE)  # (N + missing,)

    loss: Tensor = Fp8Loss.apply(features, weight, targets, smoothing, rounded_up(chunk))
    return loss


class Fp8Loss(torch.autograd.Function):
    """The gradients are computed in the forward pass, and scaled in backward."""

    @staticmethod
    def forward(
        ctx: Any,
        features: Float[Tensor, "N E"],
        weight: Float[Tensor, "V E"],
        targets: Int[Tensor, "N"],
        smoothing: float,
        chunk: int,
    ) -> Float[Tensor, ""]:
        N = features.shape[0]
        V = weight.shape[0]
        W = quantised_rows(weight)  # (P, E)
        W_columns = W.transposed()  # (E, P)
        x = quantised(features)  # (N, E)

        # Chunk by chunk: logits, their derivative, the gradient of the features
        P = W.values.shape[0]
        columns = torch.empty(P, N, dtype=E5M2, device=features.device)
        d_features = torch.empty_like(features)
        total = torch.zeros((), device=features.device)
        for start in range(0, N, chunk):
            part = slice(start, start + chunk)
            logits = product(Fp8Tensor(x.values[part], x.scale), W, features.dtype)  # (n, P)
            losses, slope = loss_and_slope(logits, V, targets[part], smoothing, columns[:, part])
            total += losses.sum()
            d_features[part] = product(slope, W_columns, features.dtype, fast=False)

        # All chunks: the gradient of the weight
        slope_columns = Fp8Tensor(columns, slope.scale)
        d_weight = product(slope_columns, x.transposed(), torch.float32, fast=False)[:V]
        ctx.save_for_backward(d_features, d_weight)

        return total

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        d_features, d_weight = ctx.saved_tensors
        scale = upstream[0]
        return d_features * scale.to(d_features.dtype), d_weight * scale, None, None, None


def quantised_rows(weight: Float[Tensor, "V E"]) -> Fp8Tensor:
    """The weight in FP8, padded with rows of zeros."""
    V, E = weight.shape
    P = -(-V // MULTIPLE) * MULTIPLE
    values = torch.zeros(P, E, dtype=E4M3, device=weight.device)
    scale = scale_of(weight)
    values[:V] = quantised(weight, scale=scale).values

    return Fp8Tensor(values, scale)


def loss_and_slope(
    logits: Float[Tensor, "n P"],
    V: int,
    targets: Int[Tensor, "n"],
    smoothing: float,
    columns: Tensor,
) -> tuple[Float[Tensor, "n"], Fp8Tensor]:
    """The loss of every row, and its derivative by rows; `columns` receives it by columns."""
    n, P = logits.shape
    log_totals = torch.empty(n, dtype=torch.float32, device=logits.device)
    losses = fused_loss.losses_of_rows(logits, V, targets, smoothing, log_totals=log_totals)
    rows = torch.empty(n, P, dtype=E5M2, device=logits.device)
    grid = (triton.cdiv(n, TILE["ROWS"]), triton.cdiv(P, TILE["COLUMNS"]))
    slopes_of_tile[grid](
        logits, targets, log_totals, rows, columns, n, P, V, columns.stride(0),
        smoothing, 1 / SLOPE_SCALE, IGNORE, **TILE,
    )  # fmt: skip
    scale = torch.full((), SLOPE_SCALE, device=logits.device)

    return losses, Fp8Tensor(rows, scale)


if triton is not None:
    LOG2_E = tl.constexpr(1.4426950408889634)

    @triton.jit
    def slopes_of_tile(  # type: ignore[no-untyped-def]
        logits, targets, log_totals, by_rows, by_columns, n, P, V, stride, smoothing, factor,
        ignore, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        """A tile of softmax minus target distribution, times a factor, in both layouts."""
        # 64-bit numbers only for where the tile begins
        first_row = tl.program_id(0) * ROWS
        first_column = tl.program_id(1) * COLUMNS
        r = tl.arange(0, ROWS)
        c = tl.arange(0, COLUMNS)
        column = first_column + c
        is_row = first_row + r < n
        at = r[:, None] * P + c[None, :]
        begin = first_row.to(tl.int64) * P + first_column
        inside = is_row[:, None] & (column < P)[None, :]
        target = tl.load(targets + first_row + r, mask=is_row, other=ignore).to(tl.int32)
        log_total = tl.load(log_totals + first_row + r, mask=is_row, other=0.0)

        # Softmax minus the smoothed target distribution; 0 beyond V and without a target
        x = tl.load(logits + begin + at, mask=inside, other=0.0).to(tl.float32)
        slope = tl.exp2((x - log_total[:, None]) * LOG2_E) - smoothing / V
        slope -= tl.where(column[None, :] == target[:, None], 1 - smoothing, 0.0)
        counts = (target != ignore)[:, None] & (column < V)[None, :]
        slope = tl.where(counts, slope * factor, 0.0).to(by_rows.dtype.element_ty)

        tl.store(by_rows + begin + at, slope, mask=inside)
        begin = first_column.to(tl.int64) * stride + first_row
        at = c[:, None] * stride + r[None, :]
        tl.store(by_columns + begin + at, tl.trans(slope), mask=tl.trans(inside))
