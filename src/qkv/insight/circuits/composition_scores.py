"""Composition of heads: how much of what one head writes a later head reads.

The score of an earlier head a and a later head b is a ratio of Frobenius norms (Elhage et al.
2021): |W_OV(b) W_OV(a)| / (|W_OV(b)| |W_OV(a)|) for values, and the same with W_QK(b) for keys and
with its transpose for queries. An induction head and the previous-token head before it stand out in
the composition of keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.insight.attribute.residual_writers import pre_norm_stack
from qkv.insight.circuits.head_matrices import HeadMatrices, circuit_site, head_matrices
from qkv.models.model import Model, backbone_of

Composed = Literal["query", "key", "value"]


class Composition(NamedTuple):
    """One pair of heads."""

    writer: tuple[int, int]
    """Layer and number of the earlier head."""
    reader: tuple[int, int]
    """Layer and number of the later head."""
    score: float


class CompositionScores(NamedTuple):
    """Scores from 0 to 1 by earlier layer and head, later layer and head; 0 if not earlier."""

    kind: str
    query: Float[Tensor, "L H L H"]
    key: Float[Tensor, "L H L H"]
    value: Float[Tensor, "L H L H"]
    random: float
    """The score of two heads that have nothing to do with each other: 1 / sqrt(E)."""

    def strongest(
        self, through: Composed, count: int, head: tuple[int, int] | None = None
    ) -> list[Composition]:
        """The pairs with the largest scores, of all heads or with this one in it."""
        scores = getattr(self, through)
        _, H, _, _ = scores.shape
        chosen = scores.flatten(2).flatten(0, 1)  # (L H, L H)
        if head is not None:
            number = head[0] * H + head[1]
            only = torch.zeros_like(chosen)
            only[number] = chosen[number]
            only[:, number] = chosen[:, number]
            chosen = only

        best, places = chosen.flatten().topk(min(count, chosen.numel()))
        found = []
        for score, place in zip(best.tolist(), places.tolist(), strict=True):
            writer, reader = divmod(place, len(chosen))
            if score > 0:
                found.append(Composition(divmod(writer, H), divmod(reader, H), score))

        return found


@torch.no_grad()
def composition_scores(
    model: Model,
    kind: str | None = None,
    *,
    layer: int | None = None,
    advance: Callable[[int, int], object] = lambda *_: None,
) -> CompositionScores:
    """How strongly the heads of a stack are connected through queries, keys and values.

    Args:
        model: A GPT or a translator with norms before its sublayers.
        kind: For a translator: encoder or decoder (the default).
        layer: Measure only the pairs with a head of this layer; the others stay 0.
        advance: Called with the number of pairs of layers that are done, and with that of all.

    Returns:
        A score for each pair of an earlier and a later head, from the weights alone.

    Raises:
        ValueError: If the model is post-norm or an RNN, the kind is not self-attention, or there
            is no such layer.

    Example:
        >>> from qkv import insight, models
        >>> model = models.GPT(models.GPTConfig(vocabulary=9, width=8, heads=2, depth=2))
        >>> scores = insight.composition_scores(model)
        >>> scores.key.shape, len(scores.strongest("key", 10))
        (torch.Size([2, 2, 2, 2]), 4)
    """
    pre_norm_stack(backbone_of(model), "composition")
    site = circuit_site(model, kind)
    if site.kind == "cross":
        raise ValueError(
            "kind: cross-attention reads keys and values of the encoder, not of earlier heads; "
            "expected encoder or decoder"
        )

    L, H = site.depth, site.heads
    if layer is not None and not 0 <= layer < L:
        raise ValueError(f"layer: expected 0 to {L - 1}, not {layer}")

    layers = [head_matrices(model, layer, site.kind) for layer in range(L)]
    E = layers[0].output.shape[1]
    scores = {name: torch.zeros(L, H, L, H) for name in ("query", "key", "value")}
    pairs = [pair for pair in combinations(range(L), 2) if layer is None or layer in pair]
    for done, (earlier, later) in enumerate(pairs, start=1):
        found = layer_scores(layers[earlier], layers[later])
        for name, values in zip(scores, found, strict=True):
            scores[name][earlier, :, later] = values.cpu()

        advance(done, len(pairs))

    return CompositionScores(site.kind, **scores, random=1 / math.sqrt(E))


def layer_scores(
    earlier: HeadMatrices, later: HeadMatrices
) -> tuple[Float[Tensor, "H G"], Float[Tensor, "H G"], Float[Tensor, "H G"]]:
    """Query, key and value composition of the heads of two layers."""
    writers = (earlier.output, earlier.value)
    return (
        frobenius_ratios(later.key.mT, later.query, *writers),
        frobenius_ratios(later.query.mT, later.key, *writers),
        frobenius_ratios(later.output, later.value, *writers),
    )


def frobenius_ratios(
    left: Float[Tensor, "G E D"],
    reads: Float[Tensor, "G D E"],
    writes: Float[Tensor, "H E D"],
    right: Float[Tensor, "H D E"],
) -> Float[Tensor, "H G"]:
    """|A B| / (|A| |B|) for A = left @ reads of each later and B = writes @ right of each earlier.

    No E x E matrix is made: |U X V|^2 is the sum of (X V V^T X^T) * (U^T U), which are D x D.
    """
    between = torch.einsum("gde,hef->hgdf", reads, writes)  # (H, G, D, D)
    gram_left = left.mT @ left  # (G, D, D)
    gram_right = right @ right.mT  # (H, D, D)
    squares = (between @ gram_right.unsqueeze(1) @ between.mT * gram_left).sum((-2, -1))  # (H, G)
    later = (reads @ reads.mT * gram_left).sum((-2, -1))  # (G,)
    earlier = (writes.mT @ writes * gram_right).sum((-2, -1))  # (H,)
    sizes = earlier.unsqueeze(1) * later

    return (squares.clamp(min=0) / sizes.clamp(min=torch.finfo(sizes.dtype).tiny)).sqrt()
