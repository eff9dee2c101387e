"""The matrices of a head: query, key, value and output, each between residual stream and head.

A head reads the residual stream through a norm. The gain of this norm, and for a layer norm the
subtraction of the mean, are linear and folded into the matrices; its scale depends on the token and
is left out. A post-norm block has no norm there, so nothing is folded.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from qkv.models.model import Model
from qkv.models.sites import AttentionSite, attention_sites, stack_with
from qkv.nn.attention.multi_head import MultiHeadAttention
from qkv.nn.norm import LayerNorm, RMSNorm


class HeadMatrices(NamedTuple):
    """The matrices of all heads of one layer; a shared key or value head is repeated."""

    query: Float[Tensor, "H D E"]
    key: Float[Tensor, "H D E"]
    value: Float[Tensor, "H D E"]
    output: Float[Tensor, "H E D"]

    def qk(self, head: int) -> Float[Tensor, "E E"]:
        """W_QK of a head: the score of two vectors x and y is x W_QK y."""
        return self.query[head].T @ self.key[head]

    def ov(self, head: int) -> Float[Tensor, "E E"]:
        """W_OV of a head: what it writes if it attends to a vector x alone is W_OV x."""
        return self.output[head] @ self.value[head]


def circuit_site(model: Model, kind: str | None = None) -> AttentionSite:
    """The attention of this kind; by default self-attention, or for a translator the decoder's.

    Raises:
        ValueError: If the model is an RNN or has no such attention.
    """
    if not model.stacks:
        raise ValueError("circuits: an RNN has no heads; expected another model")

    sites = {site.kind: site for site in attention_sites(model)}
    if kind is None:
        kind = "decoder" if model.has_source else "self"
    if kind not in sites:
        raise ValueError(f"kind: expected one of {', '.join(sites)}, not {kind!r}")

    return sites[kind]


@torch.no_grad()
def head_matrices(model: Model, layer: int, kind: str | None = None) -> HeadMatrices:
    """The matrices of all heads of a layer.

    Args:
        model: A GPT, a BERT or a translator.
        layer: The layer, from 0.
        kind: For a translator: encoder, decoder (the default) or cross.

    Returns:
        Query, key, value and output matrices with the gain of the norm before them; those of a
        model in half precision are float32.

    Raises:
        ValueError: If there is no such layer or kind of attention.

    Example:
        >>> from qkv import insight, models
        >>> model = models.GPT(models.GPTConfig(vocabulary=9, width=8, heads=2, depth=1))
        >>> matrices = insight.head_matrices(model, 0)
        >>> matrices.value.shape, matrices.ov(1).shape
        (torch.Size([2, 4, 8]), torch.Size([8, 8]))
    """
    site = circuit_site(model, kind)
    if not 0 <= layer < site.depth:
        raise ValueError(f"layer: expected 0 to {site.depth - 1}, not {layer}")

    block = stack_with(model, site.kind).blocks[layer]
    part = "cross_attention" if site.kind == "cross" else "attention"
    attention = checked_attention(getattr(block, part))
    own = norm_before(block, part)
    source = own
    if site.kind == "cross":  # its keys and values come from the encoder, which has its own norm
        source = None
        if model.stacks["encoder"].norm is not None:
            source = model.stacks["encoder"].norm

    H, K, D = attention.heads, attention.kv_heads, attention.head_width
    projected = weight_of(attention.qkv).unflatten(0, (-1, D))  # (H + 2K, D, E)
    query, key, value = projected.split([H, K, K])
    output = weight_of(attention.output).unflatten(1, (H, D)).transpose(0, 1)  # (H, E, D)

    return HeadMatrices(
        folded(query, own),
        folded(key, source).repeat_interleave(H // K, 0),
        folded(value, source).repeat_interleave(H // K, 0),
        output,
    )


def checked_attention(attention: nn.Module) -> MultiHeadAttention:
    """The attention, if its matrices are known."""
    if not isinstance(attention, MultiHeadAttention):
        raise ValueError(
            f"circuits: the matrices of a {type(attention).__name__} are unknown; expected a model "
            "of the package"
        )

    return attention


def norm_before(block: Any, part: str) -> nn.Module | None:
    """The norm through which a sublayer reads the residual stream; None in a post-norm block."""
    residual = getattr(block, f"{part}_residual")
    return residual.norm if residual.before else None


def weight_of(layer: Any) -> Float[Tensor, "N E"]:
    """The matrix that a linear layer multiplies by, with its adapters or its int8 weights."""
    parameter = next(layer.parameters(), None)
    device, dtype = torch.device("cpu"), torch.float32
    if parameter is not None and parameter.is_floating_point():
        device, dtype = parameter.device, parameter.dtype

    rows = torch.eye(layer.in_features, device=device, dtype=dtype)
    columns = layer(rows) - layer(torch.zeros_like(rows[:1]))  # (E, N)

    return columns.T.to(torch.promote_types(dtype, torch.float32)).contiguous()


def folded(matrix: Float[Tensor, "*n D E"], norm: nn.Module | None) -> Float[Tensor, "*n D E"]:
    """A matrix that reads through a norm: times its gain, and without the mean of a layer norm."""
    if norm is None:
        return matrix
    if not isinstance(norm, LayerNorm | RMSNorm):
        raise ValueError(f"norm: expected a layer norm or an RMS norm, not a {type(norm).__name__}")

    scaled = matrix * norm.gain.to(matrix)
    if isinstance(norm, LayerNorm):
        scaled = scaled - scaled.mean(-1, keepdim=True)

    return scaled
