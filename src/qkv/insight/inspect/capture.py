"""Capture attention: the weights of every layer and head while a model reads a text."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkv.generation.generate import without_dropout
from qkv.insight.inspect.hook_checks import hook_layers
from qkv.insight.inspect.model_input import Reading, Side, hidden
from qkv.insight.inspect.weight_shares import ShareSums, WeightShares
from qkv.models.model import Model, backbone_of
from qkv.models.sites import AttentionSite, attention_sites, mask_of
from qkv.models.variants.own_gpt import OwnGPT

GLANCE = 64
"""Largest number of rows and of columns in the overview of a head."""


class CapturedAttention(NamedTuple):
    """The captured attention of one kind for one text."""

    kind: str
    rows: Side
    """The queries (T); in cross-attention the token predicted at each position."""
    columns: Side
    """The keys (S)."""
    layers: dict[int, Float[Tensor, "H T S"]]
    """The weights of the layers that were kept."""
    depth: int
    heads: int
    causal: bool
    """True if no token attends to a later one."""
    overview: Float[Tensor, "L H t s"]
    """All heads, each max-pooled to at most 64 x 64."""
    entropy: Float[Tensor, "L H"]
    """Mean entropy of the rows of each head in bits: log2(n) for n equal weights."""
    distance: Float[Tensor, "L H"]
    """Mean attention distance |query - key| of each head in tokens; NaN for cross-attention."""
    names: tuple[str, ...] = ()
    """Names of the heads of every layer, if they have any besides their numbers."""
    shares: WeightShares | None = None
    """Where the weight of every head goes; None without an overview."""


def capture_attention(
    model: Model, reading: Reading, *, layers: Collection[int] | None = None, overview: bool = True
) -> list[CapturedAttention]:
    """Run a text through a model once and capture its attention weights.

    Args:
        model: The model.
        reading: The text, from `read`.
        layers: The layers whose weights are kept, counted from 0 (or back from -1); default all.
        overview: Also compute the overview, entropy and distance of every head in every layer. If
            False, layers that are not kept run on a fused kernel that never forms the weights.

    Returns:
        One entry for each kind of attention of the model.

    Raises:
        ValueError: If the model has no such layer, has no attention, or hides its weights.

    Example:
        >>> from qkv import insight, models, text
        >>> tokenizer = text.train("words", ["the cat sat on the mat"], 20)
        >>> model = models.GPT(models.GPTConfig(vocabulary=20, width=8, heads=2, depth=1))
        >>> reading = insight.read(model, tokenizer, "the cat sat")
        >>> (attention,) = insight.capture_attention(model, reading)
        >>> attention.kind, attention.layers[0].shape
        ('self', torch.Size([2, 3, 3]))
    """
    sites = attention_sites(model)
    deepest = max(site.depth for site in sites)
    for layer in layers or ():
        if not -deepest <= layer < deepest:
            raise ValueError(f"layer: expected 0 to {deepest - 1}, or -1 for the last, not {layer}")

    captures = [SiteCapture(site, reading, layers, overview) for site in sites]

    with torch.no_grad(), without_dropout(model), ExitStack() as hooks:
        for capture in captures:
            layers = capture.hooked_layers
            hooks.enter_context(hook_layers(model, capture.site, "weights", capture.store, layers))

        hidden(model, reading)

    return [capture.attention() for capture in captures]


class SiteCapture:
    """Collects the weights and statistics of one attention site during a forward pass."""

    def __init__(
        self,
        site: AttentionSite,
        reading: Reading,
        layers: Collection[int] | None,
        overview: bool,
    ) -> None:
        self.site = site
        self.overview = overview
        self.rows = reading.rows if site.kind == "cross" else reading.queries(site.kind)
        self.columns = reading.keys(site.kind)

        all_layers = range(site.depth)
        self.kept_layers = set(all_layers)
        if layers is not None:
            self.kept_layers = {all_layers[n] for n in layers if -site.depth <= n < site.depth}

        self.hooked_layers = list(all_layers)
        if not overview:
            self.hooked_layers = sorted(self.kept_layers)

        self.steps: list[Tensor] = []
        """Weights of an RNN, which attends once for each target token."""
        self.weights: dict[int, Tensor] = {}
        self.overviews: list[Tensor] = []
        self.entropies: list[Tensor] = []
        self.distances: list[Tensor] = []
        self.shares = ShareSums(site.kind, self.rows, self.columns)

    def store(self, weights: Float[Tensor, "1 H T S"], name: str, layer: int) -> None:
        """Hook: keep the weights of a layer, and summarise them."""
        if self.site.stack:
            self.keep(weights[0].float(), layer)
        else:
            self.steps.append(weights[0].float())

    def keep(self, weights: Float[Tensor, "H T S"], layer: int) -> None:
        """Keep the weights of a layer; compute overview, entropy and distance."""
        if layer in self.kept_layers:
            self.weights[layer] = weights.cpu()
        if not self.overview:
            return

        self.overviews.append(pool_overview(weights).cpu())
        self.entropies.append(entropy(weights).cpu())
        self.distances.append(distance(weights, self.site.kind).cpu())
        self.shares.add(weights)

    def attention(self) -> CapturedAttention:
        """The result after the forward pass."""
        site = self.site
        if self.steps:
            self.keep(torch.cat(self.steps, dim=1), 0)

        return CapturedAttention(
            site.kind,
            self.rows,
            self.columns,
            {layer: self.weights[layer] for layer in sorted(self.kept_layers)},
            site.depth,
            site.heads,
            self.is_causal(),
            stack_or_empty(self.overviews, site.heads, 0, 0),
            stack_or_empty(self.entropies, site.heads),
            stack_or_empty(self.distances, site.heads),
            shares=self.shares.result(),
        )

    def is_causal(self) -> bool:
        """True if the first head of the first layers gives no weight to later tokens."""
        if self.site.kind not in ("self", "decoder"):
            return False

        layers = list(self.weights.values()) or self.overviews
        return not any(bool(weights[0].triu(1).any()) for weights in layers[:2])


def stack_or_empty(layers: list[Tensor], *shape: int) -> Tensor:
    """Stack the layers; without any an empty tensor (0, *shape)."""
    if not layers:
        return torch.empty(0, *shape)

    return torch.stack(layers)


def pool_overview(weights: Float[Tensor, "H T S"]) -> Float[Tensor, "H t s"]:
    """Max-pool the weights of each head to at most GLANCE x GLANCE."""
    T, S = weights.shape[1:]
    if max(T, S) <= GLANCE:
        return weights

    return F.adaptive_max_pool2d(weights, (min(T, GLANCE), min(S, GLANCE)))


def entropy(weights: Float[Tensor, "H T S"]) -> Float[Tensor, "H"]:
    """Mean row entropy of each head in bits; one head at a time, which saves memory."""
    nats = torch.stack([torch.special.entr(head).sum(-1).mean() for head in weights])
    return nats / torch.log(torch.tensor(2.0))


def distance(weights: Float[Tensor, "H T S"], kind: str) -> Float[Tensor, "H"]:
    """Mean attention distance of each head in tokens; NaN for cross-attention."""
    T, S = weights.shape[1:]
    if kind == "cross":
        return weights.new_full((weights.shape[0],), float("nan"))

    query = torch.arange(S - T, S, device=weights.device).unsqueeze(1)
    apart = (query - torch.arange(S, device=weights.device)).abs().to(weights.dtype)  # (T, S)

    return torch.stack([(head * apart).sum(-1).mean() for head in weights])


# Masks


@contextmanager
def unmasked(model: Model) -> Iterator[None]:
    """Remove the causal mask of a GPT while the context is open: tokens attend to later ones."""
    backbone: Any = backbone_of(model)
    if not backbone.is_causal:
        raise ValueError(
            "mask: only a GPT's causal mask can be removed, and this is a "
            f"{type(backbone).__name__}"
        )

    if isinstance(backbone, OwnGPT):
        raise ValueError(
            "mask: the causal mask of your own GPT is in its code; remove it there to see the "
            "attention without it"
        )

    already_unmasked = "mask" in backbone.__dict__

    backbone.mask = lambda padding_mask, documents: backbone.config.sparsity()

    try:
        yield
    finally:
        if not already_unmasked:
            del backbone.mask


def visible(model: Model, kind: str, query: Int[Tensor, "T"], S: int) -> Bool[Tensor, "T S"]:
    """Which of S tokens the queries may attend to, by the mask of the model's self-attention.

    `kind` is self, or for a translator encoder or decoder.
    """
    mask = mask_of(model, kind)
    if mask is None:
        return torch.ones(len(query), S, dtype=torch.bool)

    return mask.at(query.unsqueeze(1), torch.arange(S))[0, 0]
