"""How large the residual stream is after each layer, and the gradient that comes back to it."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from qkv.generation.generate import without_dropout
from qkv.insight.inspect.logit_lens import first_residual, predicts_tokens, residuals
from qkv.insight.inspect.model_input import Reading, hidden, ids_of
from qkv.models import BERT
from qkv.models.registry import Model, backbone_of
from qkv.nn.hooks import add_hook


class Norms(NamedTuple):
    """By layer: the embedding first, then after each block."""

    residual: list[Float[Tensor, "T"]]
    gradient: list[Float[Tensor, "T"]] | None
    """Of the loss on the text itself; None where there is none, and no number at a place on which
    no loss hangs.
    """


def norms(model: Model, reading: Reading) -> Norms:
    """The Euclidean length of each place's vector, and of the loss's gradient by it.

    The loss is the mean over the text of saying the next word; of a BERT, of saying the word that
    stands there. The last word is not asked for the next, so the loss has no gradient there, which
    is not a small one.
    """
    given = ids_of(model, reading)
    ids = given["target"] if reading.source is not None else given["ids"]
    both_ways = isinstance(backbone_of(model), BERT)
    learnable = predicts_tokens(model) and (both_ways or ids.shape[1] > 1)

    with torch.set_grad_enabled(learnable), without_dropout(model):
        with add_hook(model, first_residual(model), leaf), residuals(model) as seen:
            last = hidden(model, reading)  # (1, T, E)

        layers = list(seen.values())
        lengths = [layer[0].detach().float().norm(dim=-1).cpu() for layer in layers]
        if not learnable:
            return Norms(lengths, None)

        read, said = (last, ids) if both_ways else (last[:, :-1], ids[:, 1:])
        loss = F.cross_entropy(backbone_of(model).logits(read)[0].float(), said[0].long())
        gradients = torch.autograd.grad(loss, layers)

    found = [each[0].float().norm(dim=-1).cpu() for each in gradients]
    if not both_ways:
        for last_one in (each[-1:] for each in found):
            last_one[last_one == 0] = torch.nan  # without its mask a GPT has a gradient there, too

    return Norms(lengths, found)


def leaf(value: Tensor, name: str) -> Tensor:
    """Where gradients begin, also above an embedding of eight bits, which has none."""
    return value.detach().requires_grad_()
