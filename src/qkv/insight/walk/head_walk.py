"""Walk one head: everything between the input of an attention head and what it hands on.

The numbers are those of the forward pass, captured at its hook points: query, key and value as they
enter the equation, the scores, the weights, the head's output, and what it adds to the residual
stream. From the same vectors, `HeadEquation` computes each score number by number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from qkv.generation.generate import without_dropout
from qkv.insight.inspect.model_input import Reading, hidden
from qkv.insight.walk.attention_record import (
    AttentionRecord,
    record_attention,
    seen_keys,
    site_named,
)
from qkv.insight.walk.head_equation import HeadEquation, head_equation
from qkv.insight.walk.head_lens import HeadLens, LensOfHead, has_lens, norm_placement
from qkv.models.model import Model, backbone_of
from qkv.models.sites import AttentionSite
from qkv.nn.attention.softmax import softmax_or_zeros
from qkv.nn.linear.linear import linear
from qkv.text.tokenizer import Tokenizer

SHORT_TYPES = (torch.float16, torch.bfloat16)
HeadSite = tuple[str | None, int, int]
"""The kind of attention (None for the default), the layer and the head."""
EquationEdit = Callable[[HeadEquation, Tensor], tuple[HeadEquation, Tensor]]
"""Changes the equation of a head and what its queries see, (T, S)."""


@dataclass(frozen=True, eq=False)
class HeadWalk:
    """One head at work on one text: T queries, S keys."""

    kind: str
    layer: int
    head: int
    position: str
    """How the model encodes positions, as its config says; none in cross-attention, and recurrent
    for an RNN."""
    norm: str | None
    """Whether the block norms before attention or after the addition; None for an RNN."""
    equation: HeadEquation
    """The vectors that enter the equation, and what a score is computed from."""
    visible: Bool[Tensor, "T S"]
    """Where the mask lets a query see a key."""
    scores: Float[Tensor, "T S"]
    """As captured: minus infinity where the key is hidden. Without captured ones those of the
    equation, or the logarithms of the weights if it is "other"."""
    weights: Float[Tensor, "T S"]
    output: Float[Tensor, "T X"]
    """The weights times the values: what the head hands on. The context vector of an RNN."""
    before: Float[Tensor, "T E"] | None
    """The residual stream before this attention."""
    written: Float[Tensor, "T E"] | None
    """What the head adds to it: its output times its slice of the output projection, without
    bias."""
    lens: HeadLens | None
    """The lens before, and with this head alone; None if no token is predicted from here."""

    @property
    def name(self) -> HeadSite:
        return self.kind, self.layer, self.head


def walk_head(
    model: Model,
    reading: Reading,
    tokenizer: Tokenizer,
    *,
    kind: str | None = None,
    layer: int,
    head: int,
) -> HeadWalk:
    """Capture one head at work on a text, number by number.

    Args:
        model: The model.
        reading: The text, from `read`.
        tokenizer: The model's tokenizer, for the tokens of the lens.
        kind: encoder, decoder or cross attention of a translator; by default cross.
        layer: The layer, counted from 0 (or back from -1).
        head: The head, counted from 0 (or back from -1).

    Returns:
        Its query, key, value, scores, weights and output, and what it writes.

    Raises:
        ValueError: If the model has no such kind, layer or head, or hides its values.

    Example:
        >>> from qkv import insight, models, text
        >>> tokenizer = text.train("words", ["the cat sat on the mat"], 20)
        >>> model = models.GPT(models.GPTConfig(vocabulary=20, width=8, heads=2, depth=1))
        >>> reading = insight.read(model, tokenizer, "the cat sat")
        >>> walk = insight.walk_head(model, reading, tokenizer, layer=0, head=1)
        >>> walk.equation.query.shape, walk.weights.shape, walk.written.shape
        (torch.Size([3, 4]), torch.Size([3, 3]), torch.Size([3, 8]))
    """
    (walk,) = walk_heads(model, reading, tokenizer, [(kind, layer, head)]).values()
    return walk


def walk_heads(
    model: Model, reading: Reading, tokenizer: Tokenizer, names: Iterable[HeadSite]
) -> dict[HeadSite, HeadWalk]:
    """Walk several heads in one forward pass.

    Args:
        model: The model.
        reading: The text, from `read`.
        tokenizer: The model's tokenizer.
        names: Kind, layer and head of each.

    Returns:
        The walks by kind, layer and head, counted from 0.

    Raises:
        ValueError: If the model has no such kind, layer or head, or hides its values.
    """
    sites: dict[tuple[str, int], AttentionSite] = {}
    heads: dict[tuple[str, int], dict[int, None]] = {}
    for kind, layer, head in names:
        site = site_named(model, kind)
        place = (site.kind, counted("layer", layer, site.depth))
        sites[place] = site
        heads.setdefault(place, {})[counted("head", head, site.heads)] = None

    walks: dict[HeadSite, HeadWalk] = {}
    with torch.no_grad(), without_dropout(model):
        wanted = [(site, layer) for (_, layer), site in sites.items()]
        records = record_attention(model, wanted, lambda: hidden(model, reading))
        for place, record in records.items():
            walker = LayerWalker(model, tokenizer, sites[place], place[1], record)
            for walk in walker.walks(list(heads[place])):
                walks[walk.name] = walk

    return walks


class LayerWalker:
    """Makes the walks of one attention layer from its record."""

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        site: AttentionSite,
        layer: int,
        record: AttentionRecord,
        unedited: AttentionRecord | None = None,
    ) -> None:
        """`unedited` is the record of the same text without edits, if `record` has some."""
        self.model = model
        self.tokenizer = tokenizer
        self.site = site
        self.layer = layer
        self.record = record
        self.unedited = record if unedited is None else unedited

    def walks(self, heads: list[int], edit: EquationEdit | None = None) -> list[HeadWalk]:
        """The walks of some heads; with `edit` their equations and masks are changed."""
        writings = [self.written(head) for head in heads]
        lenses: list[HeadLens | None] = [None] * len(heads)
        known = [written for written in writings if written is not None]
        before = self.record.before
        if before is not None and len(known) == len(heads) and has_lens(self.model, self.site):
            lens_of = LensOfHead(self.model, self.tokenizer, self.site, self.layer, before)
            lenses = list(lens_of.around(torch.stack(known)))

        walks = []
        for head, written, lens in zip(heads, writings, lenses, strict=True):
            walk = self.walk(head, edit)
            walks.append(replace(walk, written=optional_exact(written), lens=lens))

        return walks

    def walk(self, head: int, edit: EquationEdit | None) -> HeadWalk:
        """The walk of one head up to its output."""
        record = self.record
        equation = head_equation(self.model, self.site, self.layer, head, record.projected)
        weights = record.weights[head]
        captured = None
        if record.scores is not None:
            captured = record.scores[head]

        visible = seen_keys(self.model, self.site, captured, weights)
        if edit is not None:
            equation, visible = edit(equation, visible)
            scores = equation.scores(visible)
            return self.walk_of(head, equation.mapped(exact), exact(visible), exact(scores))

        equation = equation.mapped(exact)
        visible = exact(visible)
        if captured is not None:
            equation, scores = checked_scores(equation, visible, captured)
            return self.walk_of(head, equation, visible, scores)

        weights = self.unedited.weights[head]
        equation, visible, scores = scores_by_weights(equation, visible, weights)
        return self.walk_of(head, equation, visible, scores)

    def walk_of(
        self, head: int, equation: HeadEquation, visible: Tensor, scores: Tensor
    ) -> HeadWalk:
        """The walk of a head with this equation; all else is as recorded."""
        record = self.record
        norm = norm_placement(self.model) if self.site.point else None
        return HeadWalk(
            self.site.kind,
            self.layer,
            head,
            position_kind(self.model, self.site),
            norm,
            equation,
            visible,
            scores,
            exact(record.weights[head]),
            exact(record.output[head]),
            optional_exact(record.before),
            written=None,
            lens=None,
        )

    def written(self, head: int) -> Float[Tensor, "T E"] | None:
        """What the head adds to the residual stream: its output through its slice of W_O."""
        if not self.site.point:
            return None

        attention: Any = self.model.get_submodule(self.site.point.format(self.layer))
        projection = getattr(attention, "output", None)
        if not isinstance(projection, torch.nn.Linear):
            return None  # an attention of a user's own may end in another way

        output = self.record.output[head]
        X = output.shape[-1]
        alone = output.new_zeros(len(output), projection.in_features)
        alone[:, head * X : (head + 1) * X] = output
        written = linear(alone, projection.weight)
        adapters = getattr(projection, "adapters", None)
        if adapters is not None:
            written = adapters(alone, written, range(projection.out_features))

        return written


def checked_scores(
    equation: HeadEquation, visible: Bool[Tensor, "T S"], captured: Float[Tensor, "T S"]
) -> tuple[HeadEquation, Float[Tensor, "T S"]]:
    """The equation and the captured scores.

    An attention of a user's own may compute its scores in its own way; its equation is "other".
    """
    tolerance = 0.1 if captured.dtype in SHORT_TYPES else 1e-3
    computed = equation.scores(visible)
    captured = exact(captured)
    if not torch.allclose(computed, captured.to(computed), rtol=tolerance, atol=tolerance):
        equation = equation._replace(score="other")

    return equation, captured


def scores_by_weights(
    equation: HeadEquation, visible: Bool[Tensor, "T S"], captured: Float[Tensor, "T S"]
) -> tuple[HeadEquation, Bool[Tensor, "T S"], Float[Tensor, "T S"]]:
    """The equation, the mask and the scores of a head of which only the weights were captured.

    Weights that the equation does not give make it "other". The scores are then the logarithms of
    the weights, for their softmax is the weights, and every key with a weight is visible.
    """
    tolerance = 0.05 if captured.dtype in SHORT_TYPES else 1e-4
    computed = equation.scores(visible)
    weights = exact(captured).to(computed)
    if torch.allclose(softmax_or_zeros(computed), weights, rtol=0, atol=tolerance):
        return equation, visible, computed

    scores = weights.clamp(min=0).log()
    return equation._replace(score="other"), visible | (weights > 0), scores


def position_kind(model: Model, site: AttentionSite) -> str:
    """How positions enter this kind of attention: the name in the config, none or recurrent."""
    if not site.point:
        return "recurrent"
    if site.kind == "cross":
        return "none"

    return backbone_of(model).config.position


def exact(tensor: Tensor) -> Tensor:
    """A tensor on the CPU; 16-bit numbers as float32, which holds them exactly."""
    tensor = tensor.detach().cpu()
    if tensor.dtype in SHORT_TYPES:
        return tensor.float()

    return tensor


def optional_exact(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else exact(tensor)


def counted(name: str, number: int, count: int) -> int:
    """A layer or head counted from 0; an error that starts with `name` if it does not exist."""
    if not -count <= number < count:
        raise ValueError(f"{name}: expected 0 to {count - 1}, not {number}")

    return number % count
