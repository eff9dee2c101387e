"""Head patterns: how much weight a head gives to the previous token, the first token, induction ...

The score of a pattern is the share of a head's attention that goes where the pattern says, averaged
over the tokens that can follow it: 1 is a head that does nothing else. Induction is measured on
random tokens that are repeated once: in the repetition a token attends to the token that followed
its first occurrence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkv.generation.generate import without_dropout
from qkv.insight.inspect.capture import visible
from qkv.insight.inspect.hook_checks import hook_layers
from qkv.insight.inspect.model_input import frame_tokens, read, read_sentences
from qkv.models.model import Model, backbone_of
from qkv.models.sites import AttentionSite, attention_sites
from qkv.text.tokenizer import Tokenizer

LONGEST = 256
"""Longest text in tokens; the rest is cut."""
REPEATED = 50
"""Number of random tokens that are repeated for induction."""
ROWS = 4
"""Number of such random texts."""

PatternFunction = Callable[[Int[Tensor, "T"]], Bool[Tensor, "T T"]]
PatternMasks = dict[str, Bool[Tensor, "T S"]]
"""For each pattern, True where the weight of a query should go; a row without any True does not
count."""


class HeadPattern(NamedTuple):
    """A known attention pattern."""

    meaning: str
    """What a head attends to, for tables."""
    mask: PatternFunction
    """From the ids of a text to where the weight of each query should go."""


PATTERNS: dict[str, HeadPattern] = {}
"""All patterns by name, besides induction."""
INDUCTION = "what followed an earlier copy"


def head_pattern(name: str, meaning: str) -> Callable[[PatternFunction], PatternFunction]:
    """Decorator: add a pattern that `head_patterns` and `qkv heads` measure.

    The function gets the ids of a text (T), and returns a boolean matrix (T, T): True where the
    weight of a query (row) should go. A query counts if it can see such a key.

    Args:
        name: The name in results.
        meaning: What a head attends to, for tables.

    Example:
        >>> import torch
        >>> from qkv.insight.heads.head_patterns import PATTERNS, head_pattern
        >>> @head_pattern("second", "the second token")
        ... def second(ids):
        ...     return (torch.arange(len(ids)) == 1).expand(len(ids), -1)
        >>> PATTERNS.pop("second").meaning
        'the second token'
    """
    if name in PATTERNS or name == "induction":
        raise ValueError(f"name: there is a pattern {name} already; expected another name")

    def register(function: PatternFunction) -> PatternFunction:
        PATTERNS[name] = HeadPattern(meaning, function)
        return function

    return register


def meaning_of(pattern: str) -> str:
    """What a head with this pattern attends to."""
    if pattern == "induction":
        return INDUCTION

    return PATTERNS[pattern].meaning


class HeadPatterns(NamedTuple):
    """The pattern scores of all heads of one kind of attention."""

    kind: str
    """self, or for a translator encoder or decoder."""
    scores: dict[str, Float[Tensor, "L H"]]
    """By pattern: those of PATTERNS that some token can follow, and induction."""
    uniform: dict[str, float]
    """Uniform baseline: the score of a head that attends equally to all visible tokens."""
    tokens: dict[str, int]
    """The number of tokens that each score is averaged over."""

    def strongest(self, pattern: str, count: int) -> list[tuple[int, int, float]]:
        """Layer, head and score of the heads that follow a pattern most."""
        scores = self.scores[pattern]
        best, indices = scores.flatten().topk(min(count, scores.numel()))

        heads = []
        for index, score in zip(indices.tolist(), best.tolist(), strict=True):
            layer, head = divmod(index, scores.shape[1])
            heads.append((layer, head, score))

        return heads


def head_patterns(
    model: Model,
    tokenizer: Tokenizer,
    texts: Sequence[str | tuple[str, str]],
    progress: Callable[[int, int], None] | None = None,
    *,
    seed: int = 0,
) -> list[HeadPatterns]:
    """Score every head of a model for the known attention patterns.

    The weights of a layer are added up during the forward pass and not kept.

    Args:
        model: The model; an RNN has no self-attention.
        tokenizer: Its tokenizer.
        texts: The texts; for a translator pairs, or sources that it translates itself.
        progress: Called with the number of finished texts and of all texts.
        seed: The seed of the random tokens for induction.

    Returns:
        The scores for each kind of self-attention.

    Raises:
        ValueError: If there is no text, or the model is an RNN or has too small a context.

    Example:
        >>> from qkv import insight, models, text
        >>> tokenizer = text.train("words", ["the cat sat on the mat"], 20)
        >>> model = models.GPT(models.GPTConfig(vocabulary=20, width=8, heads=2, depth=1))
        >>> (patterns,) = insight.head_patterns(model, tokenizer, ["the cat sat on the mat"])
        >>> list(patterns.scores)
        ['previous', 'first', 'self', 'same', 'induction']
    """
    if not model.stacks:
        raise ValueError("model: an RNN has no self-attention heads; expected another model")
    if not texts:
        raise ValueError("texts: expected one or more, not none")

    sums = {}
    for site in attention_sites(model):
        if site.kind != "cross":
            sums[site.kind] = PatternSums(site)

    total = len(texts) + 1
    with torch.no_grad(), without_dropout(model):
        for number, text in enumerate(texts, start=1):
            measure_patterns(model, sums, *text_tokens(model, tokenizer, text))
            if progress is not None:
                progress(number, total)

        # Induction
        measure_patterns(model, sums, *repeated_tokens(model, tokenizer, seed))
        if progress is not None:
            progress(total, total)

    return [pattern_sums.result() for pattern_sums in sums.values()]


class PatternSums:
    """Sums of the pattern scores over all tokens so far, for one attention site."""

    def __init__(self, site: AttentionSite) -> None:
        self.site = site
        self.weights: dict[str, Float[Tensor, "L H"]] = {}
        self.tokens: dict[str, int] = {}
        self.uniform: dict[str, float] = {}

    def add_text(self, masks: PatternMasks, rows: int, seen: Bool[Tensor, "T S"]) -> None:
        """Count the tokens of a new text, and add the uniform baseline."""
        shape = (self.site.depth, self.site.heads)
        for pattern, mask in masks.items():
            self.weights.setdefault(pattern, torch.zeros(shape, dtype=torch.float64))
            tokens = rows * int(mask.any(1).sum())
            uniform = rows * float((mask.sum(1) / seen.sum(1)).sum())
            self.tokens[pattern] = self.tokens.get(pattern, 0) + tokens
            self.uniform[pattern] = self.uniform.get(pattern, 0.0) + uniform

    def add_weights(
        self,
        weights: Float[Tensor, "B H T S"],
        name: str,
        *,
        layer: int,
        masks: Bool[Tensor, "R T S"],
        patterns: Sequence[str],
    ) -> None:
        """Hook: add the weights of a layer, all patterns in one matrix product."""
        sums = weights.sum(0).flatten(1) @ masks.flatten(1).T.to(weights)  # (H, R)
        for pattern, by_head in zip(patterns, sums.cpu().double().unbind(1), strict=True):
            self.weights[pattern][layer] += by_head

    def result(self) -> HeadPatterns:
        """The mean scores of the patterns that some token could follow."""
        result = HeadPatterns(self.site.kind, {}, {}, {})
        for pattern, tokens in self.tokens.items():
            if tokens:
                result.scores[pattern] = (self.weights[pattern] / tokens).float()
                result.uniform[pattern] = self.uniform[pattern] / tokens
                result.tokens[pattern] = tokens

        return result


def measure_patterns(
    model: Model,
    sums: dict[str, PatternSums],
    ids: dict[str, Int[Tensor, "B T"]],
    masks: dict[str, PatternMasks],
) -> None:
    """Run one batch, and add up the weights of each kind of attention.

    A token that cannot see the target of a pattern does not count for it.
    """
    device = next(model.parameters()).device
    with ExitStack() as hooks:
        for kind, pattern_sums in sums.items():
            T = ids[kind].shape[1]
            seen = visible(model, kind, torch.arange(T), T)  # (T, S)
            visible_masks = {pattern: mask & seen for pattern, mask in masks[kind].items()}
            pattern_sums.add_text(visible_masks, len(ids[kind]), seen)

            stacked = torch.stack(list(visible_masks.values())).to(device)  # (R, T, S)
            add = partial(pattern_sums.add_weights, masks=stacked, patterns=list(visible_masks))
            hooks.enter_context(hook_layers(model, pattern_sums.site, "weights", add))

        backbone_of(model).hidden(*(ids[kind].to(device) for kind in sums))


# The known patterns


@head_pattern("previous", "the token before")
def previous_token(ids: Int[Tensor, "T"]) -> Bool[Tensor, "T T"]:
    return neighbour(ids, -1)


@head_pattern("first", "the first token")
def first_token(ids: Int[Tensor, "T"]) -> Bool[Tensor, "T T"]:
    return after_first(ids) & (torch.arange(len(ids)) == 0)


@head_pattern("self", "itself")
def own_token(ids: Int[Tensor, "T"]) -> Bool[Tensor, "T T"]:
    return after_first(ids) & neighbour(ids, 0)


@head_pattern("same", "equal tokens")
def equal_tokens(ids: Int[Tensor, "T"]) -> Bool[Tensor, "T T"]:
    return (ids.unsqueeze(1) == ids) & ~neighbour(ids, 0)


@head_pattern("next", "the token after")
def next_token(ids: Int[Tensor, "T"]) -> Bool[Tensor, "T T"]:
    return neighbour(ids, 1)


def neighbour(ids: Int[Tensor, "T"], distance: int) -> Bool[Tensor, "T T"]:
    """True for the key at this distance from its query."""
    position = torch.arange(len(ids))
    return position - position.unsqueeze(1) == distance


def after_first(ids: Int[Tensor, "T"]) -> Bool[Tensor, "T 1"]:
    """True for all but the first token, which sees only itself in a causal model."""
    return torch.arange(len(ids)).unsqueeze(1) >= 1


# Inputs


def text_tokens(
    model: Model, tokenizer: Tokenizer, text: str | tuple[str, str]
) -> tuple[dict[str, Int[Tensor, "1 T"]], dict[str, PatternMasks]]:
    """The ids of each side of a text, cut before its end token if it is long; and all masks."""
    frames = frame_tokens(model, tokenizer)
    if not model.has_source and not str(text).strip():
        raise ValueError("text: there is nothing to read; expected a text")

    if model.has_source:
        source, target = (text, None) if isinstance(text, str) else text
        reading = read(model, tokenizer, source=source, target=target)
        assert reading.source is not None
        sides = {"encoder": list(reading.source.ids), "decoder": list(reading.text.ids)}
    elif model.is_causal or model.task is not None:
        # A task model reads the text alone, whatever its task; `read` would refuse a long text.
        sides = {"self": frames["self"].around(tokenizer.encode(str(text)))}
    else:
        sides = {"self": list(read_sentences(model, tokenizer, [str(text)]).text.ids)}

    longest = min(LONGEST, backbone_of(model).config.context)
    ids = {}
    masks = {}
    for kind, side in sides.items():
        if len(side) > longest:
            after = frames[kind].after
            side = [*side[: longest - len(after)], *after]

        row = torch.tensor(side)
        ids[kind] = row.unsqueeze(0)
        masks[kind] = {name: pattern.mask(row) for name, pattern in PATTERNS.items()}

    return ids, masks


def repeated_tokens(
    model: Model, tokenizer: Tokenizer, seed: int
) -> tuple[dict[str, Int[Tensor, "B T"]], dict[str, PatternMasks]]:
    """Random tokens and their repetition, framed as a text is; and the mask of induction."""
    special = set(tokenizer.special)
    ordinary = np.array([id for id in range(tokenizer.vocabulary) if id not in special])
    frames = frame_tokens(model, tokenizer)
    framing = max(len(frame.around([])) for frame in frames.values())
    room = backbone_of(model).config.context - framing
    n = min(REPEATED, room // 2, len(ordinary))
    if n < 2:
        raise ValueError(f"context: {room} tokens have no room for two tokens and their repetition")

    # No token occurs twice in the first half, so exactly one token follows it.
    random = np.random.default_rng(seed)
    first_halves = [random.permutation(ordinary)[:n].tolist() for _ in range(ROWS)]
    ids = {}
    masks = {}

    for kind, frame in frames.items():
        ids[kind] = torch.tensor([frame.around([*half, *half]) for half in first_halves])  # (B, T)
        T = ids[kind].shape[1]
        first = len(frame.before)
        query = torch.arange(first + n, first + 2 * n)
        mask = torch.zeros(T, T, dtype=torch.bool)
        mask[query, query - n + 1] = True
        masks[kind] = {"induction": mask}

    return ids, masks
