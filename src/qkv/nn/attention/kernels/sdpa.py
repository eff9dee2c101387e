"""A substitute for the eager equation: PyTorch's scaled_dot_product_attention."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from qkv.nn.attention.bias import Bias
from qkv.nn.attention.mask import Causal, Mask


def attend(
    query: Float[Tensor, "B H T D"],
    key: Float[Tensor, "B K S D"],
    value: Float[Tensor, "B K S X"],
    mask: Mask | None,
    bias: Bias | None,
    scale: float,
    dropout: float,
) -> Float[Tensor, "B H T X"]:
    """A causal mask stays a description; any other becomes a matrix."""
    T, S = query.shape[-2], key.shape[-2]
    if isinstance(mask, Causal) and T == 1:
        mask = None  # the last position sees all

    causal = isinstance(mask, Causal) and T == S and bias is None
    allowed = None if mask is None or causal else mask.materialise(T, S, query.device)
    added = None if bias is None else bias.materialise(T, S, query)

    return with_matrices(query, key, value, allowed, added, scale, dropout, causal)


def with_matrices(
    query: Float[Tensor, "B H T D"],
    key: Float[Tensor, "B K S D"],
    value: Float[Tensor, "B K S X"],
    allowed: Bool[Tensor, "#B #H T S"] | None,
    added: Float[Tensor, "#B #H T S"] | None,
    scale: float,
    dropout: float,
    causal: bool = False,
) -> Float[Tensor, "B H T X"]:
    matrix = (
        allowed
        if added is None
        else added
        if allowed is None
        else added.masked_fill(~allowed, -math.inf)
    )

    nowhere = None
    if (
        matrix is not None and query.is_cuda
    ):  # its kernels do not all give zeros to a query that may look nowhere
        nowhere = (~matrix if matrix.dtype == torch.bool else matrix.isneginf()).all(
            -1, keepdim=True
        )  # (B, H, T, 1)
        matrix = matrix.masked_fill(nowhere, 1)

    gqa = query.shape[1] != key.shape[1]
    output = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=matrix,
        dropout_p=dropout,
        is_causal=causal,
        scale=scale,
        enable_gqa=gqa,
    )

    return output if nowhere is None else output.masked_fill(nowhere, 0)
