"""Masked words: what stands, in a BERT's opinion, where the text says [mask]."""

from __future__ import annotations

import re
from typing import NamedTuple

import torch

from qkv.generation.generate import without_dropout
from qkv.generation.prompts import check_text
from qkv.models import BERT
from qkv.text.special_tokens import KNOWN, OURS
from qkv.text.tokenizer import Tokenizer


class Guess(NamedTuple):
    text: str
    """The word as it is read."""
    id: int
    probability: float


def fill(model: BERT, tokenizer: Tokenizer, text: str, *, top: int = 5) -> list[list[Guess]]:
    """For each mask of the text the likeliest tokens, the likeliest first, each seen without the
    other masks' guesses.

    A mask may be written [mask], [MASK], <mask> or as the tokenizer spells it.
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
            "tokenizer: it has no mask token, [mask] or [MASK], so its model was not taught to guess"
        )

    ids = masked_ids(tokenizer, text)
    if len(ids) > model.config.context:
        raise ValueError(
            f"text: {len(ids):,} tokens are more than the model's context of {model.config.context:,}; shorten it"
        )

    row = torch.tensor([ids], device=next(model.parameters()).device)  # (1, T)
    places = (row[0] == tokenizer.mask).nonzero()[:, 0]  # (M,)

    with torch.no_grad(), without_dropout(model):
        logits = model.logits(model.hidden(row)[0, places])  # (1, T, E) -> (M, E) -> (M, V)

    probability = logits.double().softmax(-1)[
        :, : tokenizer.vocabulary
    ]  # some models have room for more tokens
    likeliest, chosen = probability.topk(min(top, probability.shape[1]))  # (M, top)

    return [
        [
            Guess(tokenizer.decode([id]) or tokenizer.token(id), id, each)
            for id, each in zip(*row, strict=True)
        ]
        for row in zip(chosen.tolist(), likeliest.tolist(), strict=True)
    ]


def masked_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text with its masks, in the frame that it had in training: [start], words,
    [end].
    """
    assert tokenizer.mask is not None
    parts = masks_of(tokenizer).split(text)
    if len(parts) == 1:
        raise ValueError(
            "text: there is no mask in it to fill; write [mask] where a word is missing"
        )

    if tokenizer.decoders & {"ByteLevel", "Metaspace"}:
        # The space before a word is a part of the word, and so of the one that is hidden.
        parts = [*(part.removesuffix(" ") for part in parts[:-1]), parts[-1]]

    ids: list[int] = []

    for number, part in enumerate(parts):
        ids += [tokenizer.mask] * (number > 0) + tokenizer.encode(part)

    before, after = ([] if id is None else [id] for id in (tokenizer.start, tokenizer.end))

    return before + ids + after


def masks_of(tokenizer: Tokenizer) -> re.Pattern[str]:
    assert tokenizer.mask is not None
    spelled = {tokenizer.token(tokenizer.mask), OURS["mask"], *KNOWN["mask"]}
    return re.compile("|".join(map(re.escape, sorted(spelled))))
