"""Attention as a flow of information: rollout through the layers, and weights times value norms."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.generation.generate import without_dropout
from qkv.insight.attribute.residual_writers import written_by_heads
from qkv.insight.inspect.capture import capture_attention
from qkv.insight.inspect.hook_checks import capture_required
from qkv.insight.inspect.model_input import Reading, hidden
from qkv.models.model import Model
from qkv.models.sites import AttentionSite, attention_sites


def attention_rollout(
    model: Model, reading: Reading, *, kind: str | None = None, residual: float = 0.5
) -> Float[Tensor, "L T T"]:
    """Attention rollout (Abnar and Zuidema, 2020): the attention of all layers multiplied.

    Each layer's matrix is the mean over its heads, mixed with the identity for the residual
    connection; the product of the matrices up to a layer tells which input tokens a position has
    read from, through all tokens between.

    Args:
        model: The model; an RNN has no layers of attention.
        reading: The text, from `read`.
        kind: For a translator encoder (default) or decoder.
        residual: The share of the residual connection, from 0 to 1.

    Returns:
        Row t of layer l: the share of each input token at position t after this layer; it sums to
        1.

    Raises:
        ValueError: If the model has no such attention, or the share is not from 0 to 1.

    Example:
        >>> from qkv import insight, models, text
        >>> tokenizer = text.train("words", ["the cat sat on the mat"], 20)
        >>> model = models.GPT(models.GPTConfig(vocabulary=20, width=8, heads=2, depth=3))
        >>> insight.attention_rollout(model, insight.read(model, tokenizer, "the cat sat")).shape
        torch.Size([3, 3, 3])
    """
    site = self_attention(model, kind)
    if not 0 <= residual <= 1:
        raise ValueError(f"residual: expected 0 to 1, not {residual}")

    by_kind = {found.kind: found for found in capture_attention(model, reading, overview=False)}
    layers = by_kind[site.kind].layers
    result: list[Tensor] = []
    for layer in range(site.depth):
        mean = layers[layer].double().mean(0)  # (T, T)
        mixed = (1 - residual) * mean + residual * torch.eye(len(mean), dtype=mean.dtype)
        mixed = mixed / mixed.sum(-1, keepdim=True)
        if result:
            mixed = mixed @ result[-1]

        result.append(mixed)

    return torch.stack(result).float()


def value_weighted_attention(
    model: Model, reading: Reading, *, kind: str | None = None
) -> dict[int, Float[Tensor, "H T S"]]:
    """Attention weights times the length of what they move: |a_ij| * ||v_j W_O|| for each head.

    A head may look at a token and take nothing from it: the first token often has a large weight
    and a value near zero. Kobayashi et al. (2020) measure the product.

    Args:
        model: The model.
        reading: The text, from `read`.
        kind: For a translator encoder (default), decoder or cross.

    Returns:
        By layer the norms of the vectors that a key's value adds to a query's residual stream.

    Raises:
        ValueError: If the model has no such attention, or hides its values.

    Example:
        >>> from qkv import insight, models, text
        >>> tokenizer = text.train("words", ["the cat sat on the mat"], 20)
        >>> model = models.GPT(models.GPTConfig(vocabulary=20, width=8, heads=2, depth=1))
        >>> reading = insight.read(model, tokenizer, "the cat sat")
        >>> insight.value_weighted_attention(model, reading)[0].shape
        torch.Size([2, 3, 3])
    """
    site = attention_site(model, kind)
    names = []
    for layer in range(site.depth):
        names += [site.hook_point(layer, "weights"), site.hook_point(layer, "value")]

    result: dict[int, Tensor] = {}
    with torch.no_grad(), without_dropout(model):
        with capture_required(model, names) as captured:
            hidden(model, reading)

        for layer in range(site.depth):
            weights = captured[site.hook_point(layer, "weights")][0]  # (H, T, S)
            value = captured[site.hook_point(layer, "value")][0]  # (K, S, D)
            value = value.repeat_interleave(site.heads // len(value), dim=0)  # (H, S, D)
            written, _ = written_by_heads(model.get_submodule(site.point.format(layer)), value)
            moved = weights * written.norm(dim=-1).unsqueeze(1)  # (H, T, S)
            result[layer] = moved.float().cpu()

    return result


def attention_site(model: Model, kind: str | None) -> AttentionSite:
    """The attention site of this kind; by default the first, which reads the text or the source."""
    by_kind = {site.kind: site for site in attention_sites(model)}
    if not model.stacks:
        raise ValueError("model: an RNN has one attention and no layers of heads; expected another")
    if kind is None:
        kind = next(iter(by_kind))

    if kind not in by_kind:
        raise ValueError(f"kind: this model has {', '.join(by_kind)}, not {kind}")

    return by_kind[kind]


def self_attention(model: Model, kind: str | None) -> AttentionSite:
    """The attention site of this kind, which must not be cross-attention."""
    site = attention_site(model, kind)
    if site.kind == "cross":
        raise ValueError("kind: cross-attention has no rollout; expected encoder or decoder")

    return site
