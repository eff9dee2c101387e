"""Prompt validation: which model, prompt to token ids, checks of ids and of the context length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from starlette.requests import Request

from qkv.generation.generate import context_limit
from qkv.generation.text import prompt_ids
from qkv.models import GPT
from qkv.models.model import Model
from qkv.serving.engine.generation_request import RequestRefused
from qkv.serving.http.schema.openai_schema import MAX_SEQUENCE
from qkv.serving.http.sse import while_connected
from qkv.serving.model_host import ModelEntry, ModelHost
from qkv.text.tokenizer import Tokenizer

T = TypeVar("T")
LARGE = 2_000
"""Characters, tokens or logprobs from which work runs in a thread beside the event loop."""


def host_of(request: Request) -> ModelHost:
    """The model host of the application."""
    host: ModelHost = request.app.state.host
    return host


def ready_model(request: Request, name: str) -> tuple[ModelEntry, Any, Tokenizer]:
    """A loaded model by its name; raises RequestRefused if it is missing or not ready."""
    host = host_of(request)
    entry = host.entries.get(name)
    if entry is None:
        names = ", ".join(host.entries)
        raise RequestRefused(404, f"model: {name!r} does not exist; expected one of: {names}")
    if entry.state == "failed":
        raise RequestRefused(
            503, f"model: {name} could not be loaded; see GET /health", retry_after=60
        )
    if entry.state != "ready" or entry.model is None or entry.tokenizer is None:
        raise RequestRefused(503, f"model: {name} is still loading; try again soon", retry_after=2)

    return entry, entry.model, entry.tokenizer


def check_family(
    model: Model, name: str, families: type[Any] | tuple[type[Any], ...], cannot: str
) -> None:
    """Raise ValueError unless the model is of one of the families; `cannot` completes "which"."""
    if not isinstance(model, families):
        family = type(model).__name__
        raise ValueError(
            f"model: {name} is a {family}, which {cannot}; GET /v1/models lists what it can do"
        )


async def prepare(
    request: Request,
    entry: ModelEntry,
    deadline: float,
    size: int | None,
    work: Callable[..., T],
    *arguments: Any,
) -> T:
    """Run work on a request before it reaches the engine, such as tokenization.

    A small `size` (in characters) runs at once, a large one in a thread of the model, until the
    deadline or until the client disconnects. None is for programs from elsewhere (templates).
    """
    if size is not None and size <= LARGE:
        return work(*arguments)

    preparation = entry.preparation.run(partial(work, *arguments), deadline)
    return await while_connected(request.receive, preparation)


def prompt_token_ids(
    model: GPT, tokenizer: Tokenizer, prompt: str | list[int], field: str = "prompt"
) -> list[int]:
    """The token ids of a prompt, checked against the vocabulary and the context."""
    if isinstance(prompt, str):
        ids = prompt_ids(tokenizer, prompt)
    else:
        ids = prompt
        check_ids(ids, model.config.vocabulary, field)

    check_length(model, ids, field)
    return ids


def check_ids(ids: Sequence[int], vocabulary: int, field: str) -> None:
    """Raise ValueError if an id is not in the vocabulary."""
    if max(ids, default=0) >= vocabulary:
        raise ValueError(
            f"{field}: expected ids below the vocabulary's {vocabulary:,}, not {max(ids):,}"
        )


def check_length(model: GPT, ids: Sequence[int], field: str) -> None:
    """Raise ValueError if a prompt is longer than the context, or than the server's limit."""
    limit = context_limit(model, "refuse")
    if limit is not None and len(ids) > limit:
        raise ValueError(
            f"{field}: {len(ids):,} tokens are more than the model's context of {limit:,}; "
            "shorten it"
        )
    if len(ids) > MAX_SEQUENCE:
        raise ValueError(
            f"{field}: {len(ids):,} tokens are more than the server's limit of {MAX_SEQUENCE:,}; "
            "shorten it"
        )


def max_new_tokens(model: GPT, ids: Sequence[int], wanted: int) -> int:
    """The number of new tokens to request: as many as wanted, but at most one more than fit.

    By the extra token the engine tells "context" from "length". The last token of a sequence is
    never read, so it needs no position.
    """
    limit = context_limit(model, "refuse")
    if limit is None:
        return min(wanted, MAX_SEQUENCE)

    return min(wanted, limit - len(ids) + 2)
