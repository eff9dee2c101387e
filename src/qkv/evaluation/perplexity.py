"""How surprised a model is by a text: perplexity, bits per character and per byte, with the window
and stride said.

Perplexity is a matter of the tokenizer, too: fewer tokens to a text make each harder. Bits per
character and per byte compare across tokenizers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from qkv.data.batches.paired import pad
from qkv.data.sources.lines import DocumentPart
from qkv.evaluation import intervals
from qkv.evaluation.likelihood import (
    TOKENS,
    TOKENS_ON_GPU,
    Likelihood,
    Request,
    likelihoods,
    token_log_probabilities,
)
from qkv.evaluation.question import first_word, unknown_among
from qkv.generation.generate import without_dropout
from qkv.models import GPT, RNN, Transformer
from qkv.text import Tokenizer

# words that an interval takes together: neighbours are alike, so that single ones would say too
# much
UNIT = 64
WINDOW = 1024


@dataclass(frozen=True)
class Perplexity:
    scores: tuple[intervals.Score, ...]
    tokens: int
    """Of the text."""
    scored: int
    """Predicted words: all of the text's, and an end after each target."""
    characters: int
    bytes: int
    documents: int
    windows: int
    """Forward passes over a text, or pairs of a translator."""
    unknown: int
    """Tokens that stand for words which the vocabulary does not have."""


def of_texts(
    model: GPT,
    tokenizer: Tokenizer,
    texts: Iterable[DocumentPart],
    *,
    window: int | None = None,
    stride: int | None = None,
    limit: int | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, all: None,
) -> Perplexity:
    """Of documents, each predicted from its own beginning.

    Each window of `window` words scores its last `stride` words, the first one all of its words: so
    every word is scored once, and all but the first ones with at least window - stride words before
    them. `limit` keeps the first windows only; the text after them is neither read nor counted.
    """
    window, stride = window_and_stride(model, window, stride)
    first = first_word(tokenizer)
    asked: list[Request] = []
    characters = tokens = size = documents = unknown = 0
    ids: list[int] = []

    for text, ends in texts:
        new = tokenizer.encode(text)
        room = None if limit is None else window + (limit - len(asked) - 1) * stride - len(ids)
        if room is not None and len(new) >= room:
            text, new, ends = beginning(tokenizer, text, room), new[:room], True

        ids += new
        characters, size = characters + len(text), size + len(text.encode())

        if ends:
            asked += windows([first, *ids], window, stride)
            tokens, documents = tokens + len(ids), documents + 1
            unknown += unknown_among(tokenizer, ids)
            ids = []
            if len(asked) == limit:
                break

    if not asked:
        raise ValueError("data: there is no word in it")

    found = likelihoods(model, asked, progress=progress)
    scored = sum(len(each.words) for each in found)
    counts = (tokens, scored, characters, size, documents, len(asked), unknown)

    return Perplexity(scores(found, characters, size, seed), *counts)


def beginning(tokenizer: Tokenizer, text: str, tokens: int) -> str:
    """The text of its first tokens; a character of several tokens belongs to the first of them."""
    offsets = tokenizer.inner.encode(text, add_special_tokens=False).offsets
    return text if tokens >= len(offsets) else text[: max(end for _, end in offsets[:tokens])]


def window_and_stride(model: GPT, window: int | None, stride: int | None) -> tuple[int, int]:
    context = model.config.context
    window = min(context, WINDOW) if window is None else window
    if not 1 <= window <= context and not (window >= 1 and model.config.memory):
        raise ValueError(f"window: expected 1 to {context}, the model's context, not {window}")

    stride = max(1, window // 2) if stride is None else stride
    if not 1 <= stride <= window:
        raise ValueError(
            f"stride: expected 1 to {window}, the words that are read at once, not {stride}"
        )

    return window, stride


def windows(ids: Sequence[int], window: int, stride: int) -> list[Request]:
    """What is read and what is scored, so that each word but the first is scored once. The last
    window is full, too.
    """
    made, done = [], 1
    while done < len(ids):
        end = min(len(ids), window + 1 if done == 1 else done + stride)
        begin = max(0, end - 1 - window)
        made.append(Request(tuple(ids[begin:done]), tuple(ids[done:end])))
        done = end

    return made


def scores(
    found: Sequence[Likelihood], characters: int, size: int, seed: int, bits: bool = True
) -> tuple[intervals.Score, ...]:
    units = [
        each.words[start : start + UNIT]
        for each in found
        for start in range(0, len(each.words), UNIT)
    ]
    one = intervals.perplexity(units, seed=seed)
    words = sum(map(len, units))

    def bits_per(name: str, count: int) -> intervals.Score:
        def bits(perplexity: float) -> float:
            return math.log2(perplexity) * words / count

        low, high = (None if end is None else bits(end) for end in (one.low, one.high))
        return replace(one, name=name, value=bits(one.value), low=low, high=high)

    return (
        (one, bits_per("bits per character", characters), bits_per("bits per byte", size))
        if bits
        else (one,)
    )


@torch.no_grad()
def of_pairs(
    model: Transformer | RNN,
    tokenizer: Tokenizer,
    pairs: Sequence[tuple[str, str]],
    *,
    seed: int = 0,
) -> Perplexity:
    """Of targets given their sources, and of the end after each; its logarithm is training's
    validation loss.
    """
    if tokenizer.start is None or tokenizer.end is None:
        raise ValueError(
            "tokenizer: expected one with a token that starts and one that ends a text"
        )

    device = next(model.parameters()).device
    budget = TOKENS_ON_GPU if device.type == "cuda" else TOKENS
    start, end, padding = tokenizer.start, tokenizer.end, tokenizer.padding or 0
    sources = [[*ids, end] for ids in tokenizer.encode_batch([source for source, _ in pairs])]
    targets = [[*ids, end] for ids in tokenizer.encode_batch([target for _, target in pairs])]
    order = sorted(
        range(len(pairs)),
        key=lambda place: (len(targets[place]), len(sources[place])),
        reverse=True,
    )
    found: list[Likelihood] = [Likelihood((), False)] * len(pairs)

    def on(x: Tensor | None) -> Tensor | None:
        return None if x is None else x.to(device)

    with without_dropout(model):
        while order:
            count = max(1, budget // max(len(targets[order[0]]), len(sources[order[0]])))
            batch, order = order[:count], order[count:]
            source, source_padding_mask = pad([sources[place] for place in batch], padding)
            said, padding_mask = pad([[start, *targets[place][:-1]] for place in batch], padding)
            hidden = model.forced(
                source.to(device),
                said.to(device),
                source_padding_mask=on(source_padding_mask),
                target_padding_mask=on(padding_mask),
            )

            is_word = (
                torch.ones_like(said, dtype=torch.bool) if padding_mask is None else padding_mask
            )  # (B, T)
            asked = torch.tensor(
                [id for place in batch for id in targets[place]], device=device
            )  # (N,)
            words, _ = token_log_probabilities(model, hidden[is_word.to(device)], asked)
            lengths = [len(targets[place]) for place in batch]
            for place, part in zip(batch, words.cpu().split(lengths), strict=True):
                found[place] = Likelihood(tuple(part.tolist()), False)

    characters, size = (
        sum(map(len, each)) for each in zip(*((t, t.encode()) for _, t in pairs), strict=True)
    )
    scored = sum(map(len, targets))
    unknown = sum(unknown_among(tokenizer, ids) for ids in targets)
    counts = (scored - len(pairs), scored, characters, size, len(pairs), len(pairs), unknown)

    return Perplexity(scores(found, characters, size, seed, bits=False), *counts)
