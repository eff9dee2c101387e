"""What heads do: how much of its weight a head gives to the token before, to the first one, to an
equal one ...

A score is the part of a head's weight that goes where its role says, the mean over the tokens that
could play it: 1 is a head that does nothing else. Induction is asked on random tokens said twice,
where nothing but the repetition tells what comes next: the second time, a token looks at what
followed it the first time.
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
from qkv.insight.inspect.capture import AttentionSite, attention_sites
from qkv.insight.inspect.model_input import frame_tokens as marks_of
from qkv.insight.inspect.hook_checks import require_hook
from qkv.insight.inspect.model_input import read, read_sentences
from qkv.insight.inspect.capture import visible
from qkv.models import BERT, GPT, RNN, TaskModel, Transformer
from qkv.models.registry import Model, backbone_of
from qkv.text.tokenizer import Tokenizer

LONGEST = 256
"""Tokens of a text that are read; what comes after is left out."""
REPEATED, ROWS = 50, 4
"""Random tokens that are said twice, and how many such texts."""

Wanted = dict[str, Bool[Tensor, "T S"]]
"""Of each role, where the weight of each token should go; a row without any is not asked."""


class HeadPatterns(NamedTuple):
    kind: str
    """self, or of a translator encoder, decoder."""
    scores: dict[str, Float[Tensor, "L H"]]
    """previous, first, self, same, induction; next where later tokens are seen."""
    even: dict[str, float]
    """What a head gets that looks at all it may see alike."""
    asked: dict[str, int]
    """How many tokens each score is the mean of."""

    def strongest(self, role: str, count: int) -> list[tuple[int, int, float]]:
        """Layer, head and score of those that play a role most."""
        scores = self.scores[role]
        best, places = scores.flatten().topk(min(count, scores.numel()))
        pairs = zip(places.tolist(), best.tolist(), strict=True)

        return [(*divmod(place, scores.shape[1]), each) for place, each in pairs]


def head_patterns(
    model: Model,
    tokenizer: Tokenizer,
    texts: Sequence[str | tuple[str, str]],
    progress: Callable[[int, int], None] | None = None,
    *,
    seed: int = 0,
) -> list[HeadPatterns]:
    """The scores of every head over texts; of a translator's over pairs, or sources that it
    translates itself.

    The weights of a layer are summed up as soon as they are there, and not kept.
    """
    backbone = backbone_of(model)
    if isinstance(backbone, RNN):
        raise ValueError("model: an RNN has no heads that look at their own text; expected another")
    if not texts:
        raise ValueError("texts: expected one or more, not none")

    counts = {place.kind: Count(place) for place in attention_sites(model) if place.kind != "cross"}

    with torch.no_grad(), without_dropout(model):
        for number, text in enumerate(texts, start=1):
            sides = ids_of_text(model, tokenizer, text)
            patterns = {
                kind: wanted_of(ids, sees_later(backbone, kind)) for kind, ids in sides.items()
            }
            measure_patterns(
                model, counts, {kind: ids.unsqueeze(0) for kind, ids in sides.items()}, patterns
            )
            if progress is not None:
                progress(number, len(texts) + 1)

        measure_patterns(model, counts, *random_twice(model, tokenizer, seed))
        if progress is not None:
            progress(len(texts) + 1, len(texts) + 1)

    return [count.roles() for count in counts.values()]


class Count:
    """Sums over the tokens seen so far, for one kind of attention."""

    def __init__(self, place: AttentionSite) -> None:
        self.place = place
        self.sums: dict[str, Float[Tensor, "L H"]] = {}
        self.asked: dict[str, int] = {}
        self.even: dict[str, float] = {}

    def begin(self, wanted: Wanted, rows: int, seen: Bool[Tensor, "T S"]) -> None:
        for role, pattern in wanted.items():
            shape = (self.place.depth, self.place.heads)
            self.sums.setdefault(role, torch.zeros(shape, dtype=torch.float64))
            self.asked[role] = self.asked.get(role, 0) + rows * int(pattern.any(1).sum())
            self.even[role] = self.even.get(role, 0.0) + rows * float(
                (pattern.sum(1) / seen.sum(1)).sum()
            )

    def add(
        self,
        weights: Float[Tensor, "B H T S"],
        name: str,
        *,
        layer: int,
        wanted: Bool[Tensor, "R T S"],
        of: Sequence[str],
    ) -> None:
        """All roles at once: each is a product of the weights with where they should go."""
        parts = weights.sum(0).flatten(1) @ wanted.flatten(1).T.to(weights)  # (H, R)
        for role, part in zip(of, parts.cpu().double().unbind(1), strict=True):
            self.sums[role][layer] += part

    def roles(self) -> HeadPatterns:
        played = [role for role, count in self.asked.items() if count]
        scores = {role: (self.sums[role] / self.asked[role]).float() for role in played}
        even = {role: self.even[role] / self.asked[role] for role in played}
        return HeadPatterns(
            self.place.kind, scores, even, {role: self.asked[role] for role in played}
        )


def measure_patterns(
    model: Model,
    counts: dict[str, Count],
    ids: dict[str, Int[Tensor, "B T"]],
    patterns: dict[str, Wanted],
) -> None:
    """Read, and count each kind's weights as they come. A token that cannot see where its role
    looks is not asked.
    """
    backbone: Any = backbone_of(model)
    device = next(model.parameters()).device

    with ExitStack() as listening:
        for kind, count in counts.items():
            T = ids[kind].shape[1]
            seen = visible(model, kind, torch.arange(T), T)  # (T, S)
            within = {role: pattern & seen for role, pattern in patterns[kind].items()}
            wanted = torch.stack(list(within.values())).to(device)  # (R, T, S)
            count.begin(within, len(ids[kind]), seen)
            for layer in range(count.place.depth):
                add = partial(count.add, layer=layer, wanted=wanted, of=list(within))
                point, heads = count.place.hook_point(layer, "weights"), count.place.heads
                listening.enter_context(require_hook(model, point, add, heads=heads))

        if isinstance(backbone, Transformer):
            backbone.forced(ids["encoder"].to(device), ids["decoder"].to(device))
        else:
            backbone.hidden(ids["self"].to(device))


def sees_later(backbone: Model, kind: str) -> bool:
    return isinstance(backbone, BERT) or kind == "encoder"


def wanted_of(ids: Int[Tensor, "T"], later: bool) -> Wanted:
    """Where each role's weight goes. The first token of a causal model sees itself alone, and so is
    never asked.
    """
    T = len(ids)
    one = torch.ones(T, T, dtype=torch.bool)
    asked = torch.arange(T).unsqueeze(1) >= 1  # (T, 1)
    equal = ids.unsqueeze(1) == ids
    wanted = {
        "previous": one.triu(-1) & one.tril(-1),
        "first": asked & (torch.arange(T) == 0),
        "self": asked & torch.eye(T, dtype=torch.bool),
        "same": equal & ~torch.eye(T, dtype=torch.bool) if later else equal & one.tril(-1),
    }

    return wanted | ({"next": one.triu(1) & one.tril(1)} if later else {})


# What is read


def ids_of_text(
    model: Model, tokenizer: Tokenizer, text: str | tuple[str, str]
) -> dict[str, Int[Tensor, "_"]]:
    """The ids of each side, by the kind of attention that reads it. What is too long is cut before
    its last mark.
    """
    marks = marks_of(model, tokenizer)
    if not isinstance(model, Transformer) and not str(text).strip():
        raise ValueError("text: there is nothing to read; expected a text")

    if isinstance(
        model, GPT | TaskModel
    ):  # a text by itself, whatever its task would ask; a long one is cut below
        sides = {"self": marks["self"].around(tokenizer.encode(str(text)))}
    elif isinstance(model, BERT):
        sides = {"self": list(read_sentences(model, tokenizer, [str(text)]).text.ids)}
    else:
        pair = {} if isinstance(text, str) else {"source": text[0], "target": text[1]}
        found = read(model, tokenizer, *([text] if isinstance(text, str) else []), **pair)
        assert found.source is not None
        sides = {"encoder": list(found.source.ids), "decoder": list(found.text.ids)}

    longest, cut = min(LONGEST, context_of(model)), {}

    for kind, ids in sides.items():
        after = marks[kind].after if len(ids) > longest else []
        cut[kind] = torch.tensor([*ids[: longest - len(after)], *after])

    return cut


def context_of(model: Model) -> int:
    backbone = backbone_of(model)
    assert not isinstance(backbone, RNN)  # which has no roles
    return backbone.config.context


def random_twice(
    model: Model, tokenizer: Tokenizer, seed: int
) -> tuple[dict[str, Int[Tensor, "B T"]], dict[str, Wanted]]:
    """Random words and the same once more, between the marks of a text; and where induction would
    look.
    """
    special = set(tokenizer.special)
    ordinary = np.array([id for id in range(tokenizer.vocabulary) if id not in special])
    marks = marks_of(model, tokenizer)
    room = context_of(model) - max(len(each.around([])) for each in marks.values())
    n = min(REPEATED, room // 2, len(ordinary))
    if n < 2:
        raise ValueError(f"context: {room} tokens have no room to say two words twice")

    random = np.random.default_rng(seed)
    once = [
        random.permutation(ordinary)[:n].tolist() for _ in range(ROWS)
    ]  # no word twice: only one place follows it
    ids, wanted = {}, {}

    for kind, each in marks.items():
        ids[kind] = torch.tensor([each.around([*words, *words]) for words in once])  # (B, T)
        T, first = ids[kind].shape[1], len(each.before)
        query = torch.arange(first + n, first + 2 * n)
        pattern = torch.zeros(T, T, dtype=torch.bool)
        pattern[query, query - n + 1] = True
        wanted[kind] = {"induction": pattern}

    return ids, wanted
