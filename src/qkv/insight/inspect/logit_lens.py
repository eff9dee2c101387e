"""What a model would say: the likeliest tokens at each place, after the last layer and after every
layer before it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.generation.fill import Guess
from qkv.generation.generate import without_dropout
from qkv.insight.inspect.model_input import Reading, hidden, readable
from qkv.models import BERT, RNN, TaskModel, Transformer
from qkv.models.registry import Model, backbone_of
from qkv.nn.block import Stack
from qkv.nn.hooks import CapturedValues, capture
from qkv.text.tokenizer import Tokenizer

AT_ONCE = 128
"""So many places have their logits made together: a vocabulary is wide."""


def predicts_tokens(model: Model) -> bool:
    """Whether there is an output layer for words: an encoder alone has none."""
    backbone = backbone_of(model)
    return not (isinstance(backbone, BERT) and backbone.head is None)


def stack_of(model: Model) -> tuple[str, Stack] | None:
    """The blocks that lead to the output, and their name in the model; an RNN has none."""
    backbone = backbone_of(model)
    if isinstance(backbone, RNN):
        return None
    if isinstance(backbone, Transformer):
        return "decoder", backbone.decoder

    return ("backbone." if isinstance(model, TaskModel) else "") + "stack", backbone.stack


def first_residual(model: Model) -> str:
    """The point before the first block."""
    found = stack_of(model)
    if found is None:
        raise ValueError("layers: an RNN has no residual stream")

    return f"{found[0]}.blocks.0.before"


def residuals(model: Model) -> AbstractContextManager[CapturedValues]:
    """Records the residual stream: before the first block, then after each, in this order."""
    first = first_residual(model)
    return capture(model, first, first.replace("0.before", "*.after"))


def next_tokens(
    model: Model, tokenizer: Tokenizer, reading: Reading, *, top: int = 5
) -> list[list[Guess]]:
    """The likeliest tokens at each place: what comes next, or, of a BERT, what stands there."""
    check(model, top)
    with torch.no_grad(), without_dropout(model):
        return guesses(model, tokenizer, hidden(model, reading)[0], top)


def lens(
    model: Model, tokenizer: Tokenizer, reading: Reading, *, top: int = 5
) -> list[list[list[Guess]]]:
    """The logit lens: the output layer reads the residual stream after the embedding, then after
    each block.

    By layer, by place, by rank. The last layer's are the model's own.
    """
    check(model, top)
    found = stack_of(model)
    if found is None:
        return [next_tokens(model, tokenizer, reading, top=top)]

    _, stack = found

    with torch.no_grad(), without_dropout(model):
        with residuals(model) as seen:
            hidden(model, reading)

        last = stack.norm or torch.nn.Identity()
        return [guesses(model, tokenizer, last(layer[0]), top) for layer in seen.values()]


def guesses(
    model: Model, tokenizer: Tokenizer, vectors: Float[Tensor, "T E"], top: int
) -> list[list[Guess]]:
    backbone = backbone_of(model)
    known = min(
        tokenizer.vocabulary, backbone.config.vocabulary
    )  # some models have room for more tokens
    said: list[list[Guess]] = []

    for some in vectors.split(AT_ONCE):
        probability = backbone.logits(some).float().softmax(-1)[:, :known]  # (T, V)
        likeliest, ids = probability.topk(min(top, known))  # (T, top)
        for row in zip(ids.tolist(), likeliest.tolist(), strict=True):
            said.append(
                [Guess(readable(tokenizer, id), id, each) for id, each in zip(*row, strict=True)]
            )

    return said


def check(model: Model, top: int) -> None:
    if top < 1:
        raise ValueError(f"top: expected 1 or more, not {top}")
    if not predicts_tokens(model):
        raise ValueError(
            "lens: this BERT is an encoder only: it has no output layer that would say a word"
        )
