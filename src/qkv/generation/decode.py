"""Ids in, ids out: read the prompt (prefill), then word after word (step), with the state passed in.

One loop serves them all: GPT, Transformer-XL, the encoder-decoder Transformer and the RNN. What a row says does not
depend on its neighbours: it draws by its own chances, and leaves the batch when it has ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from qkv.generation.sample import chances, check_choice, choose
from qkv.models import GPT, RNN, Transformer
from qkv.nn.state import SegmentMemory


def generate(
    model: GPT,
    ids: Int[Tensor, "B T"],
    *,
    length: int,
    end: int | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | Sequence[int] | None = None,
) -> list[list[int]]:
    """Go on from each row's prompt: at most `length` new ids a row, up to the end id and without it.

    With learned positions a row also ends where the model's context is full: the prompt and what is said have, but for
    the last word, which need not be read, no more places. Transformer-XL reads a prompt longer than its context in
    segments. A seed makes the same texts again; a list has one for each row, as `row_seeds` gives them. Without a seed
    the texts are new every time, and nobody else's random numbers are touched.
    """
    if not isinstance(model, GPT):
        raise TypeError(f"model: expected a GPT, which goes on from a prompt, not {type(model).__name__}")
    if ids.dim() != 2 or ids.shape[1] == 0:
        raise ValueError(f"ids: expected a prompt of one word or more in each row (B, T), not {tuple(ids.shape)}")
    choice = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    check(model, length, end, choice)
    chance = chances(seed, ids.shape[0], length)
    with torch.no_grad(), without_dropout(model):
        return go_on(model, ids, model.start(), chance, end, choice)


def translate(
    model: Transformer | RNN,
    source: Int[Tensor, "B S"],
    keep: Bool[Tensor, "B S"] | None = None,
    *,
    start: int,
    end: int,
    length: int,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | Sequence[int] | None = None,
) -> list[list[int]]:
    """The target of each row's source: at most `length` ids, from the start id to the end id and without both.

    `keep` is False for the source's padding. The rest is as in `generate`.
    """
    if not isinstance(model, Transformer | RNN):
        raise TypeError(f"model: expected a Transformer or an RNN, which translate, not {type(model).__name__}")
    if source.dim() != 2:
        raise ValueError(f"source: expected shape (B, S), not {tuple(source.shape)}")
    choice = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    check(model, length, end, choice)
    if not 0 <= start < model.config.vocabulary:
        raise ValueError(f"start: expected an id from 0 to {model.config.vocabulary - 1}, not {start}")
    chance = chances(seed, source.shape[0], length)
    if source.shape[0] == 0:
        return []
    with torch.no_grad(), without_dropout(model):
        first = source.new_full((source.shape[0], 1), start)
        return go_on(model, first, model.start(source, keep), chance, end, choice)


def check(model: GPT | Transformer | RNN, length: int, end: int | None, choice: dict[str, Any]) -> None:
    if length < 1:
        raise ValueError(f"length: expected 1 word or more, not {length}")
    if end is not None and not 0 <= end < model.config.vocabulary:
        raise ValueError(f"end: expected an id from 0 to {model.config.vocabulary - 1}, not {end}")
    check_choice(**choice)


def go_on(
    model: GPT | Transformer | RNN,
    ids: Int[Tensor, "B T"],
    state: Any,
    chance: Float[Tensor, "B L"],
    end: int | None,
    choice: dict[str, Any],
) -> list[list[int]]:
    """The loop: read what is new, choose a word for each row, and let the rows go that have ended."""
    said: list[list[int]] = [[] for _ in range(ids.shape[0])]
    running = list(range(ids.shape[0]))
    limit = None if isinstance(model, RNN) or model.config.position != "learned" else model.config.context
    for number in chance.T if running else ():  # (B,) for each word
        chosen = choose(read(model, ids, state), number[running].to(ids.device), **choice)
        words = chosen.tolist()
        going = [place for place, word in enumerate(words) if word != end]
        for place in going:
            said[running[place]].append(words[place])
        if not going or state.length == limit:
            break
        if len(going) < len(words):
            running = [running[place] for place in going]
            places = torch.tensor(going, device=ids.device)
            state.reorder(places)
            chosen = chosen[places]
        ids = chosen.unsqueeze(1)  # (B,) -> (B, 1)
    return said


def read(model: GPT | Transformer | RNN, ids: Int[Tensor, "B T"], state: Any) -> Float[Tensor, "B V"]:
    """Scores of the next word; of a prompt only the last word's are computed. Prefill and step are this one pass."""
    segment = model.config.context if isinstance(model, GPT) and isinstance(state, SegmentMemory) else ids.shape[1]
    for piece in ids.split(segment, dim=1):  # Transformer-XL reads as it was trained to
        hidden = model.hidden(piece, state=state)
    return model.logits(hidden[:, -1])  # (B, T, E) -> (B, V)


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """In evaluation mode; afterwards every part is in the mode it was in."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
