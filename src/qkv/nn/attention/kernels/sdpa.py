"""PyTorch's scaled_dot_product_attention (SDPA: flash and memory-efficient kernels)."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from qkv.nn.attention.kernels.table import AttentionCall, register_kernel
from qkv.nn.attention.mask import Causal, Mask

SHORT = 64
"""Positions of one tile of the memory-efficient kernel; the flash kernel pads rows to 128."""
ALIGNED = 8
"""Numbers to whose multiple the rows of a matrix are aligned."""


class CudnnSetting:
    """PyTorch's one setting for cuDNN's attention, and how many blocks run without it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.blocks = 0
        self.before = True
        """The setting before the first of these blocks."""


cudnn_setting = CudnnSetting()


@contextmanager
def without_cudnn_attention() -> Iterator[None]:
    """Leave out cuDNN's attention, which plans for 80 ms or more whenever a shape is new.

    The setting is that of the whole process. The last of several blocks restores it.
    """
    setting = cudnn_setting
    with setting.lock:
        if not setting.blocks:
            setting.before = torch.backends.cuda.cudnn_sdp_enabled()
            torch.backends.cuda.enable_cudnn_sdp(False)

        setting.blocks += 1

    try:
        yield
    finally:
        with setting.lock:
            setting.blocks -= 1
            if not setting.blocks:
                torch.backends.cuda.enable_cudnn_sdp(setting.before)


def run(call: AttentionCall) -> Float[Tensor, "B H T X"]:
    """A causal mask stays a description, except of short rows in training; others are a matrix."""
    query, key, value, mask, bias, scale, dropout = call
    T = query.shape[-2]
    S = key.shape[-2]
    if isinstance(mask, Causal) and T == 1:
        mask = None  # the last position sees everything

    causal = isinstance(mask, Causal) and T == S and bias is None
    described = causal and T > SHORT
    if mask is not None and not described and bias is None and shares_matrix(query):
        matrix, keyless = shared_matrix(mask, T, S, query)
        return attend_with_matrix(query, key, value, matrix, keyless, scale, dropout)

    allowed = None
    if mask is not None and not causal:
        allowed = mask.materialise(T, S, query.device)

    added = None if bias is None else bias.materialise(T, S, query)
    return attend_with_matrices(query, key, value, allowed, added, scale, dropout, causal)


def shares_matrix(query: Tensor) -> bool:
    """Whether the layers share a mask's matrix: in training on a GPU, where each kernel counts."""
    return query.is_cuda and torch.is_grad_enabled() and not torch.compiler.is_compiling()


def shared_matrix(mask: Mask, T: int, S: int, query: Tensor) -> tuple[Tensor, Tensor]:
    """What SDPA adds to the scores for a mask, and which queries have no key.

    A mask is made for one pass through the model, so all layers of the pass find it here; it is
    made anew where a tensor of the mask was changed in place. Rows of the matrix are aligned, as
    the memory-efficient kernel wants them.
    """
    known = mask.__dict__.setdefault("sdpa_matrices", {})
    # Memory made during capture belongs to the CUDA graph.
    captured = query.is_cuda and torch.cuda.is_current_stream_capturing()
    name = (T, S, query.device, query.dtype, versions(mask), captured)
    if name not in known:
        known.clear()  # a mask that lives longer than a pass keeps one matrix
        allowed = mask.materialise(T, S, query.device)  # (B, H, T, S)
        keyless = without_keys(allowed)  # (B, H, T, 1)
        matrix = query.new_zeros(*allowed.shape[:-1], -(-S // ALIGNED) * ALIGNED)[..., :S]
        matrix.masked_fill_(~(allowed | keyless), -math.inf)
        known[name] = (matrix, keyless)

    return known[name]


def versions(mask: Mask) -> tuple[int, ...]:
    """How often each tensor of a mask was changed in place."""
    counts: list[int] = []
    for part in mask.members:
        for value in vars(part).values():
            if isinstance(value, Tensor) and not value.is_inference():
                counts.append(value._version)

    return tuple(counts)


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

    return attend_with_matrix(query, key, value, matrix, keyless, scale, dropout, causal)


def attend_with_matrix(
    query: Float[Tensor, "B H T D"],
    key: Float[Tensor, "B K S D"],
    value: Float[Tensor, "B K S X"],
    matrix: Tensor | None,
    keyless: Bool[Tensor, "#B #H T 1"] | None,
    scale: float,
    dropout: float,
    causal: bool = False,
) -> Float[Tensor, "B H T X"]:
    """SDPA with its attn_mask; queries without keys get zeros."""
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
