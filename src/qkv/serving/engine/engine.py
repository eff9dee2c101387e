"""The engine of one model: schedule, run, postprocess. One step is one word of every text that
speaks.

Requests join and leave between any two steps. On a GPU the next step is under way before the words
of the last one are read: they stay on the device, where the next step finds them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkv.models import GPT, RNN, Transformer
from qkv.models.registry import Model
from qkv.serving.engine.admission import Admission
from qkv.serving.engine.beam import advance
from qkv.serving.engine.block_allocator import BlockAllocator
from qkv.serving.engine.generation_request import (
    GenerationRequest,
    JobResult,
    OutputChunk,
    RequestHandle,
    RequestRefused,
    TokenLogprob,
)
from qkv.serving.engine.prompt_logprobs import score_prompt
from qkv.serving.engine.runner import PagedRunner
from qkv.serving.engine.sampler import Top, words_of
from qkv.serving.engine.scheduler import ScheduledStep, Scheduler
from qkv.serving.engine.sequence import ServingSequence
from qkv.serving.engine.stateful_runner import StatefulRunner
from qkv.serving.http.error_log import log_unforeseen, ordinary
from qkv.text.tokenizer import Tokenizer

News = Callable[[RequestHandle, OutputChunk | JobResult | Exception], None]
SHORT_STEP = 0.05
"""Seconds that a step may take while other models wait, as far as chunks of prompts decide it."""
FIRST_CHUNK = 64
"""Tokens of a prompt in a short step before any was measured."""
LEAST_CHUNK = 64
"""Fewer are hardly quicker: each step reads all weights."""
LEAST_PART = 0.1
"""Of a step's seconds, reading prompts took this part at least: the fixed cost varies from step to
step.
"""


class LaunchedStep(NamedTuple):
    """A step that was launched."""

    texts: list[ServingSequence]
    """Those that said a word."""
    words: Int[Tensor, "M"]
    """On the host when `arrived`."""
    tops: dict[int, Top]
    arrived: Any


class Engine:
    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        news: News,
        *,
        cache: int = 1 << 30,
        rows: int = 64,
        tokens: int | None = None,
    ) -> None:
        """`cache` bytes for all that texts remember; `rows` texts run at once. So many `tokens` of
        prompts are read in a step, at most: who speaks need not wait for one who reads."""
        self.model, self.tokenizer, self.news = model, tokenizer, news
        self.jobs: deque[tuple[RequestHandle, Callable[[Model, Tokenizer], Any]]] = deque()
        self.counts = dict.fromkeys(
            ("steps", "prompt_tokens", "said_tokens", "finished", "cancelled", "failed"), 0
        )
        self.counts["refused"] = 0
        self.pending: LaunchedStep | None = None
        self.says: Any = model
        """The model, where it says words."""
        self.runner: PagedRunner | StatefulRunner | None = None
        self.taking: Admission | None = None
        if not isinstance(model, GPT | Transformer | RNN):
            return

        paged = isinstance(model, Transformer) or (
            isinstance(model, GPT) and not model.config.memory
        )
        self.runner = (
            PagedRunner(model, cache, rows) if paged else StatefulRunner(model, cache, rows)  # type: ignore[arg-type]
        )
        gpu = self.runner.device.type == "cuda"
        self.scheduler = Scheduler(
            BlockAllocator(range(1, self.runner.blocks)),
            rows,
            tokens or (8192 if gpu else 512),
            part=self.runner.part,
            shares=paged and isinstance(model, GPT),
            states=None if isinstance(self.runner, PagedRunner) else self.runner.states,
            settle=self.settle,
        )

        self.taking = Admission(model, tokenizer, self.runner, self.scheduler)
        self.ahead = gpu and paged
        self.short_chunk = min(FIRST_CHUNK, self.scheduler.tokens)
        """Tokens of prompts in a short step."""
        self.fixed_cost = 0.0
        """Seconds of the last step that read no prompt."""

    # What is asked

    def check(self, ask: GenerationRequest) -> None:
        """Whether it can ever be answered; the event loop's thread asks, too."""
        if self.taking is None:
            raise RequestRefused(
                400, f"model: a {type(self.model).__name__} says no words; ask what it can do"
            )

        self.taking.check(ask)

    def take(self, ticket: RequestHandle) -> None:
        """A request joins the queue; it is refused when it can never be answered."""
        assert isinstance(ticket.ask, GenerationRequest)
        self.check(ticket.ask)
        assert self.taking is not None
        self.scheduler.waiting += self.taking.texts(ticket)

    @property
    def waiting(self) -> int:
        """Requests that nobody has begun with."""
        texts = (
            [] if self.runner is None else list(self.scheduler.waiting)
        )  # other threads ask while it changes
        return len(self.jobs) + sum(text.first is None for text in texts)

    # A step

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        if self.runner is None:
            return bool(self.jobs)

        return bool(self.jobs or self.scheduler.running or self.scheduler.waiting or self.pending)

    def step(self, *, short: bool = False) -> bool:
        """Whether there was anything to do. While other models wait, a step is to be `short`: it
        reads no more tokens of prompts than take some `SHORT_STEP` seconds, and does not run ahead:
        its seconds are all that it took."""
        worked = self.do_a_job()
        if self.runner is None:
            return worked

        self.let_go()
        if short:
            self.settle()

        begin = time.monotonic()
        batch = self.scheduler.schedule(self.short_chunk if short else None)
        if not batch:
            return self.settle() or worked

        self.counts["steps"] += 1
        outcome = self.try_run(batch)
        self.settle()  # words of the step before, while this one is under way
        self.pending = outcome
        if short or not self.ahead or any(text.search is not None for text in batch.texts):
            self.settle()

        if short or not self.ahead:  # else these are seconds of the step before
            self.measure(sum(count for _, count in batch.reading), time.monotonic() - begin)

        return True

    def measure(self, read: int, seconds: float) -> None:
        """How many tokens of prompts fit into a short step, by what the last step took that read
        some, less the fixed cost of a step: fewer tokens do not make that smaller."""
        if not read:
            self.fixed_cost = seconds
        elif seconds > 0:
            reading = max(seconds - self.fixed_cost, LEAST_PART * seconds)
            self.short_chunk = max(
                LEAST_CHUNK, int(min(read * SHORT_STEP / reading, self.scheduler.tokens))
            )

    def do_a_job(self) -> bool:
        if not self.jobs:
            return False

        ticket, work = self.jobs.popleft()
        if ticket.gone:
            return True

        self.settle()

        try:
            self.news(ticket, JobResult(work(self.model, self.tokenizer)))
        except BaseException as error:
            self.news(ticket, ordinary(error))

        return True

    def try_run(self, batch: ScheduledStep) -> LaunchedStep | None:
        """Should the step fail, everyone runs alone, and only those fail that do so then, too."""
        before = [(text, text.read, text.state) for text in batch.texts]
        try:
            return self.run(batch)
        except BaseException as failure:
            error = ordinary(failure)
            if len({text.ticket.number for text in batch.texts}) == 1:
                self.fail(batch.texts[0], error)
                return None

        for text, read, state in before:  # as if it had never been tried
            text.read, text.state = read, state

        self.settle()

        for one in batch.alone():
            self.pending = self.try_run(one) if not one.texts[0].ended else None
            self.settle()

        return None

    @torch.inference_mode()
    def run(self, batch: ScheduledStep) -> LaunchedStep:
        assert self.runner is not None
        words = self.runner.say(batch)
        if words is not None:
            for text in batch.speaking:
                text.read += 1
                text.drawn += 1

            return self.sent(batch.speaking, words, {})

        aloud = [text for text, _ in batch.reading if text.ask.prompt_top is not None]
        logits = score_prompt(self, batch) if aloud else self.runner.run(batch)
        done = [text for text, count in batch.reading if text.read + count == text.positions]
        texts = batch.speaking + done

        for text, count in [(text, 1) for text in batch.speaking] + batch.reading:
            text.read += count
            self.counts["prompt_tokens"] += 0 if text.speaks else count

        for text in done:
            self.scheduler.know(text)

        if any(text.search is not None for text in texts):
            logits, texts = advance(self, logits, texts)

        drawing = [(row, text) for row, text in enumerate(texts) if text.ask.length]
        if len(drawing) < len(texts):
            logits = logits[
                torch.tensor([row for row, _ in drawing], dtype=torch.int64, device=logits.device)
            ]

        for text in texts:
            if not text.ask.length:
                self.end(text, text.piece("length"))

        texts, words, tops = self.choose(logits, [text for _, text in drawing])
        if texts:
            self.runner.hear(texts, words)

        for row, text in enumerate(texts):
            if text.heard is not None:
                text.heard.add(words[row : row + 1])

            text.drawn += 1
            text.speaks = True

        return self.sent(texts, words, tops)

    def choose(
        self, logits: Float[Tensor, "M V"], texts: list[ServingSequence]
    ) -> tuple[list[ServingSequence], Int[Tensor, "N"], dict[int, Top]]:
        """A word of each; should that fail, everyone chooses alone."""
        try:
            return texts, *words_of(logits, texts)
        except BaseException as failure:
            error = ordinary(failure)
            if len(texts) == 1:
                self.fail(texts[0], error)
                return [], torch.empty(0, dtype=torch.int64, device=logits.device), {}

        each = [self.choose(logits[row : row + 1], [text]) for row, text in enumerate(texts)]
        left = [one for one in each if one[0]]
        words = torch.cat([one[1] for one in each])

        return (
            [one[0][0] for one in left],
            words,
            {at: one[2][0] for at, one in enumerate(left) if one[2]},
        )

    def sent(
        self, texts: list[ServingSequence], words: Int[Tensor, "M"], tops: dict[int, Top]
    ) -> LaunchedStep:
        """The words on their way to the host."""
        if not words.is_cuda:
            return LaunchedStep(texts, words, tops, None)

        host = torch.empty(words.shape, dtype=words.dtype, pin_memory=True)
        host.copy_(words, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()

        return LaunchedStep(texts, host, tops, arrived)

    # What was said

    def settle(self) -> bool:
        """Read the words of the last step, if nobody has yet."""
        outcome, self.pending = self.pending, None
        if outcome is None:
            return False

        if outcome.arrived is not None:
            outcome.arrived.synchronize()

        tops, heard = outcome.tops, 0

        for row, (text, word) in enumerate(zip(outcome.texts, outcome.words.tolist(), strict=True)):
            if text.ended:
                continue  # it ended a step ago, or nobody waits for it

            try:
                reason = text.hear(
                    word, tops[row].said(word) if row in tops else TokenLogprob(word, None, [])
                )
                heard += reason != "end"
                if reason is not None:
                    self.end(text, text.piece(reason))
                elif text.ask.stream and text.ticket.may_hear(text.ask.samples):
                    text.ticket.unread += 1
                    self.news(text.ticket, text.piece(None))
            except BaseException as error:
                self.fail(text, ordinary(error))

        self.counts["said_tokens"] += heard

        return True

    def end(self, text: ServingSequence, piece: OutputChunk) -> None:
        text.ended = True
        self.scheduler.leave(text)
        self.counts["finished"] += 1
        self.news(text.ticket, piece)

    def fail(self, text: ServingSequence, error: Exception) -> None:
        """All that a client hears of a fault of ours is that there was one."""
        if not isinstance(error, RequestRefused):
            log_unforeseen(error)
            error = (
                error
                if isinstance(error, RuntimeError)
                else RuntimeError(f"model: {type(error).__name__}")
            )

        self.counts["failed"] += 1
        self.drop(text.ticket)
        self.news(text.ticket, error)

    def drop(self, ticket: RequestHandle) -> None:
        """All texts of a request leave."""
        scheduler = self.scheduler
        for text in [
            text for text in (*scheduler.running, *scheduler.waiting) if text.ticket is ticket
        ]:
            text.ended = True
            scheduler.leave(text)

        scheduler.waiting = deque(text for text in scheduler.waiting if text.ticket is not ticket)

    def catch_up(self, *, others: bool) -> bool:
        """What must not wait for this model's next step: deadlines, cancellations and, while
        `others` wait for the thread, the tokens of a step that ran ahead. Whether there were any of
        these."""
        self.let_go()
        return others and self.settle()

    def let_go(self) -> None:
        """Of those whose client is gone, and those whose time is over; also between two steps, with
        one `pending`.
        """
        if self.runner is None:
            return

        texts, now = [*self.scheduler.running, *self.scheduler.waiting], time.monotonic()

        for ticket in {
            text.ticket.number: text.ticket for text in texts if text.ticket.gone
        }.values():
            self.counts["cancelled"] += 1
            self.drop(ticket)

        late = [text for text in texts if (text.ask.deadline or now) < now and not text.ended]
        if late:
            self.settle()

        for text in late:
            if not text.ended:
                self.end_late(text)

    def end_late(self, text: ServingSequence) -> None:
        if text.search is not None:  # its beams are no texts that anyone has chosen
            self.fail(text, RequestRefused(408, "timeout: the time was over before the search was"))
        else:
            if text in self.scheduler.waiting:
                self.scheduler.waiting.remove(text)

            self.end(text, text.piece("deadline"))

    def tickets(self) -> list[RequestHandle]:
        """All that wait for an answer."""
        texts = [] if self.runner is None else [*self.scheduler.running, *self.scheduler.waiting]
        return list(
            {
                each.number: each
                for each in [*(text.ticket for text in texts), *(job for job, _ in self.jobs)]
            }.values()
        )

    # What is measured

    def numbers(self) -> dict[str, float]:
        found: dict[str, float] = {**self.counts, "waiting": self.waiting, "running": 0}
        if self.runner is not None:
            blocks = self.scheduler.blocks
            found |= {
                "running": len(self.scheduler.running),
                "blocks_total": blocks.total,
                "blocks_used": blocks.used,
            }
            found |= {
                "preempted": self.scheduler.preempted,
                "shared_tokens": self.scheduler.shared_tokens,
            }
            found["cache_bytes"] = self.runner.nbytes

        return found
