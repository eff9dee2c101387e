"""Masked language modelling: the likeliest tokens of a BERT where a text has [mask]."""

from __future__ import annotations

import re
from typing import NamedTuple

import torch

from qkv.generation.generate import without_dropout
from qkv.generation.prompts import check_text
from qkv.models import BERT
from qkv.nn.linear.frozen_matrix import quantized_activations
from qkv.text.frame_tokens import tokens_around
from qkv.text.special_tokens import KNOWN, OURS
from qkv.text.tokenizer import Tokenizer


class Guess(NamedTuple):
    """A token for a mask."""

    text: str
    """The token as it is read."""
    id: int
    probability: float


def fill(model: BERT, tokenizer: Tokenizer, text: str, *, top: int = 5) -> list[list[Guess]]:
    """Guess each mask of a text, without regard to the guesses for other masks.

    Args:
        model: A BERT with a masked-language-model head.
        tokenizer: Its tokenizer.
        text: A mask may be written [mask], [MASK], <mask> or as the tokenizer spells it.
        top: Guesses of each mask.

    Returns:
        The likeliest tokens of each mask, the likeliest first.

    Raises:
        TypeError: If the model is no BERT.
        ValueError: If the text has no mask or is longer than the context.
    """
    if not isinstance(model, BERT):
        raise TypeError(
            f"model: expected a BERT, which guesses masked words, not {type(model).__name__}"
        )

    check_text(text)
    if top < 1:
        raise ValueError(f"top: expected 1 or more, not {top}")
    if tokenizer.mask is None:
        raise ValueError(
            "tokenizer: it has no mask token, [mask] or [MASK], so its model was not trained "
            "to fill masks"
        )

    ids = masked_ids(tokenizer, text)
    if len(ids) > model.config.context:
        raise ValueError(
            f"text: {len(ids):,} tokens are more than the model's context of "
            f"{model.config.context:,}; shorten it"
        )

    return guess_masks(model, tokenizer, ids, top)


def guess_masks(model: BERT, tokenizer: Tokenizer, ids: list[int], top: int) -> list[list[Guess]]:
    """The guesses of each mask among the ids."""
    assert tokenizer.mask is not None
    row = torch.tensor([ids], device=next(model.parameters()).device)  # (1, T)
    positions = row[0].eq(tokenizer.mask).nonzero()[:, 0]  # (M,)
    with torch.no_grad(), quantized_activations(), without_dropout(model):
        logits = model.logits(model.hidden(row)[0, positions])  # (1, T, E) -> (M, E) -> (M, V)

    # Some models have a larger output than their tokenizer has tokens.
    probability = logits.double().softmax(-1)[:, : tokenizer.vocabulary]
    values, tokens = probability.topk(min(top, probability.shape[1]))  # (M, top)

    guesses = []
    for mask_ids, mask_values in zip(tokens.tolist(), values.tolist(), strict=True):
        mask_guesses = []
        for id, value in zip(mask_ids, mask_values, strict=True):
            text = tokenizer.decode([id]) or tokenizer.token(id)
            mask_guesses.append(Guess(text, id, value))

        guesses.append(mask_guesses)

    return guesses


def masked_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text with its masks, between a start and an end id as in training."""
    assert tokenizer.mask is not None
    parts = masks_of(tokenizer).split(text)
    if len(parts) == 1:
        raise ValueError(
            "text: there is no mask in it to fill; write [mask] where a word is missing"
        )

    if tokenizer.decoders & {"ByteLevel", "Metaspace"}:
        # The space before a word is part of its token, and so of the masked one.
        parts = [*(part.removesuffix(" ") for part in parts[:-1]), parts[-1]]

    ids = tokenizer.encode(parts[0])
    for part in parts[1:]:
        ids += [tokenizer.mask, *tokenizer.encode(part)]

    return tokens_around(tokenizer, "sentence").around(ids)


def masks_of(tokenizer: Tokenizer) -> re.Pattern[str]:
    """The spellings of a mask."""
    assert tokenizer.mask is not None
    spellings = {tokenizer.token(tokenizer.mask), OURS["mask"], *KNOWN["mask"]}
    return re.compile("|".join(map(re.escape, sorted(spellings))))
