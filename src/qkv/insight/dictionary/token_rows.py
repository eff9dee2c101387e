"""Texts as rows of token ids, and the vectors of their tokens after one layer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from qkv.generation.generate import without_dropout
from qkv.generation.text import prompt_ids
from qkv.insight.inspect.model_input import frame_tokens
from qkv.insight.probing.activations import ProbeData, block_vectors, check_layers
from qkv.models.model import Model
from qkv.text.tokenizer import Tokenizer

LONGEST = 256
"""Longest text in tokens; the rest is cut."""


def token_rows(
    model: Model, tokenizer: Tokenizer, texts: Iterable[str], longest: int = LONGEST
) -> list[list[int]]:
    """The ids of each text with the special tokens around it; texts of one token are left out.

    Raises:
        ValueError: If the model reads pairs or has a task head, or no text is left.
    """
    if model.has_source or model.task is not None or not model.stacks:
        raise ValueError(
            f"model: expected a GPT or a BERT without a task head, not a {type(model).__name__}"
        )

    longest = min(longest, model.config.context)
    rows = []
    for text in texts:
        if model.is_causal:
            ids = list(prompt_ids(tokenizer, text))[:longest]
        else:
            frame = frame_tokens(model, tokenizer)["self"]
            ids = list(frame.around(tokenizer.encode(text)[: longest - len(frame.around([]))]))

        if len(ids) > 1:
            rows.append(ids)

    if not rows:
        raise ValueError("data: there is no text of two tokens or more; expected a longer one")

    return rows


class TokenVectors(NamedTuple):
    """The vectors of some tokens, and where each token stands."""

    vectors: Float[Tensor, "N E"]
    places: list[tuple[int, int]]
    """Row and position of each vector."""


@torch.no_grad()
def token_vectors(
    model: Model, tokenizer: Tokenizer, rows: list[list[int]], layer: int
) -> TokenVectors:
    """The residual stream after a layer at each token of text.

    Special tokens and the first token are left out: in many models their vectors are far larger
    than all others, and a few features would be spent on them.
    """
    depth = len(next(iter(model.stacks.values())).blocks)
    if not 0 <= layer < depth:
        raise ValueError(f"layer: expected 0 to {depth - 1}, not {layer}")

    check_layers(model, [str(layer)])
    ids, positions, places = [], [], []
    for number, row in enumerate(rows):
        kept = [place for place in range(1, len(row)) if row[place] not in tokenizer.special]
        if kept:
            ids.append(np.array(row))
            positions.append(np.array(kept, dtype=np.int64))
            places += [(number, place) for place in kept]

    if not places:
        raise ValueError("data: the texts have special tokens only; expected others")

    data = ProbeData(ids, positions, np.zeros(len(places), dtype=np.int64))
    with without_dropout(model):
        vectors = block_vectors(model, data, range(len(ids)), [str(layer)])[0]

    return TokenVectors(vectors.float().cpu(), places)
