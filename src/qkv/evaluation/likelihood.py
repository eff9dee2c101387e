"""Log-likelihoods under a language model: the core of every task that compares texts.

Only positions that predict a continuation get logits. Shared work is done once: equal inputs are
one row, and the options of one question branch off the same KV cache. Rows are sorted by length to
keep padding low; padding comes last, where causal attention never reads it.
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

from qkv.data.batches.padding import pad_rows
from qkv.generation.generate import without_dropout
from qkv.models.model import Model
from qkv.nn.cache import NO_STATE
from qkv.nn.linear.frozen_matrix import quantized_activations
from qkv.nn.linear.onednn import prepacking, small_enough

LOGITS = 2**23
"""Logits computed at once on a CPU, per core."""
LOGITS_ON_GPU = 2**27
TOKENS = 2**9
"""Tokens of one forward pass on a CPU."""
TOKENS_ON_GPU = 2**15

Progress = Callable[[int, int], None]
"""Called with the number of finished items and the total."""


def ignore_progress(done: int, total: int) -> None:
    """A progress callback that does nothing."""


class Request(NamedTuple):
    """A continuation to score after a context."""

    context: tuple[int, ...]
    continuation: tuple[int, ...]


class Likelihood(NamedTuple):
    """The log-probabilities of one continuation."""

    token_logprobs: tuple[float, ...]
    """The log-probability of each token of the continuation."""
    greedy: bool
    """True if greedy decoding would produce the continuation."""

    @property
    def log_likelihood(self) -> float:
        return math.fsum(self.token_logprobs)


class Row(NamedTuple):
    """One row of a batch: a stem, the branches that continue it, and the requests they answer."""

    stem: tuple[int, ...]
    branches: tuple[tuple[int, ...], ...]
    requests: tuple[Request, ...]


def truncate_requests(requests: Sequence[Request], model: Model) -> tuple[list[Request], int]:
    """Requests that fit the model's context, and the number that were truncated.

    Contexts are truncated from the left, as in the literature. Transformer-XL reads in segments and
    an RNN token by token: they need no truncation.
    """
    for request in requests:
        if not request.context or not request.continuation:
            raise ValueError(
                "requests: expected one token or more in the context and in the continuation"
            )

    if model.reads_on:
        return list(requests), 0

    limit = model.config.context
    fitting: list[Request] = []
    truncated = 0

    for context, continuation in requests:
        room = limit + 1 - len(continuation)  # the last token is predicted and never read
        if room < 1:
            raise ValueError(
                f"context: a continuation of {len(continuation)} tokens leaves no room "
                f"in the model's {limit} positions"
            )

        truncated += len(context) > room
        fitting.append(Request(context[-room:], continuation))

    return fitting, truncated


def likelihoods(
    model: Model,
    requests: Sequence[Request],
    *,
    batch_tokens: int | None = None,
    progress: Progress = ignore_progress,
) -> list[Likelihood]:
    """The likelihood of each request, in order.

    The model runs in its own dtype; the softmax is in float32, or in the model's dtype if that is
    more precise. `progress` is called after each pass with the number of distinct requests answered
    and their total.
    """
    if model.predicts != "next":
        raise TypeError(
            f"model: expected a GPT, which predicts the next token, not {type(model).__name__}"
        )

    device = next(model.parameters()).device
    batch_tokens = batch_tokens or tokens_per_pass(device)
    rows = build_rows(requests, share_contexts=can_share_contexts(model))
    # Only learned positions limit the length of stem and branch, padding included.
    has_limit = getattr(model.config, "position", "none") == "learned"
    longest = model.config.context if has_limit else math.inf
    batches = list(batch_rows(rows, batch_tokens, longest))
    results: dict[Request, Likelihood] = {}
    distinct = len(set(requests))

    packing = prepacking() if worth_prepacking(model, batches) else nullcontext()
    with without_dropout(model), packing:
        for batch_results in run_batches(
            lambda batch: score_batch(model, batch, device), batches, device
        ):
            results |= batch_results
            progress(len(results), distinct)

    return [results[request] for request in requests]


def tokens_per_pass(device: torch.device) -> int:
    """The number of tokens that one forward pass on a device should have."""
    return TOKENS_ON_GPU if device.type == "cuda" else TOKENS


def worth_prepacking(model: Model, batches: Sequence[list[Row]]) -> bool:
    """True if the weights are used often enough, and are small enough, to prepack a copy."""
    return len(batches) >= 16 and small_enough(model)


def run_batches(
    score: Callable[[list[Row]], dict[Request, Likelihood]],
    batches: Sequence[list[Row]],
    device: torch.device,
) -> Iterator[dict[Request, Likelihood]]:
    """The results of all batches in order.

    On a CPU every core runs a batch of its own, so that the cores do not synchronise in each layer.
    """
    cores = torch.get_num_threads()
    if device.type != "cpu" or cores == 1 or len(batches) < 2 * cores:
        yield from map(score, batches)
        return

    torch.set_num_threads(1)  # inherited by the threads of the pool
    pool = ThreadPoolExecutor(cores)

    try:
        futures = [pool.submit(copy_context().run, score, batch) for batch in batches]
        for future in futures:
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(cores)


# Rows and batches


def build_rows(requests: Sequence[Request], *, share_contexts: bool) -> list[Row]:
    """Rows that answer all requests, with every distinct input once.

    Continuations of the same context branch off it where that reads fewer tokens.
    """
    by_context: dict[tuple[int, ...], list[Request]] = {}
    for request in dict.fromkeys(requests):
        by_context.setdefault(request.context, []).append(request)

    rows: list[Row] = []

    for context, after_context in by_context.items():
        by_prefix: dict[tuple[int, ...], list[Request]] = {}
        for request in after_context:  # the last token is predicted and never read
            by_prefix.setdefault(request.continuation[:-1], []).append(request)

        saved = (len(by_prefix) - 1) * len(context)
        if share_contexts and saved > sum(map(len, by_prefix)):
            branches = tuple(filter(None, by_prefix))
            rows.append(Row(context, branches, tuple(after_context)))
            continue

        for prefix, answered in by_prefix.items():
            rows.append(Row((*context, *prefix), (), tuple(answered)))

    return rows


def can_share_contexts(model: Model) -> bool:
    """True if branches can continue a batch of contexts of different lengths.

    The batch then has padding between context and branch, which is wrong for mechanisms that count
    key slots instead of positions.
    """
    if not model.uses_kv_cache:
        return False

    config = model.config
    return (
        config.position not in ("alibi", "relative")
        and config.window is None
        and config.sparse == "none"
    )


def batch_rows(
    rows: Sequence[Row], batch_tokens: int, longest: float = math.inf
) -> Iterator[list[Row]]:
    """Batches of rows of similar length, the longest first so that a lack of memory shows at once.

    All branches of a batch start where its longest stem ends.
    """
    batch: list[Row] = []
    for row in sorted(rows, key=row_length, reverse=True):
        if batch and not fits_batch(batch, row, batch_tokens, longest):
            yield batch
            batch = []

        batch.append(row)

    if batch:
        yield batch


def row_length(row: Row) -> tuple[bool, int]:
    """The sort key of rows: those with branches apart from those without, then by stem length."""
    return bool(row.branches), len(row.stem)


def fits_batch(batch: Sequence[Row], row: Row, batch_tokens: int, longest: float) -> bool:
    """True if a row can join a batch without exceeding its tokens or wasting them on padding."""
    if bool(batch[0].branches) != bool(row.branches):
        return False

    stem = len(batch[0].stem)
    branch_lengths = [0]
    for member in (*batch, row):
        branch_lengths += map(len, member.branches)

    if (len(batch) + 1) * stem + sum(branch_lengths) > batch_tokens:
        return False
    if stem + max(branch_lengths) > longest:
        return False

    # A batch with enough work leaves a row that is at least an eighth padding to the next batch.
    has_enough = len(batch) * stem > batch_tokens // 4
    return not (has_enough and 8 * len(row.stem) <= 7 * stem)


# Forward passes


@torch.no_grad()
@quantized_activations()
def score_batch(
    model: Model, batch: Sequence[Row], device: torch.device
) -> dict[Request, Likelihood]:
    """The likelihoods of all requests of a batch.

    One forward pass reads the stems and, where there are branches, a second one reads those; logits
    are computed only at the positions that predict a continuation.
    """
    hidden, branch_starts, width = read_batch(model, batch, device)
    positions: list[int] = []
    targets: list[int] = []
    requests: list[Request] = []

    # The flat positions of the hidden states that predict each request's continuation
    for number, row in enumerate(batch):
        for request in row.requests:
            positions += predicting_positions(request, row, number, width, branch_starts)
            targets += request.continuation
            requests.append(request)

    chosen = hidden[torch.tensor(positions, device=device)]  # (N, E)
    logprobs, greedy = token_log_probabilities(model, chosen, torch.tensor(targets, device=device))

    # One likelihood for each request
    lengths = [len(request.continuation) for request in requests]
    results: dict[Request, Likelihood] = {}
    logprob_parts = logprobs.cpu().split(lengths)
    greedy_parts = greedy.cpu().split(lengths)

    for request, values, flags in zip(requests, logprob_parts, greedy_parts, strict=True):
        results[request] = Likelihood(tuple(values.tolist()), bool(flags.all()))

    return results


def read_batch(
    model: Model, batch: Sequence[Row], device: torch.device
) -> tuple[Float[Tensor, "N E"], dict[tuple[int, tuple[int, ...]], int], int]:
    """The hidden states of stems and branches, flat, where each branch starts, and the stem width.

    A branch is identified by the number of its row and its tokens.
    """
    ids, padding_mask = pad_rows([row.stem for row in batch], keep_mask=True, device=device)
    branches: list[tuple[int, tuple[int, ...]]] = []
    for number, row in enumerate(batch):
        branches += [(number, branch) for branch in row.branches]

    # Stems
    state = None
    if branches or not model.uses_kv_cache:
        state = model.start()

    stem_hidden = model.decoder_hidden(ids, state=state or NO_STATE)  # (B, T, E)
    flat = stem_hidden.flatten(0, 1)  # (B T, E)
    width = ids.shape[1]
    if not branches or state is None:
        return flat, {}, width

    # Branches, each after a copy of its stem's cache
    numbers, branch_tokens = zip(*branches, strict=True)
    rows = torch.tensor(numbers, device=device)
    state.reorder(rows)
    branch_ids, branch_mask = pad_rows(branch_tokens, keep_mask=True, device=device)
    assert padding_mask is not None
    assert branch_mask is not None
    branch_hidden = model.hidden(
        branch_ids, padding_mask=torch.cat([padding_mask[rows], branch_mask], dim=1), state=state
    )  # (b, t, E)

    starts: dict[tuple[int, tuple[int, ...]], int] = {}
    for index, branch in enumerate(branches):
        starts[branch] = ids.numel() + index * branch_ids.shape[1]

    return torch.cat([flat, branch_hidden.flatten(0, 1)]), starts, width


def predicting_positions(
    request: Request,
    row: Row,
    number: int,
    width: int,
    branch_starts: dict[tuple[int, tuple[int, ...]], int],
) -> list[int]:
    """The flat positions whose hidden states predict the continuation of a request."""
    context, continuation = request
    start = number * width + len(context) - 1
    in_stem = len(row.stem) - len(context) + 1  # predictions that the stem makes
    positions = list(range(start, start + min(in_stem, len(continuation))))
    if len(continuation) > in_stem:
        branch = branch_starts[number, continuation[:-1]]
        positions += range(branch, branch + len(continuation) - in_stem)

    return positions


def token_log_probabilities(
    model: Model, hidden: Float[Tensor, "N E"], targets: Int[Tensor, "N"]
) -> tuple[Float[Tensor, "N"], Bool[Tensor, "N"]]:
    """The log-probability of each target, and whether it is the most likely token.

    Logits are computed for a few positions at a time to bound memory.
    """
    budget = LOGITS_ON_GPU if hidden.is_cuda else LOGITS
    rows = max(1, budget // model.config.vocabulary)
    logprobs: list[Tensor] = []
    greedy: list[Tensor] = []

    for part, target in zip(hidden.split(rows), targets.split(rows), strict=True):
        logits = model.logits(part)  # (n, V)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        target_logits = logits.gather(1, target.unsqueeze(1)).squeeze(1)  # (n,)
        logprobs.append(target_logits - logits.logsumexp(1))
        greedy.append(logits.argmax(1) == target)

    return torch.cat(logprobs), torch.cat(greedy)
