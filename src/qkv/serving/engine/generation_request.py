"""A generation request in token ids, the handle a client waits on, and its output chunks."""

from __future__ import annotations

import asyncio
import itertools
import queue
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Int64

from qkv.generation.sampling_params import SamplingParams
from qkv.generation.stop import Reason

TIMED_OUT = "timeout: no token was generated in time; ask for fewer tokens, or allow more time"


class Alternative(NamedTuple):
    """A candidate token at one position."""

    id: int
    logprob: float
    """Under the model's own distribution."""
    probability: float
    """Under the distribution that is sampled: after penalties, temperature and filters."""


class TokenLogprob(NamedTuple):
    """A token of the output or of the prompt, with its log-probability and its alternatives."""

    id: int
    text: str = ""
    """Characters that the token completes, with stop strings; empty without logprobs or stops."""
    offset: int = 0
    """Where its characters begin in the text; 0 if logprobs were not requested."""
    logprob: float | None = None
    """None if logprobs were not requested, and for the first token of a prompt."""
    alternatives: Sequence[Alternative] = ()
    """The most likely first."""


class OutputChunk(NamedTuple):
    """New output of one sample of a request."""

    sample: int
    """Index of the sample within its request."""
    text: str
    """Whole characters that later chunks never revise; may be empty."""
    token_ids: list[int]
    reason: Reason | None
    """Why the sample ended; None unless this is its last chunk."""
    score: float | None = None
    """The score that a beam search ranked the sample by."""
    prompt: bool = False
    """Whether the tokens are those of the prompt."""
    scored: list[TokenLogprob] | None = None
    """The tokens with texts and logprobs, if the request has stop strings or asks for logprobs."""
    generated: int | None = None
    """Tokens of the sample so far, with those of this chunk; None where they are not counted."""

    @property
    def tokens(self) -> list[TokenLogprob]:
        """The tokens as objects, which take longer to create than `token_ids`."""
        if self.scored is not None:
            return self.scored

        return list(map(TokenLogprob, self.token_ids))


class JobResult(NamedTuple):
    """The return value of a job."""

    value: Any


Update: TypeAlias = OutputChunk | JobResult | Exception
"""What a handle receives: output, the result of a job, or the error that ends the request."""


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """One request for generated tokens."""

    prompt: Sequence[int]
    """Token ids to continue; for a translator, the ids of the source."""
    max_tokens: int
    """Number of new tokens at most; 0 only reads the prompt."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    end_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    samples: int = 1
    """Number of independent samples; for a beam search, the number of best hypotheses returned."""
    seed: int | None = None
    beams: int = 1
    """More than 1 runs a beam search, which neither samples nor streams."""
    length_penalty: float = 0.6
    logprobs: int | None = None
    """Return the log-probability of every new token, with this many alternatives."""
    prompt_logprobs: int | None = None
    """The same for the prompt, as the first chunk of every sample; the text then echoes it."""
    echo: bool = False
    """Begin the text with the prompt's, which the text of new tokens continues."""
    heads_off: tuple[tuple[int, int], ...] = ()
    """Ablated heads as (layer, head); in a translator, of the decoder's self-attention."""
    stream: bool = False
    """Send chunks as tokens are generated; otherwise every sample is one chunk."""
    deadline: float | None = None
    """By time.monotonic(); generation stops there."""
    detokenize: bool = True
    """Whether chunks have text; without, stop strings and logprobs, the caller writes it."""
    prompt_name: str = "prompt"
    """What errors call the prompt."""

    @property
    def echoes(self) -> bool:
        """Whether the text begins with the prompt's."""
        return self.echo or self.prompt_logprobs is not None


class RequestRefused(Exception):
    """A request that is not accepted, with its HTTP status."""

    def __init__(self, status: int, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[type[RequestRefused], tuple[Any, ...]]:
        return RequestRefused, (self.status, str(self), self.retry_after)


@runtime_checkable
class Outlet(Protocol):
    """Takes the updates of many requests at once."""

    def deliver(self, updates: list[tuple[RequestHandle, Update]]) -> None:
        """Take the updates of a step; called in the engine's thread."""

    def deliver_tokens(
        self, numbers: Int64[np.ndarray, "M"], token_ids: Int64[np.ndarray, "M"]
    ) -> None:
        """Take one new token of each of these samples, by number; called in the engine's thread."""


handle_ids = itertools.count(1)


class Mailbox:
    """Updates of the requests of one response, for one reader in an event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.updates: list[tuple[RequestHandle, Update]] = []
        self.waiter: asyncio.Future[None] | None = None
        self.closed = False

    def put(self, handle: RequestHandle, update: Update) -> None:
        """Deliver an update; called in the event loop."""
        self.updates.append((handle, update))
        self.wake()

    def close(self) -> None:
        """The reader waits for no further update."""
        self.closed = True
        self.wake()

    def wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    async def take(self) -> list[tuple[RequestHandle, Update]]:
        """All updates that have arrived; waits for one unless the mailbox is closed."""
        if not self.updates and not self.closed:
            self.waiter = self.loop.create_future()
            await self.waiter

        updates = self.updates
        self.updates = []
        for handle, _ in updates:
            handle.unread = 0

        return updates


class RequestHandle:
    """The client's side of a request or a job.

    Iterate over the chunks of a request: with `async for` where the handle was created inside an
    event loop, with `for` otherwise. Requests of one response may share a mailbox, which is then
    read instead. A job has one result: `await handle.result()` or `handle.wait()`.
    """

    number = 0
    """The outlet's number of the first sample; the numbers of further samples follow."""

    def __init__(
        self,
        request: GenerationRequest | Callable[..., Any],
        mailbox: Mailbox | None = None,
        outlet: Outlet | None = None,
    ) -> None:
        """Create the handle of a request or job.

        Args:
            request: The request, or the function of a job.
            mailbox: Where its updates go; None is a new one, if an event loop runs.
            outlet: Takes its updates instead of any mailbox.
        """
        self.request: Any = request
        self.id = next(handle_ids)
        self.aborted = False
        """The client is gone: the engine drops the request before its next step."""

        self.outlet = outlet
        self.mailbox = mailbox
        if mailbox is None and outlet is None:
            with suppress(RuntimeError):  # no event loop runs in this thread
                self.mailbox = Mailbox()

        self.updates: queue.SimpleQueue[Update] = queue.SimpleQueue()
        """Updates for a thread that waits, if there is no event loop."""
        self.unfinished = 1
        """Samples that have not ended."""
        if isinstance(request, GenerationRequest):
            self.unfinished = request.samples

        self.times: Any = None
        """When the request was accepted and started, for the server's metrics."""
        self.unread = 0
        """Chunks that the client has not read yet."""

    @property
    def reader(self) -> asyncio.AbstractEventLoop | Outlet | None:
        """Who takes the updates: an event loop, an outlet, or a thread that waits."""
        return self.outlet if self.mailbox is None else self.mailbox.loop

    def accepts_chunk(self, samples: int) -> bool:
        """Back-pressure: False while the client has unread chunks; the next one is then longer."""
        return self.mailbox is None or self.unread < samples

    def abort(self) -> None:
        """Abort the request: the engine drops it before its next step."""
        self.aborted = True

    def put(self, update: Update) -> None:
        """Deliver an update; called in the handle's event loop, if it has one."""
        if self.mailbox is None:
            self.updates.put(update)
        else:
            self.mailbox.put(self, update)

    def received(self, update: Any) -> Any:
        """Count a finished sample; raises an update that is an error."""
        if isinstance(update, Exception):
            self.unfinished = 0
            raise update

        if isinstance(update, JobResult) or update.reason is not None:
            self.unfinished -= 1

        return update

    async def __aiter__(self) -> AsyncIterator[OutputChunk]:
        assert self.mailbox is not None
        while self.unfinished > 0:
            for _, update in await self.mailbox.take():
                yield self.received(update)

    def __iter__(self) -> Iterator[OutputChunk]:
        while self.unfinished > 0:
            yield self.received(self.updates.get())

    async def result(self) -> Any:
        """The result of a job, awaited in the event loop."""
        assert self.mailbox is not None
        ((_, update),) = await self.mailbox.take()
        return self.received(update).value

    def wait(self) -> Any:
        """The result of a job; blocks the calling thread."""
        return self.received(self.updates.get()).value
