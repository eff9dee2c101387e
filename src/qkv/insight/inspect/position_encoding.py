"""The positional encoding of a model as a table, and the similarity of positions by distance."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from qkv.models.model import Model, backbone_of
from qkv.models.variants.own_gpt import OwnGPT
from qkv.nn.attention.relative import RelativePosition
from qkv.nn.position import Sinusoidal, alibi_slopes, rotary_angles, sinusoidal

POSITIONS = 256
"""Number of positions in the table; fewer if the model has fewer."""


class PositionTable(NamedTuple):
    """The positional encoding of a model."""

    kind: str
    table: Float[Tensor, "P N"]
    """A row for each position: the vector added to the token's embedding, or the cosines of the
    rotary angles. If only distances matter (ALiBi, relative), a row for each distance."""
    columns: str
    """What a column of the table is."""
    by_distance: Float[Tensor, "L P"]
    """Similarity of two positions by their distance: one line for the model, or one for each
    head."""
    likeness: str
    """What the similarity measures."""


def position_encoding(model: Model, positions: int = POSITIONS) -> PositionTable:
    """The positional encoding of a model; raises if it has none.

    An RNN has none, nor has a model with position="none".
    """
    backbone = backbone_of(model)
    if not backbone.stacks:
        raise ValueError(
            "position: an RNN reads one token after the other and has no positional encoding"
        )

    config = backbone.config
    if config.position == "none":
        raise ValueError(
            "position: this model has no positional encoding; qkv probe --target position "
            "measures what its layers know of positions"
        )

    with torch.no_grad():
        if config.position in ("learned", "sinusoidal"):
            return absolute_encoding(backbone, positions)

        distance = torch.arange(positions)
        if config.position == "rotary":
            return rotary_encoding(backbone, distance)
        if config.position == "alibi":
            bias = -alibi_slopes(config.heads).unsqueeze(1) * distance  # (H, P)
            return PositionTable("alibi", bias.T, "head", bias, "number added to the score")

        first = next(part for part in backbone.modules() if isinstance(part, RelativePosition))
        return relative_encoding(first, distance)


def absolute_encoding(backbone: Model, positions: int) -> PositionTable:
    """Learned or sinusoidal vectors, with their mean cosine similarity by distance."""
    embedding = backbone.stack if isinstance(backbone, OwnGPT) else backbone.embedding
    module = getattr(embedding, "position", None)
    if not isinstance(module, nn.Embedding | Sinusoidal):
        raise ValueError("position: this model keeps no table self.position that could be shown")
    if isinstance(module, nn.Embedding):
        positions = min(positions, backbone.config.context)

    numbers = torch.arange(positions, device=next(backbone.parameters()).device)
    table = module(numbers).float().cpu()  # (P, E)
    similarity = cosine_by_distance(table).unsqueeze(0)

    return PositionTable(
        backbone.config.position, table, "dimension", similarity, "cosine similarity"
    )


def rotary_encoding(backbone: Model, distance: Int[Tensor, "P"]) -> PositionTable:
    """The cosines of the rotary angles; their mean is the similarity."""
    config = backbone.config
    width = config.width_of_head
    cosine = rotary_angles(distance.unsqueeze(0), width, config.rotary_base, config.rotary_scaling)
    # Dimension i + D/2 turns with dimension i, so half of the columns are enough.
    table = cosine[0, 0, 0, :, : width // 2]  # (P, D / 2)
    similarity = table.mean(1).unsqueeze(0)
    meaning = "similarity of a vector to itself, turned"

    return PositionTable("rotary", table, "pair of dimensions", similarity, meaning)


def relative_encoding(part: RelativePosition, distance: Int[Tensor, "P"]) -> PositionTable:
    """Transformer-XL's v.r_d of the first layer: what a distance adds to every score, by head."""
    waves = sinusoidal(distance, part.width, "halves").to(part.r.weight)  # (P, E)
    heads, _, D = part.v.shape
    r = part.r(waves).view(-1, heads, D)  # (P, H, D)
    bias = ((r * part.v.squeeze(1)).sum(-1) / D**0.5).float().cpu()  # (P, H)

    return PositionTable("relative", bias, "head", bias.T, "number added to the score")


def cosine_by_distance(table: Float[Tensor, "P N"]) -> Float[Tensor, "P"]:
    """Mean cosine similarity of all pairs of positions at each distance."""
    unit = torch.nn.functional.normalize(table.double(), dim=-1)
    similarity = unit @ unit.T  # (P, P)
    return torch.stack([similarity.diagonal(apart).mean() for apart in range(len(table))]).float()
