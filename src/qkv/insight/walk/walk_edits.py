"""Touch one head: change its divisor, mask, weights or keys, and see what the model predicts then.

The edits enter at the head's weights, in this order: keys are swapped and moved, the scores divided
and masked, softmax taken, rows of weights replaced, and the head's output scaled. Everything after
the head is the model's own forward pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from qkv.insight.inspect.attention_edits import Edit, EditHooks
from qkv.insight.inspect.hook_checks import capture_required, require_hook
from qkv.insight.inspect.model_input import Reading, ids_of
from qkv.insight.walk.attention_record import PROJECTIONS, seen_keys
from qkv.insight.walk.head_equation import HeadEquation, Projected, head_equation
from qkv.models.model import Model, backbone_of
from qkv.models.sites import AttentionSite
from qkv.nn.attention.softmax import softmax_or_zeros
from qkv.nn.hooks import hook_points

JOINED = ("learned", "sinusoidal")
"""Positions that are joined with the embedding."""


@dataclass(frozen=True, kw_only=True)
class WalkEdits:
    """Changes of one head; without arguments nothing changes."""

    divisor: float | None = None
    """What q . k is divided by, instead of the root of D."""
    lift_mask: bool = False
    """Let every query see every key."""
    weights: Mapping[int, Sequence[float]] = field(default_factory=dict)
    """By query: the weights of all keys."""
    swap_keys: Sequence[tuple[int, int]] = ()
    """Pairs of tokens whose keys change places; their values stay."""
    move: Mapping[int, int] = field(default_factory=dict)
    """By token: the position at which its key is taken to stand; where only distances count
    (rotary, ALiBi, relative) it may be below 0, further from the query than the text is long."""
    strength: float = 1.0
    """A factor of the head's output; 0 switches it off."""

    @property
    def of_scores(self) -> list[str]:
        """The names of the edits from which the scores are computed anew."""
        names = ["divisor"] if self.divisor is not None else []
        for name in ("lift_mask", "swap_keys", "move"):
            if getattr(self, name):
                names.append(name)

        return names

    @property
    def changes_weights(self) -> bool:
        return bool(self.of_scores or self.weights)

    @property
    def changes_anything(self) -> bool:
        return self.changes_weights or self.strength != 1

    def check(self, site: AttentionSite, reading: Reading) -> None:
        """Raise ValueError if an edit does not fit the text."""
        if self.divisor is not None and not (self.divisor > 0 and math.isfinite(self.divisor)):
            raise ValueError(f"divisor: expected a number above 0, not {self.divisor}")
        if not math.isfinite(self.strength):
            raise ValueError(f"strength: expected a finite number, not {self.strength}")

        T = len(reading.queries(site.kind).ids)
        S = len(reading.keys(site.kind).ids)
        for position, row in self.weights.items():
            check_token("weights", position, T)
            if len(row) != S:
                raise ValueError(
                    f"weights: expected {S} numbers for token {position}, one for each token that "
                    f"can be attended to, not {len(row)}"
                )

        for pair in self.swap_keys:
            for token in pair:
                check_token("swap_keys", token, S)

        for token in self.move:
            check_token("move", token, S)

    def check_equation(self, equation: HeadEquation) -> None:
        """Raise ValueError if the scores cannot be computed anew with this equation."""
        if equation.score == "other" and self.of_scores:
            raise ValueError(
                f"{self.of_scores[0]}: this module computes its scores in its own way, so they "
                "cannot be computed anew; leave it out, or change weights or strength"
            )

    def row(self, position: int, like: Tensor) -> Float[Tensor, "S"] | None:
        """The weights that replace those of a query, if it has any."""
        row = self.weights.get(position)
        return None if row is None else like.new_tensor(list(row))


def check_token(name: str, token: int, count: int) -> None:
    if not 0 <= token < count:
        raise ValueError(f"{name}: expected a token of 0 to {count - 1}, not {token}")


class EditedHead:
    """The hooks that compute one head with edits."""

    def __init__(
        self,
        model: Model,
        site: AttentionSite,
        layer: int,
        head: int,
        edits: WalkEdits,
        moved: Mapping[int, Tensor],
    ) -> None:
        self.model = model
        self.site = site
        self.layer = layer
        self.head = head
        self.edits = edits
        self.moved = moved
        """Keys of moved tokens, where they come from another forward pass."""
        self.seen: dict[str, Tensor] = {}
        self.steps = 0
        """Target tokens of an RNN that have attended so far."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Apply the edits while the context is open."""
        site = self.site
        with ExitStack() as hooks:
            if self.edits.of_scores:
                for name in (*PROJECTIONS, "scores"):
                    point = site.hook_point(self.layer, name)
                    if name != "scores" or point in hook_points(self.model):
                        hooks.enter_context(require_hook(self.model, point, self.see))

            if self.edits.changes_weights:
                point = site.hook_point(self.layer, "weights")
                hooks.enter_context(require_hook(self.model, point, self.change_weights))

            if self.edits.strength != 1:
                scaling = EditHooks(Edit(self.layer, self.head, self.edits.strength), site)
                point = site.hook_point(self.layer, "heads") if site.point else "context"
                hooks.enter_context(require_hook(self.model, point, scaling.scale_output))

            if not site.point:
                hooks.enter_context(require_hook(self.model, "encoder", self.restart))

            yield

    def see(self, value: Tensor, name: str) -> None:
        self.seen[name.rpartition(".")[2]] = value

    def restart(self, value: Tensor, name: str) -> None:
        """Hook on an RNN's encoder: a new forward pass begins."""
        self.steps = 0

    def change_weights(
        self, weights: Float[Tensor, "1 H T S"], name: str
    ) -> Float[Tensor, "1 H T S"]:
        """Hook: the weights of the head, computed anew if an edit changes its scores."""
        changed = weights[0, self.head].clone()
        if self.edits.of_scores:
            changed = self.computed_weights(weights)

        first = self.steps if not self.site.point else 0
        for number in range(len(changed)):
            row = self.edits.row(first + number, changed)
            if row is not None:
                changed[number] = row

        self.steps += len(changed)
        weights = weights.clone()
        weights[0, self.head] = changed

        return weights

    def computed_weights(self, weights: Float[Tensor, "1 H T S"]) -> Float[Tensor, "T S"]:
        """The weights of the head by its equation with the edits."""
        parts = []
        for projection in PROJECTIONS:
            value = self.seen[projection]
            parts.append(
                value[0] if value.dim() == 4 else value
            )  # an RNN has no dimension of heads

        scores = self.seen.get("scores")
        captured = None if scores is None else scores[0, self.head]
        visible = seen_keys(self.model, self.site, captured, weights[0, self.head])
        equation = head_equation(self.model, self.site, self.layer, self.head, Projected(*parts))
        equation, visible = self.edited(equation, visible)

        return softmax_or_zeros(equation.scores(visible)).to(weights.dtype)

    def edited(
        self, equation: HeadEquation, visible: Bool[Tensor, "T S"]
    ) -> tuple[HeadEquation, Bool[Tensor, "T S"]]:
        """The equation and the mask with the edits."""
        edits = self.edits
        equation = swapped(equation, edits.swap_keys)
        for token, key in self.moved.items():
            changed = equation.key.clone()
            changed[token] = key.to(changed)
            equation = equation._replace(key=changed)

        if edits.move:
            equation = moved_positions(equation, edits.move)
        if edits.divisor is not None:
            equation = divided(equation, edits.divisor)
        if edits.lift_mask:
            visible = torch.ones_like(visible)

        return equation, visible


# The equation with edits


def swapped(equation: HeadEquation, pairs: Sequence[tuple[int, int]]) -> HeadEquation:
    """The keys of each pair of tokens in each other's place."""
    if not pairs:
        return equation

    order = list(range(len(equation.key)))
    for first, second in pairs:
        order[first], order[second] = order[second], order[first]

    rotary = equation.rotary
    if rotary is not None:
        rotary = rotary._replace(key=rotary.key[order])

    return equation._replace(key=equation.key[order], rotary=rotary)


def moved_positions(equation: HeadEquation, move: Mapping[int, int]) -> HeadEquation:
    """The keys of some tokens at other positions, by rotary positions or a bias of distances."""
    tokens = torch.tensor(list(move), device=equation.key.device)
    positions = torch.tensor(list(move.values()), device=equation.key.device)
    if equation.rotary is not None:
        key = equation.key.clone()
        key[tokens] = equation.rotary.turned(equation.rotary.key[tokens], positions).to(key)
        equation = equation._replace(key=key)

    if equation.bias_of is not None and equation.bias is not None:
        T, S = equation.bias.shape
        of_keys = torch.arange(S, device=equation.key.device)
        of_queries = of_keys[-T:].clone()
        of_keys[tokens] = positions
        bias = equation.bias_of(of_queries.unsqueeze(1) - of_keys)
        equation = equation._replace(bias=bias.to(equation.bias))

    return equation


def divided(equation: HeadEquation, divisor: float) -> HeadEquation:
    """Another divisor; relative positions are part of what it divides."""
    bias = equation.bias
    if equation.score == "relative" and bias is not None:
        bias = bias * (equation.divisor / divisor)

    return equation._replace(divisor=divisor, bias=bias)


# Moved tokens


def moved_keys(
    model: Model, site: AttentionSite, layer: int, head: int, reading: Reading, edits: WalkEdits
) -> dict[int, Tensor]:
    """The keys of moved tokens where positions are joined with the embedding.

    Their keys come from a forward pass in which the tokens have their new positions.

    Raises:
        ValueError: If the model has no positions that a token could be moved to.
    """
    if not edits.move:
        return {}

    backbone = backbone_of(model)
    if not site.point:
        raise ValueError("move: an RNN has no positions; leave it out")

    position = backbone.config.position
    if site.kind == "cross" or position == "none":
        raise ValueError("move: this attention has no positions; leave it out")
    if position not in JOINED:
        return {}
    if model.has_source:
        raise ValueError(
            f"move: a translator's {position} positions are part of its embeddings; expected a "
            "GPT or BERT, or a model with rotary, ALiBi or relative positions"
        )

    arguments = ids_of(model, reading)
    positions = torch.arange(len(reading.text.ids), device=arguments["ids"].device)
    for token, new in edits.move.items():
        last = backbone.config.context - 1
        if new < 0 or (position == "learned" and new > last):
            raise ValueError(f"move: expected a position of 0 to {last}, not {new}")
        positions[token] = new

    point = site.hook_point(layer, "key")
    with capture_required(model, [point]) as captured:
        backbone.hidden(**arguments, positions=positions.unsqueeze(0))

    keys = captured[point][0]  # (K, S, D)
    group = site.heads // len(keys)
    return {token: keys[head // group, token] for token in edits.move}
