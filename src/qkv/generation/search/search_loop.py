"""The loop of every search over whole sequences: several beams of several sentences in one batch.

A beam is a sequence so far. All beams of a sentence are side by side in the batch, and a sentence
whose search is over leaves it. The result of a sentence does not depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

from qkv.data.batches.padding import pad_rows, up_to
from qkv.generation.generate import check, context_limit, within, without_dropout
from qkv.generation.prefill import next_logits
from qkv.generation.prompts import Prompts, token_rows
from qkv.generation.sampling_params import SamplingParams
from qkv.generation.search.beams import SequenceRule
from qkv.generation.search.ensemble import Ensemble
from qkv.generation.stop import as_ends
from qkv.nn.linear.frozen_matrix import quantized_activations
from qkv.nn.linear.onednn import prepacking, small_enough

MANY = 4  # sentences for which it pays to pack the weights

S = TypeVar("S")


def prepare(
    model: Any, source: Prompts, padding_mask: Tensor | None, start: int | None
) -> tuple[Any, list[list[int]], bool]:
    """One model, the ids of each source or prompt, and whether a single one was given.

    Raises:
        TypeError: If the model cannot generate.
        ValueError: If the arguments do not go together.
    """
    if isinstance(model, Sequence):
        model = Ensemble(model)

    if isinstance(model, Ensemble) and len(model.models) == 1:
        model = model.models[0]  # the logarithm of its probabilities would be taken twice

    if getattr(model, "predicts", None) not in ("next", "target"):
        raise TypeError(
            f"model: expected a Transformer, an RNN or a GPT, not {type(model).__name__}"
        )

    if not model.has_source:
        if start is not None or padding_mask is not None:
            raise ValueError("start: a GPT continues its prompt; leave out start and padding_mask")
    elif start is None or not 0 <= start < model.config.vocabulary:
        last = model.config.vocabulary - 1
        raise ValueError(f"start: expected an id from 0 to {last}, not {start}")

    vocabulary = getattr(model.config, "source_vocabulary", None) or model.config.vocabulary

    return model, *token_rows(source, vocabulary, "source", padding_mask)


def batches(
    rows: Sequence[Sequence[int]], size: int, similar: int | None = None
) -> list[list[int]]:
    """The indices of rows that are read together, the longest first: at most `size` in a batch.

    With `similar`, the lengths in a batch round up to the same multiple of it; with 1 they are
    equal.
    """
    if size < 1:
        raise ValueError(f"batch: expected 1 sentence or more, not {size}")

    grouped: list[list[int]] = []
    last_kind = -1
    for index in sorted(range(len(rows)), key=lambda index: -len(rows[index])):
        kind = 0 if similar is None else up_to(len(rows[index]), similar)
        if not grouped or len(grouped[-1]) == size or kind != last_kind:
            grouped.append([])

        grouped[-1].append(index)
        last_kind = kind

    return grouped


@torch.inference_mode()
@quantized_activations()
def search(
    model: Any,
    rows: list[list[int]],
    rule: SequenceRule,
    begin: Callable[[int, int], S],
    start: int | None,
    length: int,
    batch: int,
) -> list[S]:
    """Search all rows, `batch` at a time, and return the sentence of each.

    Args:
        model: The model.
        rows: Sources, or a GPT's prompts.
        rule: Chooses the beams to keep after each token.
        begin: Makes the sentence of a row, from its index and the tokens that fit.
        start: The id that a target begins with.
        length: Tokens of a sequence at most.
        batch: Sentences at a time.
    """
    params = SamplingParams(minimum=rule.minimum, forbidden=tuple(rule.forbidden))
    check(model, length, as_ends(rule.end), params)
    similar = None
    if start is None:
        similar = 1  # prompts are not padded
        limit = context_limit(model, "refuse")
        if limit is not None:
            rows = [within(row, limit, length, "refuse") for row in rows]
    else:
        limit = context_limit(model, "extend")

    packing: AbstractContextManager[None] = nullcontext()
    if len(rows) >= MANY and small_enough(model):
        packing = prepacking()

    device = next(model.parameters()).device
    sentences: dict[int, S] = {}
    with without_dropout(model), packing:
        for indices in batches(rows, batch, similar=similar):
            sources = [rows[index] for index in indices]
            if start is None:
                state = model.start()
                ids = torch.tensor(sources, device=device)
            else:
                state = encode_sources(model, sources)
                ids = torch.full((len(sources), 1), start, device=device)

            fits = length if limit is None else min(length, limit - ids.shape[1] + 1)
            begun = {index: begin(index, fits) for index in indices}
            search_batch(model, ids, state, list(begun.values()), fits, rule)
            sentences |= begun

    return [sentences[row] for row in range(len(rows))]


def encode_sources(model: Any, sources: list[list[int]]) -> Any:
    """A translator's state before the first target token."""
    return model.start(*pad_rows(sources, device=next(model.parameters()).device))


def search_batch(
    model: Any,
    ids: Int[Tensor, "B T"],
    state: Any,
    sentences: list[S],
    length: int,
    rule: SequenceRule,
) -> None:
    """One pass per token: each sentence chooses which beams to extend by which token."""
    for step in range(length):
        beams = ids.shape[0] // len(sentences)  # one per sentence at first
        chosen = rule.advance(next_logits(model, ids, state), sentences, step)

        # The row of each beam that is kept, and its new token.
        rows = []
        tokens = []
        open_sentences = []
        for index, (sentence, continuations) in enumerate(zip(sentences, chosen, strict=True)):
            if continuations:
                open_sentences.append(sentence)

            for beam, token in continuations:
                rows.append(index * beams + beam)
                tokens.append([token])

        if not rows:
            return

        sentences = open_sentences
        if rows != list(range(ids.shape[0])):
            state.reorder(torch.tensor(rows, device=ids.device))

        ids = torch.tensor(tokens, device=ids.device)  # (R, 1)
