"""Which source word each target word looked at: a translator's cross-attention."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkv.generation.generate import without_dropout
from qkv.insight.inspect.hook_checks import capture_required
from qkv.models import RNN, Transformer


def alignment(
    model: Transformer | RNN,
    source: Int[Tensor, "1 S"],
    target: Int[Tensor, "1 T"],
    *,
    start: int,
    layer: int | None = None,
) -> Float[Tensor, "T S"]:
    """The weights with which each target word was chosen; a row sums to 1.

    `target` is what was said, without the start id. Word t is chosen at the place that reads word t
    - 1, the first one at the start id: row t has the weights of that place. A Transformer's are the
    mean over the heads of its decoder's layers, or of the one `layer`, counted from 0 (or, from the
    last, -1).
    """
    for name, ids in (("source", source), ("target", target)):
        if ids.dim() != 2 or ids.shape[0] != 1 or ids.shape[1] == 0:
            raise ValueError(
                f"{name}: expected one row of one word or more, not {tuple(ids.shape)}"
            )

    read = torch.cat([target.new_full((1, 1), start), target[:, :-1]], dim=1)  # (1, T)
    if isinstance(model, RNN):
        if model.config.attention == "none":
            raise ValueError(
                "attention: this RNN has none, so none of its words looked at any other"
            )
        if layer is not None:
            raise ValueError("layer: an RNN looks at its source in one place; leave it out")

        points = ["weights"]
    else:
        points = [
            f"decoder.blocks.{each}.cross_attention.weights"
            for each in range(len(model.decoder.blocks))
        ]

    with torch.no_grad(), without_dropout(model), capture_required(model, points) as seen:
        model(source, read)

    if isinstance(model, RNN):
        return torch.cat(seen.every["weights"], dim=-2).reshape(target.shape[1], source.shape[1])

    layers = [weights[0] for weights in seen.values()]  # (H, T, S) each
    if layer is not None and not -len(layers) <= layer < len(layers):
        raise ValueError(f"layer: expected 0 to {len(layers) - 1}, or -1 for the last, not {layer}")

    chosen = layers if layer is None else [layers[layer]]

    return torch.cat(chosen).mean(0)  # (H, T, S) each -> (T, S)
