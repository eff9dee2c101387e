"""The equation of one attention head: the vectors that enter it, and how they make a score.

    score = q . k / divisor + bias          weight = softmax(score)          output = weight v

holds for every family. What differs is how the vectors are made (rotary positions turn them,
Transformer-XL adds u to the query), what the bias is, and that an additive score is not a dot
product but v . tanh(q + k).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkv.models.model import Model, backbone_of
from qkv.models.sites import AttentionSite
from qkv.nn.attention.relative import RelativePosition
from qkv.nn.attention.score import Additive, General
from qkv.nn.position import (
    ALiBi,
    PositionEncoding,
    Rotary,
    alibi_slopes,
    rotary_frequencies,
    rotate,
    sinusoidal,
)

ScoreKind = Literal["scaled_dot", "dot", "general", "additive", "relative", "other"]
DistanceBias = Callable[[Tensor], Tensor]
"""The bias (T, S) for the distances (T, S) of queries and keys."""


class Projected(NamedTuple):
    """What one attention layer projects, as its hook points show it."""

    query: Float[Tensor, "H T D"]
    key: Float[Tensor, "K S D"]
    value: Float[Tensor, "K S X"]


class RotaryVectors(NamedTuple):
    """A head's query and key before they are turned."""

    frequencies: Float[Tensor, "P"]
    """Radians by which each pair of dimensions turns from one position to the next."""
    query: Float[Tensor, "T D"]
    key: Float[Tensor, "S D"]

    def turned(self, x: Float[Tensor, "L D"], positions: Int[Tensor, "L"]) -> Tensor:
        """The vectors turned to these positions."""
        return turn(x, positions, self.frequencies)


class HeadEquation(NamedTuple):
    """All that a score of one head is computed from."""

    score: ScoreKind
    divisor: float
    """The root of D for a scaled dot product, else 1."""
    query: Float[Tensor, "T D"]
    key: Float[Tensor, "S D"]
    value: Float[Tensor, "S X"]
    bias: Float[Tensor, "T S"] | None = None
    additive: Float[Tensor, "D"] | None = None
    """v of the additive score."""
    rotary: RotaryVectors | None = None
    slope: float | None = None
    """ALiBi's slope of this head."""
    bias_of: DistanceBias | None = None
    """The bias as a function of distances, where positions enter as a bias."""

    def raw_scores(self) -> Float[Tensor, "T S"]:
        """The scores before the division."""
        if self.additive is None:
            return self.query @ self.key.T

        hidden = torch.tanh(self.query.unsqueeze(1) + self.key)  # (T, S, D)
        return hidden @ self.additive

    def scores(self, visible: Bool[Tensor, "T S"]) -> Float[Tensor, "T S"]:
        """The scores that softmax sees: minus infinity where the mask hides the key."""
        scores = self.raw_scores() / self.divisor
        if self.bias is not None:
            scores = scores + self.bias

        return scores.masked_fill(~visible, -math.inf)

    def mapped(self, convert: Callable[[Tensor], Tensor]) -> HeadEquation:
        """The same equation with every tensor converted."""
        changes: dict[str, Any] = {}
        for name, value in self._asdict().items():
            if isinstance(value, Tensor):
                changes[name] = convert(value)

        if self.rotary is not None:
            changes["rotary"] = RotaryVectors(*map(convert, self.rotary))

        return self._replace(**changes)


def head_equation(
    model: Model, site: AttentionSite, layer: int, head: int, projected: Projected
) -> HeadEquation:
    """The equation of one head.

    Args:
        model: The model.
        site: The kind of attention.
        layer: The layer.
        head: The query head; a group of them may share one key head.
        projected: What the layer projects for one text.
    """
    group = projected.query.shape[0] // projected.key.shape[0]
    query = projected.query[head]  # (T, D)
    key = projected.key[head // group]
    value = projected.value[head // group]
    if not site.point:
        return recurrent_equation(backbone_of(model), query, key, value)

    divisor = math.sqrt(query.shape[-1])
    relative = getattr(model.get_submodule(site.point.format(layer)), "relative", None)
    if isinstance(relative, RelativePosition):
        entering, bias = relative(projected.query.unsqueeze(0), key.shape[0])
        bias_of = partial(relative_bias, relative, head, query)
        return HeadEquation(
            "relative", divisor, entering[0, head], key, value, bias[0, head], bias_of=bias_of
        )

    equation = HeadEquation("scaled_dot", divisor, query, key, value)
    position = getattr(model.stacks[site.stack], "position", None)
    if site.kind == "cross" or not isinstance(position, PositionEncoding):
        return equation

    return with_positions(equation, position, head, projected)


def with_positions(
    equation: HeadEquation, position: PositionEncoding, head: int, projected: Projected
) -> HeadEquation:
    """The equation with the positions of its stack: turned vectors, or a bias."""
    query, key = equation.query, equation.key
    if isinstance(position, Rotary):
        config = position.config
        frequencies = rotary_frequencies(
            query.shape[-1], config.rotary_base, config.rotary_scaling, query.device
        )
        steps = torch.arange(len(key), device=key.device)
        unturned = RotaryVectors(
            frequencies,
            turn(query, -steps[-len(query) :], frequencies),
            turn(key, -steps, frequencies),
        )
        equation = equation._replace(rotary=unturned)

    bias = position.bias(query.device)
    if bias is not None:
        batch = projected.query.unsqueeze(0)  # (1, H, T, D)
        matrix = bias.materialise(len(query), len(key), batch)[0]  # (#H, T, S)
        equation = equation._replace(bias=matrix[head % len(matrix)])

    if isinstance(position, ALiBi):
        slope = float(alibi_slopes(position.config.heads)[head])
        equation = equation._replace(slope=slope, bias_of=partial(alibi_bias, slope))

    return equation


def recurrent_equation(model: Any, query: Tensor, key: Tensor, value: Tensor) -> HeadEquation:
    """The equation of an RNN's attention, with its vectors projected as the score does it."""
    score = model.score
    if isinstance(score, Additive):  # the keys are projected once, before the first token
        v = score.v.weight[0]
        return HeadEquation("additive", 1.0, score.W_q(query), key, value, additive=v)
    if isinstance(score, General):
        return HeadEquation("general", 1.0, score.A(query), score.B(key), value)
    if model.config.attention == "scaled_dot":
        return HeadEquation("scaled_dot", math.sqrt(query.shape[-1]), query, key, value)

    return HeadEquation("dot", 1.0, query, key, value)


# Positions


def turn(
    x: Float[Tensor, "L D"], positions: Int[Tensor, "L"], frequencies: Float[Tensor, "P"]
) -> Float[Tensor, "L D"]:
    """The vectors turned by the angles of these positions; negative positions turn back."""
    angle = positions.unsqueeze(-1).float() * frequencies  # (L, D / 2)
    angle = torch.cat([angle, angle], dim=-1)
    angles = torch.stack([angle.cos(), angle.sin()])[:, None, None]  # (2, 1, 1, L, D)

    return rotate(x[None, None], angles)[0, 0]


def alibi_bias(slope: float, distance: Int[Tensor, "T S"]) -> Float[Tensor, "T S"]:
    return -slope * distance.abs()


def relative_bias(
    part: RelativePosition, head: int, query: Float[Tensor, "T D"], distance: Int[Tensor, "T S"]
) -> Float[Tensor, "T S"]:
    """Transformer-XL's (q + v) . r_distance / sqrt(D) for any distances."""
    heads, _, D = part.v.shape
    distance = distance.to(query.device)  # a page asks for distances on the CPU
    different, index = distance.unique(return_inverse=True)
    waves = sinusoidal(different, part.width, "halves").to(part.r.weight)
    r = part.r(waves).view(-1, heads, D)[:, head]  # (N, D)
    by_distance = (query + part.v[head]) @ r.T / math.sqrt(D)  # (T, N)

    return by_distance.gather(1, index)
