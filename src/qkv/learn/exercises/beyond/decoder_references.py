"""What the parts of exercise 13 compute, by the library, and with known mistakes."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from qkv.data.batches.batch import IGNORE
from qkv.learn.expectations import Failed, InputDraw, is_close
from qkv.nn.attention import Additive, Causal, Padding, attend
from qkv.nn.block import Block
from qkv.nn.recurrent import Recurrent
from qkv.training.loss import loss_sum


def recurrent_states(source: Tensor, w_x: Tensor, w_h: Tensor, bias: Tensor) -> Tensor:
    """The outputs of the library's RNN with these weights."""
    layer = Recurrent("rnn", w_x.shape[1], len(bias), depth=1)
    weights = {
        "cells.weight_ih_l0": w_x,
        "cells.weight_hh_l0": w_h,
        "cells.bias_ih_l0": bias,
        "cells.bias_hh_l0": torch.zeros_like(bias),
    }
    states: Tensor = torch.func.functional_call(layer, weights, (source,))[0]
    return states


def library_bahdanau(values: dict[str, Tensor], lengths: Tensor, **options: Any) -> Any:
    """Context and weights by the library's attention with the additive score."""
    hidden, width = values["w_query"].shape
    score = Additive(width, width=hidden)
    weights = {
        "W_q.weight": values["w_query"],
        "W_k.weight": values["w_key"],
        "v.weight": values["v"].unsqueeze(0),
    }

    def additive(query: Tensor, key: Tensor) -> Tensor:
        scores: Tensor = torch.func.functional_call(score, weights, (query, key))
        return scores

    return attend_to_states(values, lengths, score=additive, **options)


def right_scores_first(
    check: Callable[[ModuleType, InputDraw], None],
) -> Callable[[ModuleType, InputDraw], None]:
    """Let a check that fails blame exercise 2, if the score that it wrote is not right."""

    @wraps(check)
    def checked(mine: ModuleType, draw: InputDraw) -> None:
        try:
            check(mine, draw)
        except NotImplementedError:
            raise
        except Exception:
            if is_additive_right():
                raise

            raise Failed(
                "bahdanau cannot be checked yet: additive of ex02_scores.py is not right, so "
                "exercise 2 is red; mend it first: qkv learn check scores"
            ) from None

    return checked


def is_additive_right() -> bool:
    """Whether the score of the student's exercise 2 is right; a notebook may have none."""
    draw = InputDraw(2, seed=0)
    query, key = draw.normal(2, 3, 4), draw.normal(2, 5, 4)
    w_query, w_key, v = draw.normal(6, 4), draw.normal(6, 4), draw.normal(6)
    right = torch.tanh((query @ w_query.T).unsqueeze(-2) + (key @ w_key.T).unsqueeze(-3)) @ v
    try:
        found = import_module("ex02_scores").additive(query, key, w_query, w_key, v)
    except ModuleNotFoundError:
        return True
    except Exception:
        return False

    return isinstance(found, Tensor) and is_close(found, right, 1e-5)


def attend_to_states(values: dict[str, Tensor], lengths: Tensor, **options: Any) -> Any:
    """Context and weights by the library's attention: one query, keys and values the states."""
    states = values["states"]
    padding = Padding.of_lengths(lengths, states.shape[1])
    settings: dict[str, Any] = {"mask": padding, "need_weights": True} | options
    context, weights = attend(values["state"].unsqueeze(1), states, states, **settings)
    assert weights is not None
    return context.squeeze(1), weights.squeeze(1)


def library_loss(logits: Tensor, target: Tensor, lengths: Tensor) -> Tensor:
    """The library's loss, with logits as features of an output layer that is the identity."""
    is_token = torch.arange(target.shape[1]) < lengths.unsqueeze(1)
    targets = target.where(is_token, torch.tensor(IGNORE))
    return loss_sum(logits, torch.eye(logits.shape[-1]), None, targets) / lengths.sum()


VARIANTS = {
    "no residual": "DecoderBlock: the residual x + ... is missing",
    "no cross residual": "DecoderBlock: the residual around cross-attention is missing",
    "post-norm": "DecoderBlock: the norm comes after the sum; here it is x + sublayer(norm(x))",
    "no norm": "DecoderBlock: no norm before the sublayers; it is x + sublayer(norm(x))",
    "cross first": "DecoderBlock: cross-attention comes before self-attention; it is the second",
    "cross last": "DecoderBlock: feed-forward comes before cross-attention; it is the last",
    "normalised source": "DecoderBlock: the source is normalised by cross_norm; that is for x",
    "same norm": "DecoderBlock: cross-attention uses attention_norm; it has its own, cross_norm",
    "no cross norm": "DecoderBlock: cross-attention reads x without cross_norm",
}
"""What the student is told of a decoder block that is put together in a wrong way."""


def run_sublayers(
    block: Block, x: Tensor, source: Tensor, padding: Padding, variant: str
) -> Tensor:
    """The library's decoder block, put together as in a known mistake."""
    norms = {
        "self": block.attention_residual.norm,
        "cross": block.cross_attention_residual.norm,
        "feed": block.feed_forward_residual.norm,
    }
    if variant == "normalised source":
        source = norms["cross"](source)

    def self_attention(y: Tensor) -> Tensor:
        output: Tensor = block.attention(y, mask=Causal())[0]
        return output

    def cross_attention(y: Tensor) -> Tensor:
        output: Tensor = block.cross_attention(y, source, mask=padding)[0]
        return output

    sublayers: dict[str, Any] = {
        "self": self_attention,
        "cross": cross_attention,
        "feed": block.feed_forward,
    }
    orders = {"cross first": ("cross", "self", "feed"), "cross last": ("self", "feed", "cross")}
    for name in orders.get(variant, ("self", "cross", "feed")):
        norm: Any = norms[name]
        if variant == "no norm" or (name, variant) == ("cross", "no cross norm"):
            norm = torch.nn.Identity()
        if (name, variant) == ("cross", "same norm"):
            norm = norms["self"]

        if variant == "post-norm":
            x = norm(x + sublayers[name](x))
        elif variant == "no residual" or (name, variant) == ("cross", "no cross residual"):
            x = sublayers[name](norm(x))
        else:
            x = x + sublayers[name](norm(x))

    return x
