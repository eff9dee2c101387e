"""Alignment of a translation: which source tokens each target token attends to."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkv.generation.generate import without_dropout
from qkv.insight.inspect.hook_checks import capture_required
from qkv.models import RNN, Transformer
from qkv.models.sites import attention_sites


def alignment(
    model: Transformer | RNN,
    source: Int[Tensor, "1 S"],
    target: Int[Tensor, "1 T"],
    *,
    start: int,
    layer: int | None = None,
) -> Float[Tensor, "T S"]:
    """The cross-attention weights with which each target token was predicted.

    Row t belongs to target token t. It is the attention at the position that reads token t - 1,
    for the first token the start token. A Transformer's weights are averaged over heads and layers.

    Args:
        model: The translator.
        source: One row of source ids.
        target: One row of target ids without the start id.
        start: The id of the start token.
        layer: Use this decoder layer alone, counted from 0 (or back from -1).

    Returns:
        The weights; each row sums to 1.

    Raises:
        ValueError: If the ids are not one row, or the model has no such layer or no attention.

    Example:
        >>> import torch
        >>> from qkv.insight import alignment
        >>> from qkv.models import Transformer, TransformerConfig
        >>> model = Transformer(TransformerConfig(vocabulary=9, width=8, heads=2, depth=1))
        >>> source, target = torch.tensor([[3, 4, 5]]), torch.tensor([[6, 7]])
        >>> alignment(model, source, target, start=1).shape
        torch.Size([2, 3])
    """
    for name, ids in (("source", source), ("target", target)):
        if ids.dim() != 2 or ids.shape[0] != 1 or ids.shape[1] == 0:
            raise ValueError(
                f"{name}: expected one row of one token or more, not {tuple(ids.shape)}"
            )

    decoder_input = torch.cat([target.new_full((1, 1), start), target[:, :-1]], dim=1)  # (1, T)
    site = attention_sites(model)[-1]
    if layer is not None and not site.stack:
        raise ValueError("layer: an RNN attends to its source in one layer; leave it out")
    if layer is not None and not -site.depth <= layer < site.depth:
        raise ValueError(f"layer: expected 0 to {site.depth - 1}, or -1 for the last, not {layer}")

    points = [site.hook_point(number, "weights") for number in range(site.depth)]
    with torch.no_grad(), without_dropout(model), capture_required(model, points) as captured:
        model(source, decoder_input)

    # An RNN attends once for each target token, a Transformer once for all.
    heads = [torch.cat(captured.every[point], dim=-2)[0] for point in points]  # (H, T, S) each
    if layer is not None:
        heads = [heads[layer]]

    return torch.cat(heads).mean(0)  # (T, S)
