"""The walk of one head under edits, and the next-token distribution before and after them."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.generation.generate import without_dropout
from qkv.insight.inspect.model_input import Reading, check_finite, hidden, readable_token
from qkv.insight.walk.attention_record import record_attention, site_named
from qkv.insight.walk.head_lens import ProbabilityChange
from qkv.insight.walk.head_walk import HeadSite, HeadWalk, LayerWalker, counted
from qkv.insight.walk.walk_edits import EditedHead, WalkEdits, moved_keys
from qkv.models.model import Model, backbone_of
from qkv.models.sites import predicts_tokens
from qkv.text.tokenizer import Tokenizer

NO_EDITS = WalkEdits()


class NextChange(NamedTuple):
    """The prediction at one position before and after edits."""

    position: int
    tokens: list[ProbabilityChange]
    """The likeliest tokens of both, by their probability before."""
    entropy_before: float
    """In bits."""
    entropy_after: float


class WalkEffects(NamedTuple):
    """The walk of a head under edits, and what they change in the prediction."""

    walk: HeadWalk
    next: NextChange | None
    """None for an encoder without a token head."""


def walk_effects(
    model: Model,
    reading: Reading,
    tokenizer: Tokenizer,
    name: HeadSite,
    edits: WalkEdits = NO_EDITS,
    *,
    position: int | None = None,
    top: int = 10,
) -> WalkEffects:
    """Walk one head under edits, and compare the predictions of the model.

    Args:
        model: The model.
        reading: The text, from `read`.
        tokenizer: The model's tokenizer.
        name: Kind (None for the default), layer and head.
        edits: The changes of this head.
        position: The position whose prediction is compared; by default that of the first mask
            token, or the last.
        top: The number of likeliest tokens, before and after.

    Returns:
        The walk with the edits, and the probabilities without and with them.

    Raises:
        ValueError: If the model has no such head, or an edit does not fit the text, or a
            prediction is not finite.
    """
    kind, layer, head = name
    site = site_named(model, kind)
    layer = counted("layer", layer, site.depth)
    head = counted("head", head, site.heads)
    edits.check(site, reading)
    where = predicted_position(tokenizer, reading, position)

    with torch.no_grad(), without_dropout(model):
        vectors: list[Tensor] = []
        run = partial(append_hidden, model, reading, vectors)
        plain = record_attention(model, [(site, layer)], run)[site.kind, layer]
        walker = LayerWalker(model, tokenizer, site, layer, plain)
        edits.check_equation(walker.walk(head, None).equation)

        moved = moved_keys(model, site, layer, head, reading, edits)
        edited_head = EditedHead(model, site, layer, head, edits, moved)
        with edited_head.applied():
            record = record_attention(model, [(site, layer)], run)[site.kind, layer]

        walker = LayerWalker(model, tokenizer, site, layer, record, unedited=plain)
        (walk,) = walker.walks([head], edited_head.edited if edits.of_scores else None)
        if not predicts_tokens(model):
            return WalkEffects(walk, None)

        before, after = vectors
        if not edits.changes_anything:
            after = before

        change = next_change(model, tokenizer, where, before[where], after[where], top)
        return WalkEffects(walk, change)


def append_hidden(model: Model, reading: Reading, vectors: list[Tensor]) -> None:
    """Append the hidden states of a text, (T, E), to a list."""
    vectors.append(hidden(model, reading)[0])


def predicted_position(tokenizer: Tokenizer, reading: Reading, position: int | None) -> int:
    """The position whose prediction is compared."""
    ids = reading.text.ids
    if position is not None:
        return counted("position", position, len(ids))
    if tokenizer.mask is not None and tokenizer.mask in ids:
        return ids.index(tokenizer.mask)

    return len(ids) - 1


def next_change(
    model: Model,
    tokenizer: Tokenizer,
    position: int,
    before: Float[Tensor, "E"],
    after: Float[Tensor, "E"],
    top: int,
) -> NextChange:
    """The likeliest tokens of two hidden states, with their probability by both."""
    backbone = backbone_of(model)
    vocabulary = min(tokenizer.vocabulary, backbone.config.vocabulary)
    logits = backbone.logits(torch.stack([before, after])).double()  # (2, V)
    full = logits.softmax(-1)
    check_finite(full[0], full[1])
    entropy = torch.special.entr(full).sum(-1) / torch.log(torch.tensor(2.0))  # (2,)
    probability = full[:, :vocabulary]

    likeliest = probability.topk(min(top, vocabulary)).indices.unique()
    order = probability[0, likeliest].argsort(descending=True, stable=True)
    name = partial(readable_token, tokenizer)
    tokens = []
    for id in likeliest[order].tolist():
        first, second = probability[:, id].tolist()
        tokens.append(ProbabilityChange(name(id), id, first, second))

    return NextChange(position, tokens, float(entropy[0]), float(entropy[1]))
