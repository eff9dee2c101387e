"""How a model tells places apart: its positional encoding as a picture, and how alike two places
are by distance.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from matplotlib.figure import Figure
from rich.console import Console
from rich.text import Text
from torch import Tensor

from qkv.insight.render.figures import figure_style
from qkv.insight.render.terminal_cells import HeatMap
from qkv.models import GPT, RNN
from qkv.models.registry import Model, backbone_of
from qkv.nn.attention.relative import RelativePosition
from qkv.nn.position import Learned, Sinusoidal, alibi_slopes, rotary_angles, sinusoidal

PLACES = 256
"""So many places are shown, or as many as the model knows."""


class Encoding(NamedTuple):
    """The places of a model."""

    kind: str
    table: Float[Tensor, "P N"]
    """A row for each place: the vector that joins the word, the angles' cosines that turn it, or,
    of positions that speak of distances alone, a row for each distance."""
    columns: str
    """What a column of the table is."""
    by_distance: Float[Tensor, "L P"]
    """How alike two places are that are so far apart: a line over all places, or one for each head.
    """
    likeness: str
    """What the number means."""


def encoding(model: Model, places: int = PLACES) -> Encoding:
    """How this model tells places apart; an error where nothing but its mask or its recurrence
    does.
    """
    backbone = backbone_of(model)
    if isinstance(backbone, RNN):
        raise ValueError(
            "position: an RNN reads one word after the other and has no positional encoding"
        )

    config = backbone.config
    if config.position == "none":
        raise ValueError(
            "position: this model has no positional encoding; qkv probe --target position asks it anyway"
        )

    with torch.no_grad():
        if config.position in ("learned", "sinusoidal"):
            part = backbone.embedding.position
            assert isinstance(part, Learned | Sinusoidal)
            known = min(places, config.context) if isinstance(part, Learned) else places
            table = (
                part(torch.arange(known, device=next(backbone.parameters()).device)).float().cpu()
            )  # (P, E)
            return Encoding(
                config.position,
                table,
                "dimension",
                cosine_by_distance(table).unsqueeze(0),
                "cosine similarity",
            )

        distance = torch.arange(places)
        if config.position == "rotary":
            cosine = rotary_angles(
                distance.unsqueeze(0),
                config.width_of_head,
                config.rotary_base,
                config.rotary_scaling,
            )

            table = cosine[
                0, 0, 0, :, : config.width_of_head // 2
            ]  # (P, D / 2): dimension i + D/2 turns with i
            alike = table.mean(1).unsqueeze(0)
            return Encoding(
                "rotary",
                table,
                "pair of dimensions",
                alike,
                "similarity of a vector to itself, turned",
            )

        if config.position == "alibi":
            bias = -alibi_slopes(config.heads).unsqueeze(1) * distance  # (H, P)
            return Encoding("alibi", bias.T, "head", bias, "number added to the score")

        assert isinstance(backbone, GPT)
        first = next(each for each in backbone.modules() if isinstance(each, RelativePosition))
        return relative(first, distance)


def relative(part: RelativePosition, distance: Int[Tensor, "P"]) -> Encoding:
    """Transformer-XL's v.r_d of the first layer: what a distance is worth to anyone, by head."""
    waves = sinusoidal(distance, part.width, "halves").to(part.r.weight)  # (P, E)
    heads, _, D = part.v.shape
    r = part.r(waves).view(-1, heads, D)  # (P, H, D)
    worth = (r * part.v.squeeze(1)).sum(-1) / D**0.5  # (P, H)

    return Encoding(
        "relative", worth.float().cpu(), "head", worth.T.float().cpu(), "number added to the score"
    )


def cosine_by_distance(table: Float[Tensor, "P N"]) -> Float[Tensor, "P"]:
    """The mean cosine of all pairs of places that are so far apart."""
    unit = torch.nn.functional.normalize(table.double(), dim=-1)
    alike = unit @ unit.T  # (P, P)
    return torch.stack([alike.diagonal(apart).mean() for apart in range(len(table))]).float()


def show(found: Encoding, console: Console) -> None:
    """In the terminal: how alike two places are, at distances that double; one column a head where
    heads differ.
    """
    P = found.by_distance.shape[1]
    distances = [0, *(2**power for power in range(P.bit_length()) if 2**power < P)]
    values = found.by_distance[:, distances].T  # (distances, 1 or H)
    console.print(Text(f"{found.kind} positions: {found.likeness}, by distance", style="bold"))
    console.print(
        Text(f"Over {len(found.table)} places; --out places.png draws all of it.", style="dim")
    )
    low, high = float(values.min()), float(values.max())
    shades = (values - low) / ((high - low) or 1.0)
    columns = (
        [f"head {head}" for head in range(len(found.by_distance))]
        if len(found.by_distance) > 1
        else [""]
    )
    console.print(
        HeatMap(values, [str(distance) for distance in distances], columns, shades=shades)
    )


def draw(found: Encoding, name: str) -> Figure:
    """The table as a picture, and beside it the likeness by distance."""
    figure = Figure(figsize=(12, 5.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1.25, 1])
    largest = (
        float(found.table.abs().flatten().double().quantile(0.995)) or 1.0
    )  # a few numbers may be far out
    low, ramp = (-largest, "RdBu") if bool((found.table > 0).any()) else (-largest, "Blues_r")
    shown = left.imshow(
        found.table.numpy(), aspect="auto", cmap=ramp, vmin=low, vmax=largest if ramp == "RdBu" else 0,
        interpolation="nearest",
    )  # fmt: skip
    left.grid(visible=False)
    places = "distance" if found.kind in ("alibi", "relative") else "place"
    left.set_xlabel(found.columns)
    left.set_ylabel(places)
    figure.colorbar(shown, ax=left, shrink=0.8)
    figure_style.head(
        left,
        f"{found.kind} positions",
        f"{name}: a row for each {places}, {len(found.table)} of them",
    )

    for number, line in enumerate(found.by_distance):
        colour = figure_style.COLOURS[number % len(figure_style.COLOURS)]
        label = f"head {number}" if len(found.by_distance) > 1 else None
        right.plot(line.numpy(), color=colour, linewidth=2, label=label)

    if 1 < len(found.by_distance) <= 16:
        right.legend(fontsize=9, ncols=2)

    right.set_xlabel("distance between two places")
    right.set_ylabel(found.likeness)
    figure_style.head(right, "How alike two places are", "by how far apart they stand")

    return figure
