"""PyTorch's scaled_dot_product_attention (SDPA: flash and memory-efficient kernels)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from qkv.nn.attention.kernels.table import AttentionCall, register_kernel
from qkv.nn.attention.mask import Causal


def run(call: AttentionCall) -> Float[Tensor, "B H T X"]:
    """A causal mask stays a description; any other becomes a matrix."""
    query, key, value, mask, bias, scale, dropout = call
    T = query.shape[-2]
    S = key.shape[-2]
    if isinstance(mask, Causal) and T == 1:
        mask = None  # the last position sees everything

    causal = isinstance(mask, Causal) and T == S and bias is None
    allowed = None
    if mask is not None and not causal:
        allowed = mask.materialise(T, S, query.device)

    added = None if bias is None else bias.materialise(T, S, query)
    return attend_with_matrices(query, key, value, allowed, added, scale, dropout, causal)


def attend_with_matrices(
    query: Float[Tensor, "B H T D"],
    key: Float[Tensor, "B K S D"],
    value: Float[Tensor, "B K S X"],
    allowed: Bool[Tensor, "#B #H T S"] | None,
    added: Float[Tensor, "#B #H T S"] | None,
    scale: float,
    dropout: float,
    causal: bool = False,
) -> Float[Tensor, "B H T X"]:
    """SDPA with a bool matrix of allowed pairs, a matrix of added numbers, both or neither."""
    matrix = combine(allowed, added)
    keyless = None
    if matrix is not None and query.is_cuda:
        # Not all CUDA kernels give zeros to a query without keys: let it attend, then clear it.
        keyless = without_keys(matrix)  # (B, H, T, 1)
        matrix = matrix.masked_fill(keyless, 1)

    output = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=matrix,
        dropout_p=dropout,
        is_causal=causal,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )

    if keyless is not None:
        output = output.masked_fill(keyless, 0)

    return output


def combine(allowed: Tensor | None, added: Tensor | None) -> Tensor | None:
    """The attn_mask of SDPA: -inf where a pair is not allowed."""
    if added is None:
        return allowed
    if allowed is None:
        return added

    return added.masked_fill(~allowed, -math.inf)


def without_keys(matrix: Tensor) -> Bool[Tensor, "B H T 1"]:
    """The queries that may attend to no key."""
    hidden = ~matrix if matrix.dtype == torch.bool else matrix.isneginf()
    return hidden.all(-1, keepdim=True)


register_kernel("sdpa", lambda call: True, run, rank=40)
