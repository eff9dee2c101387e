"""How likely a model finds given words: the one core under every task that compares texts.

Only the places that predict a continuation get logits. What several requests share is read once:
equal inputs are one row, and the choices of one question go on from the same state. Rows are read
in the order of their lengths, so that little is padding; padding comes last, where a causal model
never looks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import copy_context
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkv.generation.generate import without_dropout
from qkv.models import BERT, GPT, RNN, Transformer
from qkv.nn.cache import KeyValueCache, SegmentMemory
from qkv.nn.linear.onednn import prepacking, small_enough

LOGITS, LOGITS_ON_GPU = (
    2**23,
    2**27,
)  # so many at once are no burden, on a CPU for each of its cores
TOKENS, TOKENS_ON_GPU = 2**9, 2**15  # of one pass


class Request(NamedTuple):
    """How likely is the continuation after the context?"""

    context: tuple[int, ...]
    continuation: tuple[int, ...]


class Likelihood(NamedTuple):
    words: tuple[float, ...]
    """The log-probability of each word of the continuation."""
    greedy: bool
    """Each was the likeliest one at its place."""

    @property
    def log_probability(self) -> float:
        return math.fsum(self.words)


class Row(NamedTuple):
    """What is read together: a stem, ways on from it, and the requests that both of them answer."""

    stem: tuple[int, ...]
    branches: tuple[tuple[int, ...], ...]
    requests: tuple[Request, ...]


def shortened(requests: Sequence[Request], model: GPT) -> tuple[list[Request], int]:
    """Requests that fit the model's context: cut from the left, as the literature does; and how
    many were cut.

    Transformer-XL needs no cut: it reads in segments.
    """
    for request in requests:
        if not request.context or not request.continuation:
            raise ValueError(
                "requests: expected one word or more in the context and in the continuation"
            )

    if model.config.memory:
        return list(requests), 0

    limit, cut, kept = model.config.context, 0, []

    for context, continuation in requests:
        room = limit + 1 - len(continuation)  # the last word is predicted and not read
        if room < 1:
            raise ValueError(
                f"context: a continuation of {len(continuation)} words leaves no room in the model's {limit} positions"
            )

        cut += len(context) > room
        kept.append(Request(context[-room:], continuation))

    return kept, cut


def likelihoods(
    model: GPT,
    requests: Sequence[Request],
    *,
    batch_tokens: int | None = None,
    progress: Callable[[int, int], None] = lambda done, all: None,
) -> list[Likelihood]:
    """Of each request, in order. `progress` hears after each pass how many distinct ones are
    answered, of how many.

    The model's own dtype is computed with; softmax is in float32, or finer where the model is.
    """
    if not isinstance(model, GPT):
        raise TypeError(
            f"model: expected a GPT, which predicts the next word, not {type(model).__name__}"
        )

    device = next(model.parameters()).device
    batch_tokens = batch_tokens or (TOKENS_ON_GPU if device.type == "cuda" else TOKENS)
    found: dict[Request, Likelihood] = {}
    distinct = len(set(requests))
    made = list(
        batches(rows_of(requests, shares=shares_state(model)), batch_tokens, furthest(model))
    )

    with without_dropout(model), prepacking() if worth_packing(model, made) else nullcontext():
        for answers in side_by_side(lambda batch: read(model, batch, device), made, device):
            found |= answers
            progress(len(found), distinct)

    return [found[request] for request in requests]


def worth_packing(model: GPT, made: Sequence[list[Row]]) -> bool:
    """Whether matrices are used often enough for a copy in the kernel's own order, and are few
    enough for one.
    """
    return len(made) >= 16 and small_enough(model)


def side_by_side(
    answer: Callable[[list[Row]], dict[Request, Likelihood]],
    made: Sequence[list[Row]],
    device: torch.device,
) -> Iterator[dict[Request, Likelihood]]:
    """On a CPU each core has a batch of its own: so none waits for the others after every step of
    the model.
    """
    cores = torch.get_num_threads()
    if device.type != "cpu" or cores == 1 or len(made) < 2 * cores:
        yield from map(answer, made)
        return

    torch.set_num_threads(1)  # for the threads to come
    pool = ThreadPoolExecutor(cores)

    try:
        waiting = [pool.submit(copy_context().run, answer, batch) for batch in made]
        yield from (each.result() for each in waiting)
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(cores)


# What is read together


def rows_of(requests: Sequence[Request], *, shares: bool) -> list[Row]:
    """Each distinct input once; the choices after one context branch off it, where that saves more
    than is left.
    """
    by_context: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for context, continuation in dict.fromkeys(requests):
        by_context.setdefault(context, []).append(continuation)

    rows = []

    for context, continuations in by_context.items():
        by_tail: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
        for continuation in continuations:
            by_tail.setdefault(continuation[:-1], []).append(
                continuation
            )  # the last word need not be read

        if shares and (len(by_tail) - 1) * len(context) > sum(map(len, by_tail)):
            branches = tuple(tail for tail in by_tail if tail)
            rows.append(
                Row(context, branches, tuple(Request(context, each) for each in continuations))
            )
            continue

        for tail, ends in by_tail.items():
            rows.append(Row((*context, *tail), (), tuple(Request(context, each) for each in ends)))

    return rows


def shares_state(model: GPT) -> bool:
    """Whether a batch of contexts of several lengths can be gone on from: then padding lies between
    the words, which what counts places instead of words cannot bear."""
    config = model.config
    return (
        config.position not in ("alibi", "relative")
        and config.window is None
        and config.sparse == "none"
    )


def furthest(model: GPT) -> float:
    """How far a batch may reach, padding included: a learned position has no more numbers than it
    was given.
    """
    return model.config.context if model.config.position == "learned" else math.inf


def batches(
    rows: Sequence[Row], batch_tokens: int, furthest: float = math.inf
) -> Iterator[list[Row]]:
    """The longest first: if memory does not suffice, it shows at once. Once a batch has work
    enough, rows that would be padding for an eighth or more are left to the next. All branches
    begin where the longest stem ends."""
    batch: list[Row] = []
    for row in sorted(rows, key=lambda row: (bool(row.branches), len(row.stem)), reverse=True):
        if batch:
            longest = len(batch[0].stem)
            branching = sum(len(branch) for each in (*batch, row) for branch in each.branches)
            full = (len(batch) + 1) * longest + branching > batch_tokens
            enough = len(batch) * longest > batch_tokens // 4 and 8 * len(row.stem) <= 7 * longest
            reach = longest + max(
                (len(branch) for each in (*batch, row) for branch in each.branches), default=0
            )
            if full or enough or reach > furthest or bool(batch[0].branches) != bool(row.branches):
                yield batch
                batch = []

        batch.append(row)

    if batch:
        yield batch


# Passes of the model


@torch.no_grad()
def read(model: GPT, batch: Sequence[Row], device: torch.device) -> dict[Request, Likelihood]:
    """One pass over the stems and, if there are any, one over the branches; then logits where they
    were asked for.
    """
    ids, padding_mask = padded([row.stem for row in batch], device)
    branches = [(place, branch) for place, row in enumerate(batch) for branch in row.branches]
    state = model.start() if branches or model.config.memory else None
    hidden = read_stems(model, ids, state)  # (B, T, E)
    flat, first, width = [hidden.flatten(0, 1)], {}, ids.shape[1]  # (B T, E)
    if branches and state is not None:
        where = torch.tensor([place for place, _ in branches], device=device)
        state.reorder(where)
        more, more_keep = padded([branch for _, branch in branches], device)
        after = model.hidden(
            more, padding_mask=torch.cat([padding_mask[where], more_keep], dim=1), state=state
        )  # (b, t, E)
        flat.append(after.flatten(0, 1))  # (b t, E)
        first = {way: ids.numel() + number * more.shape[1] for number, way in enumerate(branches)}

    places: list[int] = []
    targets: list[int] = []
    counts = []

    for number, row in enumerate(batch):
        for context, continuation in row.requests:
            begin, in_stem = (
                len(context) - 1,
                len(row.stem) - len(context) + 1,
            )  # how many words the stem predicts
            places += [
                number * width + begin + step for step in range(min(in_stem, len(continuation)))
            ]
            if len(continuation) > in_stem:
                start = first[number, continuation[:-1]]
                places += range(start, start + len(continuation) - in_stem)

            targets += continuation
            counts.append(len(continuation))

    chosen = torch.cat(flat)[torch.tensor(places, device=device)]  # (N, E)
    found, greedy = token_log_probabilities(model, chosen, torch.tensor(targets, device=device))
    requests = [request for row in batch for request in row.requests]
    words = (tuple(part.tolist()) for part in found.cpu().split(counts))
    alls = (bool(part.all()) for part in greedy.cpu().split(counts))

    return dict(zip(requests, map(Likelihood, words, alls), strict=True))


def read_stems(
    model: GPT, ids: Int[Tensor, "B T"], state: KeyValueCache | SegmentMemory | None
) -> Float[Tensor, "B T E"]:
    """At once, or segment by segment where the model remembers segments."""
    pieces = ids.split(model.config.context, dim=1) if model.config.memory else (ids,)
    return torch.cat([model.hidden(piece, state=state) for piece in pieces], dim=1)


def padded(
    texts: Sequence[Sequence[int]], device: torch.device
) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """Ids with padding behind them, and where there are words."""
    lengths = torch.tensor([len(text) for text in texts])
    padding_mask = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)  # (B, T)
    ids = torch.zeros(padding_mask.shape, dtype=torch.int64)
    ids[padding_mask] = torch.tensor([id for text in texts for id in text])

    return ids.to(device), padding_mask.to(device)


def token_log_probabilities(
    model: GPT | BERT | Transformer | RNN, hidden: Float[Tensor, "N E"], targets: Int[Tensor, "N"]
) -> tuple[Float[Tensor, "N"], Bool[Tensor, "N"]]:
    """Of each target, and whether it is the likeliest word; logits exist for a few places at a
    time.
    """
    rows = max(1, (LOGITS_ON_GPU if hidden.is_cuda else LOGITS) // model.config.vocabulary)
    found, greedy = [], []

    for some, target in zip(hidden.split(rows), targets.split(rows), strict=True):
        logits = model.logits(some)  # (n, V)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        found.append(logits.gather(1, target.unsqueeze(1)).squeeze(1) - logits.logsumexp(1))  # (n,)
        greedy.append(logits.argmax(1) == target)

    return torch.cat(found), torch.cat(greedy)
