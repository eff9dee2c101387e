"""Next tokens and the logit lens: the likeliest tokens after the last and after every layer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.generation.fill import Guess
from qkv.generation.generate import without_dropout
from qkv.insight.inspect.model_input import Reading, hidden, readable_token
from qkv.models.model import Model, backbone_of
from qkv.models.sites import first_residual, output_stack, predicts_tokens
from qkv.nn.hooks import CapturedValues, capture
from qkv.text.tokenizer import Tokenizer

POSITIONS_PER_CHUNK = 128
"""Positions whose logits are computed together; each has the width of the vocabulary."""


def makes_predictions(model: Model) -> bool:
    """Whether the model predicts tokens, or answers with its task head."""
    return predicts_tokens(model) or model.task is not None


def residuals(model: Model) -> AbstractContextManager[CapturedValues]:
    """Capture the residual stream: before the first block, then after each, in this order."""
    first = first_residual(model)
    return capture(model, first, first.replace("0.before", "*.after"))


def next_tokens(
    model: Model, tokenizer: Tokenizer, reading: Reading, *, top: int = 5
) -> list[list[Guess]]:
    """The likeliest tokens at each position: the next token, or for a BERT the token itself.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        reading: The text, from `read`.
        top: The number of tokens at each position.

    Returns:
        For each position its guesses (text, id, probability), the likeliest first.

    Raises:
        ValueError: If top is below 1, or the model does not predict tokens.

    Example:
        >>> from qkv import insight, models, text
        >>> tokenizer = text.train("words", ["the cat sat on the mat"], 20)
        >>> model = models.GPT(models.GPTConfig(vocabulary=20, width=8, heads=2, depth=1))
        >>> reading = insight.read(model, tokenizer, "the cat")
        >>> guesses = insight.next_tokens(model, tokenizer, reading, top=3)
        >>> len(guesses), len(guesses[0])
        (2, 3)
    """
    check_lens(model, top)
    with torch.no_grad(), without_dropout(model):
        return top_tokens(model, tokenizer, hidden(model, reading)[0], top)


def logit_lens(
    model: Model, tokenizer: Tokenizer, reading: Reading, *, top: int = 5
) -> list[list[list[Guess]]]:
    """The logit lens: apply the output layer to the residual stream after every layer.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        reading: The text, from `read`.
        top: The number of tokens at each position.

    Returns:
        Guesses by layer, position and rank. The first layer is the embedding, and the last one
        gives the model's own predictions; an RNN has these alone.

    Raises:
        ValueError: If top is below 1, or the model does not predict tokens.

    Example:
        >>> from qkv import insight, models, text
        >>> tokenizer = text.train("words", ["the cat sat on the mat"], 20)
        >>> model = models.GPT(models.GPTConfig(vocabulary=20, width=8, heads=2, depth=1))
        >>> layers = insight.logit_lens(model, tokenizer, insight.read(model, tokenizer, "the cat"))
        >>> len(layers), len(layers[0])
        (2, 2)
    """
    check_lens(model, top)
    named_stack = output_stack(model)
    if named_stack is None:
        return [next_tokens(model, tokenizer, reading, top=top)]

    final_norm = named_stack[1].norm or torch.nn.Identity()
    with torch.no_grad(), without_dropout(model):
        with residuals(model) as captured:
            hidden(model, reading)

        layers = []
        for residual in captured.values():
            layers.append(top_tokens(model, tokenizer, final_norm(residual[0]), top))

    return layers


def top_tokens(
    model: Model, tokenizer: Tokenizer, vectors: Float[Tensor, "T E"], top: int
) -> list[list[Guess]]:
    """The likeliest tokens for each vector, by the output layer of the model."""
    backbone = backbone_of(model)
    # The output layer of some models is wider than the tokenizer's vocabulary.
    vocabulary = min(tokenizer.vocabulary, backbone.config.vocabulary)
    result: list[list[Guess]] = []
    for chunk in vectors.split(POSITIONS_PER_CHUNK):
        probability = backbone.logits(chunk).float().softmax(-1)[:, :vocabulary]  # (T, V)
        result += top_guesses(probability, top, partial(readable_token, tokenizer))

    return result


def top_guesses(
    probability: Float[Tensor, "N C"], top: int, name: Callable[[int], str]
) -> list[list[Guess]]:
    """The likeliest tokens or classes of each row; `name` is the text of one."""
    best, ids = probability.topk(min(top, probability.shape[1]))  # (N, top)
    result = []
    for row_ids, row_best in zip(ids.tolist(), best.tolist(), strict=True):
        pairs = zip(row_ids, row_best, strict=True)
        result.append([Guess(name(id), id, value) for id, value in pairs])

    return result


def check_lens(model: Model, top: int) -> None:
    """Raise if the model predicts no tokens, or too few are requested."""
    if top < 1:
        raise ValueError(f"top: expected 1 or more, not {top}")
    if not predicts_tokens(model):
        raise ValueError(
            "lens: this BERT is an encoder only: it has no output layer that predicts tokens"
        )
