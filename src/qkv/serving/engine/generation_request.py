"""A generation request in token ids, the handle a client waits on, and its output chunks."""

from __future__ import annotations

import asyncio
import itertools
import queue
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

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
    tokens: list[TokenLogprob]
    reason: Reason | None
    """Why the sample ended; None unless this is its last chunk."""
    score: float | None = None
    """The score that a beam search ranked the sample by."""
    prompt: bool = False
    """Whether the tokens are those of the prompt."""


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


handle_ids = itertools.count(1)


class RequestHandle:
    """The client's side of a request or a job.

    Iterate over the chunks of a request: with `async for` where the handle was created inside an
    event loop, with `for` otherwise. A job has one result: `await handle.result()` or
    `handle.wait()`.
    """

    def __init__(self, request: GenerationRequest | Callable[..., Any]) -> None:
        self.request: Any = request
        self.id = next(handle_ids)
        self.aborted = False
        """The client is gone: the engine drops the request before its next step."""

        self.loop: asyncio.AbstractEventLoop | None
        self.updates: Any
        """A queue of Update: of the event loop where there is one, else of threads."""
        try:
            self.loop = asyncio.get_running_loop()
            self.updates = asyncio.Queue()
        except RuntimeError:
            self.loop = None
            self.updates = queue.SimpleQueue()

        self.unfinished = 1
        """Samples that have not ended."""
        if isinstance(request, GenerationRequest):
            self.unfinished = request.samples

        self.times: Any = None
        """When the request was accepted and started, for the server's metrics."""
        self.unread = 0
        """Chunks that the client has not read yet."""

    def accepts_chunk(self, samples: int) -> bool:
        """Back-pressure: False while the client has unread chunks; the next one is then longer."""
        return self.loop is None or self.unread < samples

    def abort(self) -> None:
        """Abort the request: the engine drops it before its next step."""
        self.aborted = True

    def put(self, update: Update) -> None:
        """Deliver an update; called in the handle's event loop, if it has one."""
        self.updates.put_nowait(update)

    def received(self, update: Any) -> Any:
        """Count a finished sample; raises an update that is an error."""
        if isinstance(update, Exception):
            self.unfinished = 0
            raise update

        if isinstance(update, JobResult) or update.reason is not None:
            self.unfinished -= 1

        return update

    async def __aiter__(self) -> AsyncIterator[OutputChunk]:
        while self.unfinished > 0:
            update = await self.updates.get()
            self.unread = self.updates.qsize()
            yield self.received(update)

    def __iter__(self) -> Iterator[OutputChunk]:
        while self.unfinished > 0:
            yield self.received(self.updates.get())

    async def result(self) -> Any:
        """The result of a job, awaited in the event loop."""
        return self.received(await self.updates.get()).value

    def wait(self) -> Any:
        """The result of a job; blocks the calling thread."""
        return self.received(self.updates.get()).value
