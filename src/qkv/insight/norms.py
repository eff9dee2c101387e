"""How large the residual stream is after each layer, and the gradient that comes back to it."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from qkv.generation.decode import without_dropout
from qkv.insight.lens import in_order, residuals, says_words
from qkv.insight.reading import Reading, hidden, ids_of
from qkv.models import BERT
from qkv.models.build import Model, body_of


class Norms(NamedTuple):
    """By layer: the embedding first, then after each block."""

    residual: list[Float[Tensor, "T"]]
    gradient: list[Float[Tensor, "T"]] | None
    """Of the loss on the text itself; None where there is none."""


def norms(model: Model, reading: Reading) -> Norms:
    """The Euclidean length of each place's vector, and of the loss's gradient by it.

    The loss is the mean over the text of saying the next word; of a BERT, of saying the word that stands there.
    """
    given = ids_of(model, reading)
    ids = given["target"] if reading.source is not None else given["ids"]
    both_ways = isinstance(body_of(model), BERT)
    learnable = says_words(model) and (both_ways or ids.shape[1] > 1)
    with torch.set_grad_enabled(learnable), without_dropout(model):
        with residuals(model) as seen:
            last = hidden(model, reading)  # (1, T, E)
        layers = in_order(seen)
        lengths = [layer[0].detach().float().norm(dim=-1).cpu() for layer in layers]
        if not learnable:
            return Norms(lengths, None)
        read, said = (last, ids) if both_ways else (last[:, :-1], ids[:, 1:])
        loss = F.cross_entropy(body_of(model).logits(read)[0].float(), said[0].long())
        gradients = torch.autograd.grad(loss, layers)
    return Norms(lengths, [each[0].float().norm(dim=-1).cpu() for each in gradients])
