"""Sampler: the next token of every sequence; those with equal sampling parameters together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from qkv.generation.kernels import sampling_kernel
from qkv.generation.kernels.sampling_kernel import RowFilters
from qkv.generation.sampling import distribution
from qkv.generation.sampling_params import (
    BROKEN,
    SamplingParams,
    TokenCounts,
    process_logits,
    sample_tokens,
)
from qkv.serving.engine.generation_request import Alternative
from qkv.serving.engine.sequence import ScoredToken, ServingSequence
from qkv.serving.engine.sequence_table import Slots
from qkv.serving.error_log import as_exception


class TopLogprobs(NamedTuple):
    """Logprobs of tokens and of their k most likely alternatives, still on the device."""

    logprobs: Float[Tensor, "T"]
    top_ids: Int[Tensor, "T k"]
    top_logprobs: Float[Tensor, "T k"]
    top_probabilities: Float[Tensor, "T k"]

    def on_host(self) -> list[ScoredToken]:
        """The logprob and the alternatives of each token on the host."""
        own, *top = (column.tolist() for column in self)
        alternatives = []
        for row in zip(*top, strict=True):
            alternatives.append([Alternative(*other) for other in zip(*row, strict=True)])

        return list(zip(own, alternatives, strict=True))


Logprobs = dict[tuple[int, ...], TopLogprobs]
"""Logprobs by the rows of a step that they are for."""


class LaunchedStep(NamedTuple):
    """A step that was started, and the tokens that it samples."""

    sequences: list[ServingSequence]
    slots: Slots
    """The slot of each sequence when the step was started."""
    owner: Slots
    """Whose slots they were: a slot may have a new owner when the tokens arrive."""
    token_ids: Int[Tensor, "M"]
    """On the host once `arrived` is synchronised."""
    logprobs: Logprobs
    arrived: Any


def sample(
    logits: Float[Tensor, "M V"], sequences: Sequence[ServingSequence]
) -> tuple[Int[Tensor, "M"], Logprobs]:
    """A token for each sequence, on the device, and the logprobs that were requested."""
    if sampling_kernel.supports(logits) and all(each.samples_logits for each in sequences):
        return sample_rows(logits, sequences), {}

    device = logits.device
    token_ids = torch.empty(len(sequences), dtype=torch.int64, device=device)
    logprobs: Logprobs = {}

    for rows in rows_by_params(sequences):
        group = logits
        if len(rows) < len(sequences):
            group = logits[to_device(rows, device)]

        drawn = sample_group(group, [sequences[row] for row in rows], rows, logprobs)
        if len(rows) == len(sequences):
            token_ids = drawn
        else:
            token_ids[to_device(rows, device)] = drawn

    return token_ids, logprobs


def sample_rows(
    logits: Float[Tensor, "M V"], sequences: Sequence[ServingSequence]
) -> Int[Tensor, "M"]:
    """Sample rows by the kernel, each with sampling parameters of its own."""
    numbers = np.ones((len(RowFilters._fields) + 1, len(sequences)))
    for row, sequence in enumerate(sequences):
        filters = sequence.request.sampling.row_filters
        numbers[:-1, row] = filters
        if filters.temperature:
            numbers[-1, row] = sequence.uniform()

    on_device = to_device(numbers, logits.device)
    return sampling_kernel.sample_rows(logits, on_device[-1], on_device[:-1])


def sample_group(
    logits: Float[Tensor, "R V"],
    sequences: Sequence[ServingSequence],
    rows: Sequence[int],
    logprobs: Logprobs,
) -> Int[Tensor, "R"]:
    """Sample rows with equal sampling parameters; adds the logprobs that were requested."""
    device = logits.device
    first = sequences[0]
    sampling = first.request.sampling

    # Penalties and forbidden tokens
    counts = None
    if sampling.needs_counts:
        counts = token_counts_of(first, logits.shape[1], device)

    allowed = process_logits(logits, sampling, counts, first.generated, first.request.end_ids)

    # One draw per row
    uniform = logits[:, 0]  # not used at temperature 0
    if sampling.temperature:
        uniform = to_device([sequence.uniform() for sequence in sequences], device)

    drawn = sample_tokens(allowed, uniform, sampling)

    # Logprobs, with as many alternatives as the row that wants most
    wanted: dict[int, int] = {}
    for index, sequence in enumerate(sequences):
        if sequence.request.logprobs is not None:
            wanted[rows[index]] = index

    if wanted:
        count = max(sequences[index].request.logprobs or 0 for index in wanted.values())
        at = to_device(list(wanted.values()), device)
        sampled = sampled_distribution(allowed[at], sampling)
        logprobs[tuple(wanted)] = top_logprobs(logits[at], drawn[at], count, sampled)

    return drawn


def sample_isolated(
    logits: Float[Tensor, "M V"],
    sequences: list[ServingSequence],
    on_error: Callable[[ServingSequence, Exception], None],
) -> tuple[list[ServingSequence], Int[Tensor, "N"], Logprobs]:
    """Sample all sequences; if that fails, one by one, without those that fail again."""
    try:
        return sequences, *sample(logits, sequences)
    except BaseException as failure:
        error = as_exception(failure)
        if len(sequences) == 1:
            on_error(sequences[0], error)
            return [], torch.empty(0, dtype=torch.int64, device=logits.device), {}

    sampled: list[ServingSequence] = []
    parts: list[Tensor] = []
    logprobs: Logprobs = {}
    for row, sequence in enumerate(sequences):
        good, token_id, top = sample_isolated(logits[row : row + 1], [sequence], on_error)
        for scored in top.values():
            logprobs[(len(sampled),)] = scored

        sampled += good
        parts.append(token_id)

    return sampled, torch.cat(parts), logprobs


def to_device(numbers: Sequence[float] | np.ndarray, device: torch.device) -> Tensor:
    """A tensor of host numbers on the device, copied without blocking the host."""
    host = torch.from_numpy(np.asarray(numbers))
    if device.type != "cuda":
        return host.to(device)

    return host.pin_memory().to(device, non_blocking=True)


def rows_by_params(sequences: Sequence[ServingSequence]) -> list[list[int]]:
    """Rows that can be sampled together; one with penalties is alone, as it counts its tokens."""
    groups: dict[object, list[int]] = {}
    for row, sequence in enumerate(sequences):
        sampling = sequence.request.sampling
        position = sequence.generated

        # Positions differ only where a token is forced, or before the minimum length.
        stage: int = position < sampling.minimum
        if position in sampling.forced:
            stage = position + 2

        alone = None
        if sequence.counts_tokens:
            alone = row

        groups.setdefault((sequence.sampling_key, stage, alone), []).append(row)

    return list(groups.values())


def token_counts_of(
    sequence: ServingSequence, vocabulary: int, device: torch.device
) -> TokenCounts:
    """The sequence's token counts for penalties, created with its first sampled token."""
    if sequence.token_counts is None:
        prompt = torch.tensor([sequence.token_ids[: sequence.prompt_length]], device=device)
        sequence.token_counts = TokenCounts(prompt, None, vocabulary)
        for token_id in sequence.token_ids[sequence.prompt_length :]:
            sequence.token_counts.generated[0, token_id] += 1

    return sequence.token_counts


def sampled_distribution(
    allowed: Float[Tensor, "T V"], sampling: SamplingParams
) -> Float[Tensor, "T V"]:
    """The probabilities that tokens are drawn with."""
    if sampling.temperature == 0:
        return one_hot(allowed.argmax(-1), allowed.shape[1]).float()

    return distribution(
        allowed,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
    )


def top_logprobs(
    logits: Float[Tensor, "T V"],
    token_ids: Int[Tensor, "T"],
    count: int,
    sampled: Float[Tensor, "T V"] | None = None,
) -> TopLogprobs:
    """Logprobs of tokens and of the `count` most likely ones.

    `sampled` has the probabilities that tokens are drawn with; by default they are the model's.
    """
    logprobs = logits.float().log_softmax(-1)
    values, ids = logprobs.topk(min(count, logits.shape[1]))
    probabilities = values.exp() if sampled is None else sampled.gather(1, ids)
    own = logprobs.gather(1, token_ids.clamp(min=0).unsqueeze(1)).squeeze(1)

    return TopLogprobs(own.where(token_ids != BROKEN, torch.nan), ids, values, probabilities)


def launch_copy(
    sequences: list[ServingSequence],
    slots: Slots,
    owner: Slots,
    token_ids: Int[Tensor, "M"],
    logprobs: Logprobs,
) -> LaunchedStep:
    """Start copying the sampled tokens to the host."""
    if not token_ids.is_cuda:
        return LaunchedStep(sequences, slots, owner, token_ids, logprobs, None)

    host = torch.empty(token_ids.shape, dtype=token_ids.dtype, pin_memory=True)
    host.copy_(token_ids, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record()

    return LaunchedStep(sequences, slots, owner, host, logprobs, arrived)
