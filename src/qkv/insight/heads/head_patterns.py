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
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkv.generation.generate import without_dropout
from qkv.insight.inspect.capture import AttentionSite, attention_sites, visible
from qkv.insight.inspect.hook_checks import require_hook
from qkv.insight.inspect.model_input import frame_tokens, read, read_sentences
from qkv.models import BERT, GPT, RNN, TaskModel, Transformer
from qkv.models.model import Model, backbone_of
from qkv.text.tokenizer import Tokenizer

LONGEST = 256
"""Longest text in tokens; the rest is cut."""
REPEATED = 50
"""Number of random tokens that are repeated for induction."""
ROWS = 4
"""Number of such random texts."""

PatternMasks = dict[str, Bool[Tensor, "T S"]]
"""For each pattern, True where the weight of a query should go; a row without any True does not
count."""


class HeadPatterns(NamedTuple):
    """The pattern scores of all heads of one kind of attention."""

    kind: str
    """self, or for a translator encoder or decoder."""
    scores: dict[str, Float[Tensor, "L H"]]
    """previous, first, self, same, induction; and next if later tokens are visible."""
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
    backbone = backbone_of(model)
    if isinstance(backbone, RNN):
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
            measure_text(model, tokenizer, sums, text)
            if progress is not None:
                progress(number, total)

        # Induction
        measure_patterns(model, sums, *repeated_tokens(model, tokenizer, seed))
        if progress is not None:
            progress(total, total)

    return [pattern_sums.result() for pattern_sums in sums.values()]


def measure_text(
    model: Model,
    tokenizer: Tokenizer,
    sums: dict[str, PatternSums],
    text: str | tuple[str, str],
) -> None:
    """Add the attention on one text to the sums."""
    backbone = backbone_of(model)
    ids = {}
    masks = {}
    for kind, row in ids_of_text(model, tokenizer, text).items():
        ids[kind] = row.unsqueeze(0)
        masks[kind] = pattern_masks(row, sees_later(backbone, kind))

    measure_patterns(model, sums, ids, masks)


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
    backbone: Any = backbone_of(model)
    device = next(model.parameters()).device

    with ExitStack() as hooks:
        for kind, pattern_sums in sums.items():
            T = ids[kind].shape[1]
            site = pattern_sums.site
            seen = visible(model, kind, torch.arange(T), T)  # (T, S)
            visible_masks = {pattern: mask & seen for pattern, mask in masks[kind].items()}
            pattern_sums.add_text(visible_masks, len(ids[kind]), seen)

            stacked = torch.stack(list(visible_masks.values())).to(device)  # (R, T, S)
            add = partial(pattern_sums.add_weights, masks=stacked, patterns=list(visible_masks))
            for layer in range(site.depth):
                point = site.hook_point(layer, "weights")
                hook = partial(add, layer=layer)
                hooks.enter_context(require_hook(model, point, hook, heads=site.heads))

        if isinstance(backbone, Transformer):
            backbone.hidden(ids["encoder"].to(device), ids["decoder"].to(device))
        else:
            backbone.hidden(ids["self"].to(device))


def sees_later(backbone: Model, kind: str) -> bool:
    """Whether tokens attend to later ones."""
    return isinstance(backbone, BERT) or kind == "encoder"


def pattern_masks(ids: Int[Tensor, "T"], later: bool) -> PatternMasks:
    """Where the weight of each pattern goes.

    The first token of a causal model sees only itself, so it counts for no pattern.
    """
    T = len(ids)
    all_pairs = torch.ones(T, T, dtype=torch.bool)
    diagonal = torch.eye(T, dtype=torch.bool)
    after_first = torch.arange(T).unsqueeze(1) >= 1  # (T, 1)
    equal = ids.unsqueeze(1) == ids
    masks = {
        "previous": all_pairs.triu(-1) & all_pairs.tril(-1),
        "first": after_first & (torch.arange(T) == 0),
        "self": after_first & diagonal,
        "same": equal & all_pairs.tril(-1),
    }
    if later:
        masks["same"] = equal & ~diagonal
        masks["next"] = all_pairs.triu(1) & all_pairs.tril(1)

    return masks


# Inputs


def ids_of_text(
    model: Model, tokenizer: Tokenizer, text: str | tuple[str, str]
) -> dict[str, Int[Tensor, "_"]]:
    """The ids of each side, by kind of attention; a long side is cut before its end token."""
    frames = frame_tokens(model, tokenizer)
    if not isinstance(model, Transformer) and not str(text).strip():
        raise ValueError("text: there is nothing to read; expected a text")

    if isinstance(model, GPT | TaskModel):
        # A task model reads the text alone, whatever its task; `read` would refuse a long text.
        sides = {"self": frames["self"].around(tokenizer.encode(str(text)))}
    elif isinstance(model, BERT):
        sides = {"self": list(read_sentences(model, tokenizer, [str(text)]).text.ids)}
    else:
        if isinstance(text, str):
            reading = read(model, tokenizer, text)
        else:
            reading = read(model, tokenizer, source=text[0], target=text[1])

        assert reading.source is not None
        sides = {"encoder": list(reading.source.ids), "decoder": list(reading.text.ids)}

    longest = min(LONGEST, context_of(model))
    result = {}
    for kind, ids in sides.items():
        if len(ids) > longest:
            after = frames[kind].after
            ids = [*ids[: longest - len(after)], *after]

        result[kind] = torch.tensor(ids)

    return result


def context_of(model: Model) -> int:
    """The context of a model that is not an RNN."""
    backbone = backbone_of(model)
    assert not isinstance(backbone, RNN)
    return backbone.config.context


def repeated_tokens(
    model: Model, tokenizer: Tokenizer, seed: int
) -> tuple[dict[str, Int[Tensor, "B T"]], dict[str, PatternMasks]]:
    """Random tokens and their repetition, framed as a text is; and the mask of induction."""
    special = set(tokenizer.special)
    ordinary = np.array([id for id in range(tokenizer.vocabulary) if id not in special])
    frames = frame_tokens(model, tokenizer)
    room = context_of(model) - max(len(frame.around([])) for frame in frames.values())
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
