"""Request parameters: sampling parameters, seed, deadline, heads_off and the limit of logprobs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request

from qkv.generation.sampling_params import SamplingParams
from qkv.models.model import Model
from qkv.models.sites import attention_sites
from qkv.serving.engine.generation_request import GenerationRequest
from qkv.serving.http.schema.openai_schema import GenerationFields, SamplingFields

MAX_LOGPROBS = 200_000
"""Tokens and alternatives in one response: about 20 MB of JSON."""


def shared_fields(body: GenerationFields, model: Model, deadline: float) -> dict[str, Any]:
    """The fields of the engine's requests that completions and chats have in common."""
    return {
        "sampling": sampling_params(body),
        "stop": body.stops,
        "samples": body.n or 1,
        "seed": request_seed(body.seed),
        "heads_off": parse_heads_off(model, body.heads_off),
        "stream": bool(body.stream),
        "deadline": deadline,
    }


def sampling_params(body: SamplingFields) -> SamplingParams:
    """The sampling parameters of a request; null means the default."""
    penalties: dict[str, Any] = {}
    if isinstance(body, GenerationFields):
        penalties = {
            "repetition": 1.0 if body.repetition_penalty is None else body.repetition_penalty,
            "presence": body.presence_penalty or 0.0,
            "frequency": body.frequency_penalty or 0.0,
            "minimum": body.min_tokens or 0,
        }

    return SamplingParams(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_k=body.top_k,
        top_p=None if body.top_p == 1.0 else body.top_p,
        min_p=body.min_p or None,
        **penalties,
    )


def request_seed(seed: int | None) -> int | None:
    """A seed that is not negative; OpenAI's may be."""
    return None if seed is None else seed & (2**63 - 1)


def request_deadline(request: Request, timeout: float | None) -> float:
    """The deadline by time.monotonic(); no later than the server's own."""
    seconds: float = request.app.state.rules.deadline
    if timeout is not None:
        seconds = min(seconds, timeout)

    return time.monotonic() + seconds


def parse_heads_off(model: Model, names: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Heads as (layer, head): "3.5" is (3, 5), and "2.*" is every head of layer 2."""
    if not names:
        return ()

    if not model.stacks:
        raise ValueError("heads_off: an RNN has no heads; leave it out")

    site = attention_sites(model)[-1]
    pairs: dict[tuple[int, int], None] = {}
    for name in names:
        layer, _, head = name.partition(".")
        heads = range(site.heads) if head == "*" else [int(head)]
        if int(layer) >= site.depth:
            raise ValueError(
                f"heads_off: {name}: expected a layer of 0 to {site.depth - 1}, not {layer}"
            )
        if heads[-1] >= site.heads:
            raise ValueError(
                f"heads_off: {name}: expected a head of 0 to {site.heads - 1}, not {head}"
            )

        pairs |= dict.fromkeys((int(layer), index) for index in heads)

    return tuple(pairs)


def check_logprob_entries(requests: Sequence[GenerationRequest]) -> None:
    """Raise ValueError if the logprobs of a response could be too many to send."""
    entries = 0
    for request in requests:
        if request.logprobs is not None:
            entries += request.samples * request.max_tokens * (request.logprobs + 1)

        if request.prompt_logprobs is not None:  # every sample repeats them
            entries += request.samples * len(request.prompt) * (request.prompt_logprobs + 1)

    if entries > MAX_LOGPROBS:
        raise ValueError(
            f"logprobs: the response could have {entries:,} tokens and alternatives, more than "
            f"{MAX_LOGPROBS:,}; ask for fewer, or for a smaller n or max_tokens"
        )
