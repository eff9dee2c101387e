"""What every search over whole sequences shares: sentences side by side, several beams each, and
leaving when done.

A beam is a sequence so far. All beams of a sentence lie side by side in the batch, and a sentence
whose search is over leaves it. What a sentence finds does not depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkv.data.batches.paired import pad
from qkv.generation import generate
from qkv.generation.generate import limit_of, within, without_dropout
from qkv.generation.prefill import read
from qkv.generation.prompts import Prompts, token_rows
from qkv.generation.sampling_params import SamplingParams
from qkv.generation.search.ensemble import Ensemble
from qkv.models import GPT, RNN, Transformer
from qkv.nn.linear.onednn import prepacking, small_enough

MOST_BEAMS = 1024
MANY = 4  # sentences for which it pays to pack the weights

S = TypeVar("S")
Advance = Callable[[Float[Tensor, "R V"], list[S], int], list[list[tuple[int, int]]]]
"""From the logits of all beams, the sentences they are of, and how many words were said: for each
sentence its beams that go on, each as the old beam and the new word; always as many of them, and
none when its search is over."""


def settle(
    model: Any, source: Prompts, padding_mask: Tensor | None, start: int | None
) -> tuple[Any, list[list[int]], bool]:
    """One model, the ids of each source or prompt, after a look whether they go together, and
    whether one was given.
    """
    one = Ensemble(model) if isinstance(model, Sequence) else model
    if isinstance(one, Ensemble) and len(one.models) == 1:
        one = one.models[0]  # the logarithm of its probabilities would be taken twice

    if isinstance(one, GPT):
        if start is not None or padding_mask is not None:
            raise ValueError("start: a GPT goes on from its prompt; leave start and keep out")
    elif not isinstance(one, Transformer | RNN | Ensemble):
        raise TypeError(f"model: expected a Transformer, an RNN or a GPT, not {type(one).__name__}")
    elif start is None or not 0 <= start < one.config.vocabulary:
        raise ValueError(
            f"start: expected an id from 0 to {one.config.vocabulary - 1}, not {start}"
        )

    vocabulary = getattr(one.config, "source_vocabulary", None) or one.config.vocabulary

    return one, *token_rows(source, vocabulary, "source", padding_mask)


def check(
    model: Any,
    length: int,
    end: int | None,
    minimum: int,
    forbidden: Sequence[int],
    beams: int,
    name: str = "beams",
) -> None:
    generate.check(
        model,
        length,
        generate.as_ends(end),
        SamplingParams(minimum=minimum, forbidden=tuple(forbidden)),
    )

    if not 1 <= beams <= MOST_BEAMS:
        raise ValueError(f"{name}: expected 1 to {MOST_BEAMS:,}, not {beams:,}")


def batches(
    rows: Sequence[Sequence[int]], size: int, similar: int | None = None
) -> list[list[int]]:
    """Rows that are read together, by their places, the longest first: at most `size` of nearly one
    length. With `similar`, all their lengths lie in the same multiple of it; with 1 they are equal.
    """
    if size < 1:
        raise ValueError(f"batch: expected 1 sentence or more, not {size}")

    kinds = [0 if similar is None else rounded(len(row), similar) for row in rows]
    made: list[list[int]] = []

    for at in sorted(range(len(rows)), key=lambda at: -len(rows[at])):
        if not made or len(made[-1]) == size or kinds[made[-1][0]] != kinds[at]:
            made.append([])

        made[-1].append(at)

    return made


def rounded(length: int, multiple: int) -> int:
    """Up to a multiple."""
    return -(-length // multiple) * multiple


@torch.inference_mode()
def search(
    model: Any,
    rows: list[list[int]],
    start: int | None,
    length: int,
    batch: int,
    begin: Callable[[int, int], S],
    advance: Advance[S],
) -> None:
    """Search all rows, some at a time. `begin` makes the sentence of a row, given how many words
    fit.
    """
    limit = limit_of(model, "refuse" if isinstance(model, GPT) else "extend")
    if isinstance(model, GPT) and limit is not None:
        rows = [within(row, limit, length, "refuse") for row in rows]

    device = next(model.parameters()).device

    with (
        without_dropout(model),
        prepacking() if len(rows) >= MANY and small_enough(model) else nullcontext(),
    ):
        for numbers in batches(rows, batch, similar=1 if isinstance(model, GPT) else None):
            if isinstance(model, GPT):
                state, ids = (
                    model.start(),
                    torch.tensor([rows[number] for number in numbers], device=device),
                )
            else:
                assert start is not None
                source, padding_mask = pad([rows[number] for number in numbers], 0)
                source, padding_mask = (
                    source.to(device),
                    None if padding_mask is None else padding_mask.to(device),
                )
                state, ids = (
                    model.start(source, padding_mask),
                    source.new_full((len(numbers), 1), start),
                )

            fits = length if limit is None else min(length, limit - ids.shape[1] + 1)
            walk(model, ids, state, [begin(number, fits) for number in numbers], fits, advance)


def walk(
    model: Any,
    ids: Int[Tensor, "B T"],
    state: Any,
    sentences: list[S],
    length: int,
    advance: Advance[S],
) -> None:
    """The loop: read what is new, and let each sentence choose which of its beams go on with which
    word.
    """
    for said in range(length):
        beams = ids.shape[0] // len(sentences)  # one of each sentence at first
        going = advance(read(model, ids, state), sentences, said)
        rows = [at * beams + beam for at, chosen in enumerate(going) for beam, _ in chosen]
        if not rows:
            return

        sentences = [sentence for sentence, chosen in zip(sentences, going, strict=True) if chosen]
        if rows != list(range(ids.shape[0])):
            state.reorder(torch.tensor(rows, device=ids.device))

        ids = torch.tensor(
            [[word] for chosen in going for _, word in chosen], device=ids.device
        )  # (R, 1)
