"""Softmax cross-entropy on a CPU by the kernel in C: loss and gradient of logits, in place."""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.data.batches.batch import IGNORE
from qkv.nn.native import native_library


def supports(logits: Tensor, V: int, targets: Tensor, shares: Tensor | None = None) -> bool:
    """True for contiguous float32 logits of V columns in a CPU's memory."""
    if not native_library.in_memory(logits) or logits.shape[1] != V or logits.requires_grad:
        return False

    # The kernel reads as many of them as there are rows
    for values in (targets, shares):
        if values is not None and (not values.is_cpu or values.shape != logits.shape[:1]):
            return False

    return targets.dtype == torch.int64 and native_library.library() is not None


def softmax_loss_(
    logits: Tensor, targets: Tensor, smoothing: float, shares: Tensor | None = None
) -> Tensor:
    """The same as `loss.softmax_loss_`, which defines it.

    Raises:
        IndexError: If a target is not a column of the logits.
    """
    kernels = native_library.library()
    assert kernels is not None
    V = logits.shape[1]
    wrong = (targets != IGNORE) & ((targets < 0) | (targets >= V))
    if wrong.any():
        raise IndexError(f"targets: expected token ids from 0 to {V - 1}")

    if shares is not None:
        shares = shares.float().contiguous()

    return kernels.softmax_loss_(logits, targets.contiguous(), IGNORE, shares, smoothing).sum()
