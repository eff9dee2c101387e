"""Output of the engine as async streams: chunks of one or several requests, and results of jobs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

from starlette.requests import Request

from qkv.serving.engine.generation_request import (
    TIMED_OUT,
    GenerationRequest,
    OutputChunk,
    RequestHandle,
    RequestRefused,
)
from qkv.serving.http.prompt_validation import LARGE, host_of
from qkv.serving.model_host import ModelHost
from qkv.text.tokenizer import Tokenizer

T = TypeVar("T")
GRACE = 0.2
"""Seconds after the deadline in which the engine may still send what it has."""


async def request_chunks(handle: RequestHandle) -> AsyncIterator[OutputChunk]:
    """The chunks of one request; it is aborted when the caller stops reading.

    At the deadline the stream ends even if the engine is busy with something else. Raises
    RequestRefused if there is no token by then.
    """
    assert isinstance(handle.request, GenerationRequest)
    chunks = aiter(handle)
    has_tokens = False
    unfinished = set(range(handle.request.samples))

    try:
        while unfinished:
            try:
                async with asyncio.timeout(seconds_left(handle.request.deadline)):
                    chunk = await anext(chunks)
            except TimeoutError:
                break

            has_tokens = has_tokens or bool(chunk.tokens)
            if chunk.reason == "deadline" and not has_tokens:
                raise RequestRefused(408, TIMED_OUT)

            if chunk.reason is not None:
                unfinished.discard(chunk.sample)

            yield chunk

        if unfinished and not has_tokens:
            raise RequestRefused(408, TIMED_OUT)

        for sample in sorted(unfinished):
            yield OutputChunk(sample, "", [], "deadline")
    finally:
        handle.abort()


def seconds_left(deadline: float | None) -> float | None:
    """Seconds until the deadline, with some grace."""
    return None if deadline is None else deadline + GRACE - time.monotonic()


async def merged_chunks(
    host: ModelHost, name: str, requests: Sequence[GenerationRequest]
) -> AsyncIterator[tuple[int, OutputChunk]]:
    """Chunks of several requests as they come, with the index of their request.

    Either all requests are accepted or none.
    """
    if len(requests) > host.queue:
        raise ValueError(
            f"prompt: {len(requests)} prompts are more than the queue of {host.queue}; send fewer"
        )

    handles: list[RequestHandle] = []
    readers: list[asyncio.Task[None]] = []
    try:
        for request in requests:
            handles.append(host.submit(name, request))

        if len(handles) == 1:
            async for chunk in request_chunks(handles[0]):
                yield 0, chunk

            return

        # One reader per request fills a common queue
        merged: asyncio.Queue[tuple[int, OutputChunk | Exception | None]] = asyncio.Queue()
        for index, handle in enumerate(handles):
            readers.append(asyncio.create_task(read_into(merged, index, handle)))

        open_requests = len(readers)
        while open_requests:
            index, update = await merged.get()
            if isinstance(update, Exception):
                raise update

            if update is None:
                open_requests -= 1
            else:
                yield index, update
    finally:
        for handle in handles:
            handle.abort()

        for reader in readers:
            reader.cancel()


async def read_into(
    merged: asyncio.Queue[tuple[int, OutputChunk | Exception | None]],
    index: int,
    handle: RequestHandle,
) -> None:
    """Put all chunks of a request into a queue, then None, or the error that ended it."""
    try:
        async for chunk in request_chunks(handle):
            merged.put_nowait((index, chunk))

        merged.put_nowait((index, None))
    except Exception as error:
        merged.put_nowait((index, error))


async def job_result(
    request: Request, name: str, work: Callable[[Any, Tokenizer], T], deadline: float
) -> T:
    """The result of work on a model, which the engine runs between two steps."""
    handle = host_of(request).submit_job(name, work)
    try:
        async with asyncio.timeout(deadline - time.monotonic()):
            result: T = await handle.result()
            return result
    except TimeoutError:
        raise RequestRefused(408, TIMED_OUT) from None
    finally:
        handle.abort()


async def write_out(size: int, work: Callable[..., T], *arguments: Any) -> T:
    """Build a response of `size` tokens and alternatives; a large one in a thread of its own."""
    if size > LARGE:
        return await asyncio.to_thread(work, *arguments)

    return work(*arguments)
