"""What a client asks of a model, in ids; and what comes back, piece by piece."""

from __future__ import annotations

import asyncio
import itertools
import queue
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from qkv.generation.sampling_params import SamplingParams

Reason = Literal["end", "stop", "length", "context", "deadline"]
LATE = "timeout: nothing was said in time; ask for less, or allow more"


class Alternative(NamedTuple):
    """A token that could stand here."""

    id: int
    logprob: float
    """As the model says it."""
    probability: float
    """As it is drawn: after penalties, temperature and filters."""


class TokenLogprob(NamedTuple):
    """A token that was said, or read, with what could have stood there."""

    id: int
    logprob: float | None
    """None where nothing was asked, and for the first token of a prompt."""
    alternatives: list[Alternative]
    """The likeliest first."""


class OutputChunk(NamedTuple):
    """News of one text of a request."""

    row: int
    """Which of its texts."""
    text: str
    """Whole characters that are never taken back; it may be empty."""
    said: list[TokenLogprob]
    reason: Reason | None
    """Why this is the text's last piece; None when it is not."""
    score: float | None = None
    """Of a search: what the text was ranked by."""


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """One request for words."""

    prompt: Sequence[int]
    """Ids to go on from; for a translator, those of its source."""
    length: int
    """At most so many new tokens; 0 only reads the prompt."""
    choice: SamplingParams = field(default_factory=SamplingParams)
    ends: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    samples: int = 1
    """So many texts, each drawn anew; of a search, so many of the best."""
    seed: int | None = None
    beams: int = 1
    """More than one: a beam search, which draws nothing and streams nothing."""
    length_penalty: float = 0.6
    top: int | None = None
    """Of each token said its log-probability, and so many alternatives."""
    prompt_top: int | None = None
    """The same of each token of the prompt, which is then said first, as row 0's first piece, with
    an empty text.
    """
    off: tuple[tuple[int, int], ...] = ()
    """Heads that say nothing, as (layer, head); of a translator its decoder's own."""
    stream: bool = False
    """Pieces come as they are said; else each text comes as one."""
    deadline: float | None = None
    """By time.monotonic(): what is not said by then is not said."""


class RequestRefused(Exception):
    """A request that is not taken: `status` is what HTTP calls it."""

    def __init__(self, status: int, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


numbers = itertools.count(1)


class RequestHandle:
    """A request on its way. Made inside an event loop it is read there, `async for piece in
    ticket`; else `for`.

    A job, which is some work of a model's own, has one result: `await ticket.result()`, or
    `ticket.wait()`.
    """

    def __init__(self, ask: GenerationRequest | Callable[..., Any]) -> None:
        self.ask, self.number = ask, next(numbers)
        self.gone = False
        """Nobody waits any more: the engine lets it go before its next step."""

        try:
            self.loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
            self.news: asyncio.Queue[Any] | queue.SimpleQueue[Any] = asyncio.Queue()
        except RuntimeError:
            self.loop, self.news = None, queue.SimpleQueue()

        self.left = ask.samples if isinstance(ask, GenerationRequest) else 1
        """Texts that have not ended."""
        self.unread = 0
        """Pieces on their way to the one who reads."""

    def may_hear(self, texts: int) -> bool:
        """Whether what was said of so many texts is taken: while it is not, more is said, and comes
        in one piece. So a server that is slower than its engine sends fewer, longer ones."""
        return self.loop is None or self.unread < texts

    def cancel(self) -> None:
        self.gone = True

    def hear(self, news: OutputChunk | JobResult | Exception) -> None:
        """In its own loop, if it has one."""
        self.news.put_nowait(news) if isinstance(self.news, asyncio.Queue) else self.news.put(news)

    def taken(self, news: Any) -> Any:
        if isinstance(news, Exception):
            self.left = 0
            raise news

        if isinstance(news, JobResult) or news.reason is not None:
            self.left -= 1

        return news

    async def __aiter__(self) -> AsyncIterator[OutputChunk]:
        assert isinstance(self.news, asyncio.Queue)
        while self.left > 0:
            news = await self.news.get()
            self.unread = self.news.qsize()
            yield self.taken(news)

    def __iter__(self) -> Iterator[OutputChunk]:
        assert isinstance(self.news, queue.SimpleQueue)
        while self.left > 0:
            yield self.taken(self.news.get())

    async def result(self) -> Any:
        assert isinstance(self.news, asyncio.Queue)
        return self.taken(await self.news.get()).value

    def wait(self) -> Any:
        assert isinstance(self.news, queue.SimpleQueue)
        return self.taken(self.news.get()).value


class JobResult(NamedTuple):
    """What a job found."""

    value: Any
