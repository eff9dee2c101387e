"""How much each token matters for a prediction, by several methods, and how far orders agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.insight.inspect.attribution import contributions
from qkv.insight.inspect.capture import capture_attention
from qkv.insight.inspect.model_input import Reading, ids_of, read
from qkv.lab.experiments.inside.marked_words import PackagedModel
from qkv.models.model import Model, backbone_of

ATTENTION = "attention"
GRADIENT = "gradient x input"
INTEGRATED = "integrated gradients"
ABLATION = "ablation"
RECENCY = "nearness to the end"
TOKENS = "embedding.token"
METHODS = (ATTENTION, GRADIENT, INTEGRATED, ABLATION, RECENCY)


def importance(subject: PackagedModel, text: str, steps: int) -> dict[str, Float[Tensor, "T"]]:
    """The importance of each token for the likeliest next token, by every method.

    Args:
        subject: A model that predicts the next token.
        text: The text.
        steps: Steps of integrated gradients.

    Returns:
        For each of `METHODS` a number for each token; only their order is comparable.
    """
    model = subject.model
    reading = read(model, subject.tokenizer, text)
    with torch.no_grad():
        target = int(last_logits(model, reading).argmax())

    last = len(reading.text.ids) - 1
    (attention,) = capture_attention(model, reading, overview=False)
    weights = torch.stack(list(attention.layers.values()))  # (L, H, T, T)
    return {
        ATTENTION: weights[:, :, last].mean((0, 1)),
        GRADIENT: contributions(model, reading, [last]).text[0].abs(),
        INTEGRATED: integrated_gradients(model, reading, target, steps).abs(),
        ABLATION: ablation(model, reading, target).abs(),
        RECENCY: torch.arange(last + 1.0),
    }


def integrated_gradients(
    model: Model, reading: Reading, target: int, steps: int
) -> Float[Tensor, "T"]:
    """Contributions to a logit: gradients along the line from the mean embedding to the tokens'.

    They sum to the difference that the tokens make to the logit (Sundararajan et al., 2017).
    """
    share = (torch.arange(steps) + 0.5) / steps  # the middle of each step
    kept: dict[str, Tensor] = {}

    def along_the_line(value: Float[Tensor, "S T E"]) -> Float[Tensor, "S T E"]:
        base = mean_embedding(model)
        kept["way"] = (value - base).detach()
        points = base + share.to(value).view(-1, 1, 1) * kept["way"]
        kept["points"] = points.requires_grad_()
        return points

    with torch.enable_grad(), embeddings_changed(model, along_the_line):
        logit = last_logits(model, reading, steps)[:, target].sum()
        (gradient,) = torch.autograd.grad(logit, kept["points"])

    return (gradient * kept["way"]).sum(-1).mean(0).float().cpu()


@torch.no_grad()
def ablation(model: Model, reading: Reading, target: int) -> Float[Tensor, "T"]:
    """How much a logit falls if the embedding of each token in turn is the mean embedding."""
    tokens = range(len(reading.text.ids))

    def without_each(value: Float[Tensor, "T T E"]) -> Float[Tensor, "T T E"]:
        value = value.clone()
        value[tokens, tokens] = mean_embedding(model)
        return value

    before = last_logits(model, reading)[0, target]
    with embeddings_changed(model, without_each):
        after = last_logits(model, reading, len(tokens))[:, target]

    return (before - after).float().cpu()


def last_logits(model: Model, reading: Reading, copies: int = 1) -> Float[Tensor, "B V"]:
    """The logits of the next token, for some copies of the text."""
    ids = ids_of(model, reading)["ids"].expand(copies, -1)
    return model.logits(backbone_of(model).hidden(ids)[:, -1])


def mean_embedding(model: Model) -> Float[Tensor, "E"]:
    """The mean vector of the vocabulary: a token that says nothing."""
    matrix = next(model.get_submodule(TOKENS).parameters())
    return matrix.detach().mean(0)


@contextmanager
def embeddings_changed(model: Model, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Change the embeddings of tokens, before positions are added, while the context is open."""
    hook = model.get_submodule(TOKENS).register_forward_hook(lambda *call: change(call[-1]))
    try:
        yield
    finally:
        hook.remove()


def rank_correlation(one: Float[Tensor, "n"], other: Float[Tensor, "n"]) -> float:
    """Spearman's correlation: 1 for the same order, -1 for the opposite, 0 if one is constant."""
    ranks = []
    for values in (one, other):
        smaller = (values.unsqueeze(1) > values).sum(1)
        equal = (values.unsqueeze(1) == values).sum(1)
        ranks.append(smaller.double() + (equal.double() - 1) / 2)

    centred = [rank - rank.mean() for rank in ranks]
    scale = centred[0].norm() * centred[1].norm()
    if not scale:
        return 0.0

    return float(centred[0] @ centred[1] / scale)
