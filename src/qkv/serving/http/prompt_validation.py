"""Prompt validation: which model, and prompt to token ids; the engine checks ids and lengths."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from starlette.requests import Request

from qkv.generation.text import prompt_ids
from qkv.models.model import Model
from qkv.serving.engine.admission import check_prompt
from qkv.serving.http.sse import while_connected
from qkv.serving.model_entry import ModelEntry
from qkv.serving.model_host import ModelHost
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
    entry, engine = host_of(request).ready_entry(name)
    return entry, engine.model, engine.tokenizer


def check_can(model: Model, name: str, can: bool, cannot: str) -> None:
    """Raise ValueError unless the model can do what is asked; `cannot` completes "which"."""
    if not can:
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


def encode_prompt(tokenizer: Tokenizer, prompt: str | list[int]) -> list[int]:
    """The token ids of a prompt, which may be given as ids."""
    return prompt_ids(tokenizer, prompt) if isinstance(prompt, str) else prompt


def prompt_token_ids(
    model: Model, tokenizer: Tokenizer, prompt: str | list[int], field: str
) -> list[int]:
    """The token ids of a prompt for a job, checked as the engine checks those of a request."""
    ids = encode_prompt(tokenizer, prompt)
    check_prompt(model, ids, field)
    return ids
