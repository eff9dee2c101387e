"""Attention as it happens: the weights of every layer and head while a model reads a text."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from qkv.generation.generate import without_dropout
from qkv.insight.inspect.hook_checks import require_hook
from qkv.insight.inspect.model_input import Reading, Side, hidden
from qkv.models import GPT, RNN, TaskModel, Transformer
from qkv.models.registry import Model, backbone_of
from qkv.nn.attention import all_of

GLANCE = 64
"""The overview of a head has at most so many rows and columns."""


class AttentionSite(NamedTuple):
    """Where a model attends: one kind of attention in all its layers."""

    kind: str
    """self, or of a translator encoder, decoder, cross."""
    point: str
    """Its taps, with {} for the layer: stack.blocks.{}.attention"""
    depth: int
    heads: int

    def tap(self, layer: int, name: str) -> str:
        """Such as stack.blocks.3.attention.weights"""
        return f"{self.point.format(layer)}.{name}" if self.point else name


class Attention(NamedTuple):
    """One kind of attention of a model while it read a text."""

    kind: str
    rows: Side
    """Who looks (T); in cross-attention the word that is chosen by looking."""
    columns: Side
    """At whom (S)."""
    layers: dict[int, Float[Tensor, "H T S"]]
    """The weights, of the layers that were kept."""
    depth: int
    heads: int
    causal: bool
    """No word looks at a later one."""
    overview: Float[Tensor, "L H t s"]
    """All heads at a glance: each pooled, by its largest weights, to at most 64 x 64."""
    entropy: Float[Tensor, "L H"]
    """How widely a head looks, in bits: 0 is one word, log2(n) is n words alike. The mean over the
    rows.
    """
    distance: Float[Tensor, "L H"]
    """How far a head looks, in tokens: the mean of |query - key|. No number between two texts."""
    names: tuple[str, ...] = ()
    """What each head of every layer is called, where it has a name besides its number."""


def attention_sites(model: Model) -> list[AttentionSite]:
    """Where a model attends, in the order of its parts."""
    backbone, prefix = backbone_of(model), "backbone." if isinstance(model, TaskModel) else ""
    if isinstance(backbone, RNN):
        if backbone.config.attention == "none":
            raise ValueError(
                "attention: this RNN has none, so none of its words looks at any other"
            )

        return [AttentionSite("cross", "", 1, 1)]

    heads = backbone.config.heads
    if isinstance(backbone, Transformer):
        deep = len(backbone.decoder.blocks)
        return [
            AttentionSite(
                "encoder", "encoder.blocks.{}.attention", len(backbone.encoder.blocks), heads
            ),
            AttentionSite("decoder", "decoder.blocks.{}.attention", deep, heads),
            AttentionSite("cross", "decoder.blocks.{}.cross_attention", deep, heads),
        ]

    return [
        AttentionSite(
            "self", prefix + "stack.blocks.{}.attention", len(backbone.stack.blocks), heads
        )
    ]


def capture_attention(
    model: Model, reading: Reading, *, layers: Collection[int] | None = None, overview: bool = True
) -> list[Attention]:
    """Read the text once, and keep the weights of all layers or of those given, counted from 0 (or,
    from the last, -1).

    Of the other layers the `overview` and the two numbers of each head are kept, or, without it,
    nothing: they are then not even made, for their layers run on a kernel that has no weights.
    """
    places = attention_sites(model)
    deepest = max(place.depth for place in places)

    for layer in layers or ():
        if not -deepest <= layer < deepest:
            raise ValueError(f"layer: expected 0 to {deepest - 1}, or -1 for the last, not {layer}")

    found = [Finding(place, layers, overview) for place in places]

    with torch.no_grad(), without_dropout(model), ExitStack() as listening:
        for finding in found:
            for layer in finding.heard:
                point = finding.place.tap(layer, "weights")
                hear = partial(finding.hear, layer)
                listening.enter_context(require_hook(model, point, hear, heads=finding.place.heads))

        hidden(model, reading)

    return [finding.attention(reading) for finding in found]


class Finding:
    """What is kept of one kind of attention."""

    def __init__(
        self, place: AttentionSite, layers: Collection[int] | None, overview: bool
    ) -> None:
        self.place = place
        every = range(place.depth)
        self.kept = (
            set(every)
            if layers is None
            else {every[n] for n in layers if -place.depth <= n < place.depth}
        )
        self.heard = list(every) if overview else sorted(self.kept)
        self.overview = overview
        self.layers: dict[int, Tensor] = {}
        self.glances: list[Tensor] = []
        self.numbers: list[tuple[Tensor, Tensor]] = []

    def hear(self, layer: int, weights: Float[Tensor, "1 H T S"], name: str) -> None:
        one = weights[0]
        if not self.place.point:  # an RNN looks once a word
            before = self.layers.get(layer)
            self.layers[layer] = one if before is None else torch.cat([before, one], dim=1)
            return

        if layer in self.kept:
            self.layers[layer] = one.float().cpu()

        if self.overview:
            self.sum_up(one.float())

    def sum_up(self, weights: Float[Tensor, "H T S"]) -> None:
        self.glances.append(glance(weights).cpu())
        self.numbers.append((entropy(weights).cpu(), distance(weights, self.place.kind).cpu()))

    def attention(self, reading: Reading) -> Attention:
        place = self.place
        if not place.point:
            self.layers = {layer: weights.float().cpu() for layer, weights in self.layers.items()}
            for weights in self.layers.values() if self.overview else ():
                self.sum_up(weights)

        sides = {
            "encoder": (reading.source, reading.source),
            "cross": (reading.rows, reading.source),
        }
        rows, columns = sides.get(place.kind, (reading.text, reading.text))
        assert rows is not None
        assert columns is not None
        shown = [weights[0] for weights in self.layers.values()] or [
            each[0] for each in self.glances
        ]
        causal = place.kind in ("self", "decoder") and not any(
            bool(weights.triu(1).any()) for weights in shown[:2]
        )
        none = torch.empty(0, place.heads)

        return Attention(
            place.kind,
            rows,
            columns,
            {layer: self.layers[layer] for layer in sorted(self.kept)},
            place.depth,
            place.heads,
            causal,
            torch.stack(self.glances) if self.glances else torch.empty(0, place.heads, 0, 0),
            torch.stack([each for each, _ in self.numbers]) if self.numbers else none,
            torch.stack([each for _, each in self.numbers]) if self.numbers else none,
        )


def glance(weights: Float[Tensor, "H T S"]) -> Float[Tensor, "H t s"]:
    T, S = weights.shape[1:]
    return (
        F.adaptive_max_pool2d(weights, (min(T, GLANCE), min(S, GLANCE)))
        if max(T, S) > GLANCE
        else weights
    )


def entropy(weights: Float[Tensor, "H T S"]) -> Float[Tensor, "H"]:
    """In bits. A head at a time: the weights of a layer are large enough once."""
    nats = torch.stack([torch.special.entr(head).sum(-1).mean() for head in weights])
    return nats / torch.log(torch.tensor(2.0))


def distance(weights: Float[Tensor, "H T S"], kind: str) -> Float[Tensor, "H"]:
    T, S = weights.shape[1:]
    if kind == "cross":
        return weights.new_full((weights.shape[0],), float("nan"))

    query = torch.arange(S - T, S, device=weights.device).unsqueeze(1)
    apart = (query - torch.arange(S, device=weights.device)).abs().to(weights.dtype)  # (T, S)

    return torch.stack([(head * apart).sum(-1).mean() for head in weights])


@contextmanager
def unmasked(model: Model) -> Iterator[None]:
    """A GPT whose words see later ones, too: what a causal mask hides."""
    backbone = backbone_of(model)
    if not isinstance(backbone, GPT):
        raise ValueError(
            f"mask: only a GPT's causal mask can be taken away, and this is a {type(backbone).__name__}"
        )

    before = backbone.__dict__.get("mask")  # there is one while it is without its mask already
    backbone.mask = lambda padding_mask, documents: all_of(backbone.config.sparsity())  # type: ignore[method-assign]

    try:
        yield
    finally:
        if before is None:
            del backbone.mask
