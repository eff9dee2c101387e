"""From what a client wrote to what the engine is asked: which model, which ids, how long, how
chosen, until when.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from starlette.requests import Request

from qkv.generation.generate import limit_of
from qkv.generation.sampling_params import SamplingParams
from qkv.generation.text import prompt_ids
from qkv.models import GPT, RNN, Transformer
from qkv.models.registry import Model, backbone_of
from qkv.serving.engine.generation_request import (
    TIMED_OUT,
    GenerationRequest,
    OutputChunk,
    RequestHandle,
    RequestRefused,
)
from qkv.serving.http.schema.openai_schema import UNENDING, GenerationFields, SamplingFields
from qkv.serving.http.sse import answer
from qkv.serving.model_host import ModelEntry, ModelHost
from qkv.text.tokenizer import Tokenizer

T = TypeVar("T")
LARGE = 2_000
"""A text of more characters is cut into tokens beside the event loop, which goes on with the
others.
"""
MOST_LISTED = 200_000
"""Tokens and alternatives in one answer: some 20 MB on the wire."""
GRACE = 0.2
"""Seconds after the deadline in which the engine may still say itself how far it came."""


def host_of(request: Request) -> ModelHost:
    host: ModelHost = request.app.state.host
    return host


def opened(request: Request, name: str) -> tuple[ModelEntry, Any, Tokenizer]:
    """A model that is ready, by its name."""
    host = host_of(request)
    served = host.entries.get(name)
    if served is None:
        raise RequestRefused(
            404, f"model: there is no {name!r} here, but {', '.join(host.entries)}"
        )
    if served.state == "failed":
        raise RequestRefused(
            503, f"model: {name} could not be loaded; GET /health says why", retry_after=60
        )
    if served.state != "ready" or served.model is None or served.tokenizer is None:
        raise RequestRefused(
            503, f"model: {name} is still being loaded; ask again soon", retry_after=2
        )

    return served, served.model, served.tokenizer


def only(model: Model, name: str, families: type[Any] | tuple[type[Any], ...], does: str) -> None:
    if not isinstance(model, families):
        raise ValueError(
            f"model: {name} is a {type(model).__name__}, which {does}; GET /v1/models says what it can"
        )


async def prepared(
    request: Request,
    served: ModelEntry,
    deadline: float,
    size: int | None,
    work: Callable[..., T],
    *given: Any,
) -> T:
    """Work on so many characters of a request before the engine is asked: here if they are few,
    else in a thread of the model's. It is over at the deadline, and when the client leaves. Of
    someone else's program the size is None."""
    if size is not None and size <= LARGE:
        return work(*given)

    return await answer(request, served.preparing.run(partial(work, *given), deadline))


async def beside(size: int, work: Callable[..., T], *given: Any) -> T:
    """Write out an answer of so many tokens and alternatives: here if they are few, else in a
    thread of its own.
    """
    return await asyncio.to_thread(work, *given) if size > LARGE else work(*given)


def ids_of(
    model: GPT, tokenizer: Tokenizer, prompt: str | list[int], field: str = "prompt"
) -> list[int]:
    if isinstance(prompt, str):
        ids = prompt_ids(tokenizer, prompt)
    else:
        ids = prompt
        check_ids(ids, model.config.vocabulary, field)

    check_fits(model, ids, field)
    return ids


def check_ids(ids: Sequence[int], vocabulary: int, field: str) -> None:
    if max(ids, default=0) >= vocabulary:
        raise ValueError(
            f"{field}: expected ids below the vocabulary's {vocabulary:,}, not {max(ids):,}"
        )


def check_fits(model: GPT, ids: Sequence[int], field: str) -> None:
    limit = limit_of(model, "refuse")
    if limit is not None and len(ids) > limit:
        raise ValueError(
            f"{field}: {len(ids):,} tokens are more than the model's context of {limit:,}; shorten it"
        )
    if len(ids) > UNENDING:
        raise ValueError(
            f"{field}: {len(ids):,} tokens are more than the {UNENDING:,} that are read here; shorten it"
        )


def room_after(model: GPT, ids: Sequence[int], asked: int | None, otherwise: int) -> int:
    """New tokens to ask for: no more than fit and one, by which the engine knows that it was the
    context that ended them. The last one is not read, so it needs no place."""
    limit = limit_of(model, "refuse")
    wanted = otherwise if asked is None else asked
    return min(wanted, UNENDING if limit is None else limit - len(ids) + 2)


def listed(ask: GenerationRequest) -> int:
    """Tokens and alternatives that the answer has at most; each of its texts lists the prompt, too,
    if one is.
    """
    of_prompt = 0 if ask.prompt_top is None else len(ask.prompt) * (ask.prompt_top + 1)
    return 0 if ask.top is None else ask.samples * (ask.length * (ask.top + 1) + of_prompt)


def check_listed(asks: Sequence[GenerationRequest]) -> None:
    found = sum(map(listed, asks))
    if found > MOST_LISTED:
        raise ValueError(
            f"logprobs: all texts together may have {found:,} tokens and alternatives, more than {MOST_LISTED:,}; ask "
            "for fewer, or give a smaller n or max_tokens"
        )


def choice_of(asked: SamplingFields) -> SamplingParams:
    """The field's defaults where a client says null."""
    found: dict[str, Any] = {
        "temperature": 1.0 if asked.temperature is None else asked.temperature,
        "top_k": asked.top_k,
        "top_p": None if asked.top_p in (None, 1.0) else asked.top_p,
        "min_p": asked.min_p or None,
    }

    if isinstance(asked, GenerationFields):
        found |= {
            "repetition": 1.0 if asked.repetition_penalty is None else asked.repetition_penalty,
            "presence": asked.presence_penalty or 0.0,
            "frequency": asked.frequency_penalty or 0.0,
            "minimum": asked.min_tokens or 0,
        }

    return SamplingParams(**found)


def seed_of(seed: int | None) -> int | None:
    """OpenAI's seeds may be negative, ours are not."""
    return None if seed is None else seed & (2**63 - 1)


def deadline_of(request: Request, timeout: float | None) -> float:
    """By time.monotonic(); the server's own is the latest."""
    latest: float = request.app.state.rules.deadline
    return time.monotonic() + min(latest, latest if timeout is None else timeout)


def heads_of(model: Model, names: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """ "3.5" as (3, 5), and "2.*" as every head of layer 2."""
    if not names:
        return ()

    body = backbone_of(model)
    if isinstance(body, RNN):
        raise ValueError("heads_off: an RNN has no heads; leave them out")

    blocks = body.decoder.blocks if isinstance(body, Transformer) else body.stack.blocks
    depth, heads = len(blocks), body.config.heads
    found: dict[tuple[int, int], None] = {}

    for name in names:
        layer, _, head = name.partition(".")
        if int(layer) >= depth:
            raise ValueError(
                f"heads_off: {name}: expected a layer of 0 to {depth - 1}, not {layer}"
            )
        if head != "*" and int(head) >= heads:
            raise ValueError(f"heads_off: {name}: expected a head of 0 to {heads - 1}, not {head}")

        found |= {
            (int(layer), each): None for each in (range(heads) if head == "*" else [int(head)])
        }

    return tuple(found)


# What comes back


async def pieces(ticket: RequestHandle) -> AsyncIterator[OutputChunk]:
    """Of one request; whoever stops reading lets it go. Nobody waits for an engine that is busy
    with something else when the time is over: what was not said by then is not said."""
    assert isinstance(ticket.ask, GenerationRequest)
    spoke, open_rows, news = False, set(range(ticket.ask.samples)), aiter(ticket)

    try:
        while open_rows:
            try:
                async with asyncio.timeout(left_until(ticket.ask.deadline)):
                    piece = await anext(news)
            except TimeoutError:
                break

            spoke = spoke or bool(piece.said)
            if piece.reason == "deadline" and not spoke:
                raise RequestRefused(408, TIMED_OUT)

            if piece.reason is not None:
                open_rows.discard(piece.row)

            yield piece

        if open_rows and not spoke:
            raise RequestRefused(408, TIMED_OUT)

        for row in sorted(open_rows):
            yield OutputChunk(row, "", [], "deadline")
    finally:
        ticket.cancel()


def left_until(deadline: float | None) -> float | None:
    return None if deadline is None else deadline + GRACE - time.monotonic()


async def together(
    host: ModelHost, name: str, asks: Sequence[GenerationRequest]
) -> AsyncIterator[tuple[int, OutputChunk]]:
    """Of several requests as they come, each piece with the number of its request. All are taken,
    or none.
    """
    if len(asks) > host.queue:
        raise ValueError(
            f"prompt: {len(asks)} at once are more than may wait here, which is {host.queue}; send fewer"
        )

    tickets: list[RequestHandle] = []
    readers: list[asyncio.Task[None]] = []
    news: asyncio.Queue[tuple[int, OutputChunk | Exception | None]] = asyncio.Queue()

    async def read(number: int, ticket: RequestHandle) -> None:
        try:
            async for piece in pieces(ticket):
                news.put_nowait((number, piece))

            news.put_nowait((number, None))
        except Exception as error:
            news.put_nowait((number, error))

    try:
        for ask in asks:
            tickets.append(host.ask(name, ask))

        if len(tickets) == 1:
            async for piece in pieces(tickets[0]):
                yield 0, piece

            return

        readers += [
            asyncio.create_task(read(number, ticket)) for number, ticket in enumerate(tickets)
        ]
        left = len(readers)
        while left:
            number, found = await news.get()
            if isinstance(found, Exception):
                raise found

            if found is None:
                left -= 1
            else:
                yield number, found
    finally:
        for ticket in tickets:
            ticket.cancel()

        for reader in readers:
            reader.cancel()


async def job(
    request: Request, name: str, work: Callable[[Any, Tokenizer], T], deadline: float
) -> T:
    """Work of a model's own, between two steps of the engine."""
    ticket = host_of(request).job(name, work)
    try:
        async with asyncio.timeout(deadline - time.monotonic()):
            found: T = await ticket.result()
            return found
    except TimeoutError:
        raise RequestRefused(408, TIMED_OUT) from None
    finally:
        ticket.cancel()
