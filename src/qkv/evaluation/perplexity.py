"""Perplexity, bits per character and bits per byte of texts, with sliding windows.

Perplexity depends on the tokenizer: fewer tokens per text make each one harder to predict. Bits per
character and per byte can be compared across tokenizers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import torch

from qkv.data.batches.padding import pad_rows
from qkv.data.sources.lines import DocumentPart
from qkv.evaluation import intervals
from qkv.evaluation.likelihood import (
    Likelihood,
    Progress,
    Request,
    ignore_progress,
    likelihoods,
    token_log_probabilities,
    tokens_per_pass,
)
from qkv.evaluation.question import count_unknown, first_token
from qkv.generation.generate import without_dropout
from qkv.models.model import Model
from qkv.nn.config import documented
from qkv.nn.linear.frozen_matrix import quantized_activations
from qkv.text import Tokenizer
from qkv.text.frame_tokens import translation_ends

UNIT = 64
"""Tokens that the bootstrap draws together: neighbours are correlated, so single tokens would
give intervals that are too narrow."""
WINDOW = 1024


@documented
@dataclass(frozen=True)
class Perplexity:
    """Perplexity scores of texts, and the counts behind them.

    Example:
        >>> score = intervals.perplexity([(-1.0, -1.0)])
        >>> result = Perplexity(
        ...     scores=(score,), tokens=2, scored=2, characters=5, bytes=5, documents=1,
        ...     windows=1, unknown=0,
        ... )
        >>> round(result.scores[0].value, 3)
        2.718
    """

    scores: tuple[intervals.Score, ...]
    """Perplexity, and bits per character and per byte."""
    tokens: int
    """Tokens of the text."""
    scored: int
    """Predicted tokens: all of the text, and the end token after each target of a pair."""
    characters: int
    """Characters of the text."""
    bytes: int
    """Bytes of the text in UTF-8."""
    documents: int
    """Number of documents."""
    windows: int
    """Windows of a text, or pairs."""
    unknown: int
    """Unknown tokens, which stand for words outside the vocabulary."""


@dataclass
class TextWindows:
    """The windows of documents, collected part by part, with the counts of the text they cover."""

    tokenizer: Tokenizer
    start: int
    """The id that precedes the first token of every document."""
    window: int
    stride: int
    limit: int | None
    requests: list[Request] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    """Ids of the current document."""
    counts: Counter[str] = field(default_factory=Counter)
    """Tokens, characters, bytes, documents and unknown tokens of the text."""

    @property
    def full(self) -> bool:
        return len(self.requests) == self.limit

    def add(self, text: str, ends: bool) -> None:
        """Add a part of a document; text beyond the limit is dropped."""
        ids = self.tokenizer.encode(text)
        if self.limit is not None:
            windows_left = self.limit - len(self.requests)
            room = self.window + (windows_left - 1) * self.stride - len(self.ids)
            if len(ids) >= room:
                text = text_of_tokens(self.tokenizer, text, room)
                ids = ids[:room]
                ends = True

        self.ids += ids
        self.counts.update(characters=len(text), bytes=len(text.encode()))
        if ends:
            self.end_document()

    def end_document(self) -> None:
        self.requests += windows([self.start, *self.ids], self.window, self.stride)
        unknown = count_unknown(self.tokenizer, self.ids)
        self.counts.update(tokens=len(self.ids), documents=1, unknown=unknown)
        self.ids = []

    def summarise(self, results: Sequence[Likelihood], seed: int) -> Perplexity:
        """The scores of the windows' likelihoods, with the counts of the text."""
        score, scored = token_perplexity(results, seed)

        by_character = bits_per(score, "bits per character", scored, self.counts["characters"])
        by_byte = bits_per(score, "bits per byte", scored, self.counts["bytes"])

        return Perplexity(
            scores=(score, by_character, by_byte),
            scored=scored,
            windows=len(self.requests),
            **self.counts,
        )


def text_perplexity(
    model: Model,
    tokenizer: Tokenizer,
    texts: Iterable[DocumentPart],
    *,
    window: int | None = None,
    stride: int | None = None,
    limit: int | None = None,
    seed: int = 0,
    progress: Progress = ignore_progress,
) -> Perplexity:
    """The perplexity of documents, each predicted from its own start.

    Each window scores its last `stride` tokens, the first window all of its tokens.

    Args:
        model: The language model.
        tokenizer: The model's tokenizer.
        texts: Parts of documents, such as `qkv.data.open_texts` returns.
        window: Tokens read at once; by default the model's context, at most 1,024.
        stride: Tokens scored in each window; by default half a window.
        limit: Number of windows to score; by default all.
        seed: Seed of the bootstrap for the confidence intervals.
        progress: Called with the number of windows scored and their total.

    Returns:
        Perplexity, bits per character and bits per byte with 95% confidence intervals.

    Raises:
        ValueError: If the texts have no token, or window or stride do not fit the model.

    Example:
        >>> from qkv.data import DocumentPart
        >>> from qkv.models import GPT, GPTConfig
        >>> from qkv.text import train
        >>> text = "the cat sat on the mat. " * 9
        >>> tokenizer = train("byte-pair", [text], 270)
        >>> config = GPTConfig(vocabulary=tokenizer.vocabulary, width=8, depth=1, heads=1)
        >>> parts = [DocumentPart(text, True)]
        >>> result = text_perplexity(GPT(config), tokenizer, parts, window=16, limit=3)
        >>> result.windows, result.scored
        (3, 32)
    """
    window, stride = window_and_stride(model, window, stride)
    collected = TextWindows(tokenizer, first_token(tokenizer), window, stride, limit)
    for text, ends in texts:
        collected.add(text, ends)
        if collected.full:
            break

    if not collected.requests:
        raise ValueError("data: the text has no tokens")

    results = likelihoods(model, collected.requests, progress=progress)

    return collected.summarise(results, seed)


def text_of_tokens(tokenizer: Tokenizer, text: str, tokens: int) -> str:
    """The text of the first `tokens` tokens; a character of several tokens counts for the first."""
    offsets = tokenizer.inner.encode(text, add_special_tokens=False).offsets
    if tokens >= len(offsets):
        return text

    return text[: max(end for _, end in offsets[:tokens])]


def window_and_stride(model: Model, window: int | None, stride: int | None) -> tuple[int, int]:
    """Window and stride with their defaults filled in, checked against the model's context."""
    context = model.config.context
    if window is None:
        window = min(context, WINDOW)

    too_long = window > context and not model.reads_on
    if window < 1 or too_long:
        raise ValueError(f"window: expected 1 to {context}, the model's context, not {window}")

    if stride is None:
        stride = max(1, window // 2)
    if not 1 <= stride <= window:
        raise ValueError(f"stride: expected 1 to {window}, the size of the window, not {stride}")

    return window, stride


def windows(ids: Sequence[int], window: int, stride: int) -> list[Request]:
    """Requests that score each token but the first exactly once; the last window is full, too."""
    requests: list[Request] = []
    done = 1

    while done < len(ids):
        size = stride if requests else window
        end = min(len(ids), done + size)
        begin = max(0, end - 1 - window)
        requests.append(Request(tuple(ids[begin:done]), tuple(ids[done:end])))
        done = end

    return requests


def token_perplexity(results: Sequence[Likelihood], seed: int) -> tuple[intervals.Score, int]:
    """The perplexity over all tokens, and their number.

    The bootstrap draws units of neighbouring tokens.
    """
    units: list[tuple[float, ...]] = []
    for result in results:
        for start in range(0, len(result.token_logprobs), UNIT):
            units.append(result.token_logprobs[start : start + UNIT])

    return intervals.perplexity(units, seed=seed), sum(map(len, units))


def bits_per(perplexity: intervals.Score, name: str, tokens: int, count: int) -> intervals.Score:
    """The perplexity of `tokens` tokens as bits per character, or per byte."""

    def bits(value: float | None) -> float | None:
        return None if value is None else math.log2(value) * tokens / count

    value = math.log2(perplexity.value) * tokens / count
    return replace(
        perplexity, name=name, value=value, low=bits(perplexity.low), high=bits(perplexity.high)
    )


# Pairs


def translation_perplexity(
    model: Model,
    tokenizer: Tokenizer,
    pairs: Sequence[tuple[str, str]],
    *,
    seed: int = 0,
) -> Perplexity:
    """The perplexity of targets given their sources, including the end token of each target.

    Its logarithm is the validation loss of training.

    Args:
        model: A translation model.
        tokenizer: The model's tokenizer, with a start and an end token.
        pairs: Sources and targets.
        seed: Seed of the bootstrap for the confidence interval.

    Returns:
        The perplexity with its 95% confidence interval, and the counts behind it.

    Raises:
        ValueError: If the tokenizer has no start or no end token.

    Example:
        >>> from qkv.models import Transformer, TransformerConfig
        >>> from qkv.text import train
        >>> tokenizer = train("byte-pair", ["a cat, two cats"], 264)
        >>> config = TransformerConfig(vocabulary=tokenizer.vocabulary, width=8, depth=1, heads=1)
        >>> result = translation_perplexity(Transformer(config), tokenizer, [("a cat", "a")])
        >>> result.documents, result.characters
        (1, 1)
    """
    start, end = translation_ends(tokenizer)
    source_texts, target_texts = map(list, zip(*pairs, strict=True))
    sources = [[*ids, end] for ids in tokenizer.encode_batch(source_texts)]
    targets = [[*ids, end] for ids in tokenizer.encode_batch(target_texts)]
    results = pair_likelihoods(model, start, sources, targets)
    score, scored = token_perplexity(results, seed)

    return Perplexity(
        scores=(score,),
        tokens=scored - len(pairs),
        scored=scored,
        characters=sum(map(len, target_texts)),
        bytes=len("".join(target_texts).encode()),
        documents=len(pairs),
        windows=len(pairs),
        unknown=sum(count_unknown(tokenizer, ids) for ids in targets),
    )


@torch.no_grad()
@quantized_activations()
def pair_likelihoods(
    model: Model, start: int, sources: Sequence[list[int]], targets: Sequence[list[int]]
) -> list[Likelihood]:
    """The likelihood of each target given its source, by teacher forcing."""
    device = next(model.parameters()).device
    results = [Likelihood((), False)] * len(targets)

    def lengths(number: int) -> tuple[int, int]:
        return len(targets[number]), len(sources[number])

    order = sorted(range(len(targets)), key=lengths, reverse=True)

    with without_dropout(model):
        while order:
            count = max(1, tokens_per_pass(device) // max(lengths(order[0])))
            batch = order[:count]
            order = order[count:]

            # The decoder reads the target shifted by the start token.
            source, source_mask = pad_rows([sources[number] for number in batch], device=device)
            shifted = [[start, *targets[number][:-1]] for number in batch]
            decoder_input, mask = pad_rows(shifted, device=device)
            hidden = model.hidden(
                source, decoder_input, source_padding_mask=source_mask, target_padding_mask=mask
            )  # (B, T, E)

            # Score the positions that are not padding.
            states = hidden.flatten(0, 1) if mask is None else hidden[mask]  # (N, E)
            ids = chain.from_iterable(targets[number] for number in batch)
            target_ids = torch.tensor(list(ids), device=device)  # (N,)
            logprobs, _ = token_log_probabilities(model, states, target_ids)
            parts = logprobs.cpu().split(list(map(len, shifted)))
            for number, values in zip(batch, parts, strict=True):
                results[number] = Likelihood(tuple(values.tolist()), False)

    return results
