"""Norms of the residual stream after each layer, and of the gradient of the loss there."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from qkv.generation.generate import without_dropout
from qkv.insight.inspect.logit_lens import residuals
from qkv.insight.inspect.model_input import Reading, hidden, ids_of
from qkv.models.model import Model, backbone_of
from qkv.models.sites import first_residual, predicts_tokens
from qkv.nn.hooks import add_hook


class Norms(NamedTuple):
    """Norms by layer: the embedding first, then after each block."""

    residual: list[Float[Tensor, "T"]]
    gradient: list[Float[Tensor, "T"]] | None
    """Gradient of the loss on the text itself; None without a loss, NaN at a position that has no
    influence on the loss."""


def residual_norms(model: Model, reading: Reading) -> Norms:
    """The Euclidean norm of the residual stream and of its gradient, by layer and position.

    The loss is the mean cross-entropy of the next token over the text, for a BERT that of the token
    itself. The last token has no next token, so its gradient is NaN, not 0.

    Args:
        model: The model; an RNN has no residual stream.
        reading: The text, from `read`.

    Returns:
        Norms of the embedding and after each block.

    Raises:
        ValueError: If the model is an RNN.

    Example:
        >>> from qkv import insight, models, text
        >>> tokenizer = text.train("words", ["the cat sat on the mat"], 20)
        >>> model = models.GPT(models.GPTConfig(vocabulary=20, width=8, heads=2, depth=1))
        >>> norms = insight.residual_norms(model, insight.read(model, tokenizer, "the cat sat"))
        >>> len(norms.residual), norms.residual[0].shape
        (2, torch.Size([3]))
    """
    arguments = ids_of(model, reading)
    ids = arguments["target"] if reading.source is not None else arguments["ids"]
    bidirectional = backbone_of(model).predicts == "masked"
    has_loss = predicts_tokens(model) and (bidirectional or ids.shape[1] > 1)

    with torch.set_grad_enabled(has_loss), without_dropout(model):
        with add_hook(model, first_residual(model), as_leaf), residuals(model) as captured:
            last = hidden(model, reading)  # (1, T, E)

        layers = list(captured.values())
        lengths = [layer[0].detach().float().norm(dim=-1).cpu() for layer in layers]
        if not has_loss:
            return Norms(lengths, None)

        if not bidirectional:
            last = last[:, :-1]
            ids = ids[:, 1:]

        loss = F.cross_entropy(backbone_of(model).logits(last)[0].float(), ids[0].long())
        gradients = torch.autograd.grad(loss, layers)

    gradient_norms = [gradient[0].float().norm(dim=-1).cpu() for gradient in gradients]
    if not bidirectional:
        for norms in gradient_norms:
            # A GPT without its causal mask has a gradient at the last position, too.
            if norms[-1] == 0:
                norms[-1] = torch.nan

    return Norms(lengths, gradient_norms)


def as_leaf(value: Tensor, name: str) -> Tensor:
    """Hook: start the gradients here, also above an int8 embedding, which has none."""
    return value.detach().requires_grad_()
