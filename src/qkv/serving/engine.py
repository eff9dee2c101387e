"""The engine of one model: schedule, run, postprocess. One step is one word of every text that speaks.

Requests join and leave between any two steps. On a GPU the next step is under way before the words of the last one are
read: they stay on the device, where the next step finds them.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkv.generation.decode import limit_of
from qkv.generation.sample import row_seeds
from qkv.models import GPT, RNN, Transformer
from qkv.models.build import Model
from qkv.serving.alone import Alone
from qkv.serving.blocks import BLOCK, Blocks
from qkv.serving.choosing import Top, read_aloud, words_of
from qkv.serving.paged import Paged
from qkv.serving.request import Ask, Piece, Reason, Refused, Result, Said, Ticket
from qkv.serving.scheduler import Batch, Scheduler, blocks_for
from qkv.serving.texts import Search, Text
from qkv.text.tokenizer import Tokenizer

log = logging.getLogger("qkv.serving")
News = Callable[[Ticket, Piece | Result | Exception], None]
LOGITS = 128  # places of a prompt whose logits are made at a time, when all of them are asked for


class Outcome(NamedTuple):
    """A step that was launched."""

    texts: list[Text]
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
        queue: int = 256,
        tokens: int | None = None,
    ) -> None:
        """`cache` bytes for all that texts remember; `rows` texts run at once, `queue` requests wait. So many `tokens`
        of prompts are read in a step, at most: who speaks need not wait for one who reads."""
        self.model, self.tokenizer, self.news, self.queue = model, tokenizer, news, queue
        self.jobs: deque[tuple[Ticket, Callable[[Model, Tokenizer], Any]]] = deque()
        self.counts = dict.fromkeys(("steps", "prompt_tokens", "said_tokens", "finished", "cancelled", "failed"), 0)
        self.counts |= {"preempted": 0, "shared_tokens": 0, "refused": 0}
        self.pending: Outcome | None = None
        self.says: Any = model
        """The model, where it says words."""
        self.runner: Paged | Alone | None = None
        if not isinstance(model, GPT | Transformer | RNN):
            return
        paged = isinstance(model, Transformer) or (isinstance(model, GPT) and not model.config.memory)
        self.runner = Paged(model, cache, rows) if paged else Alone(model, cache, rows)  # type: ignore[arg-type]
        gpu = self.runner.device.type == "cuda"
        self.scheduler = Scheduler(
            Blocks(range(1, self.runner.blocks)),
            rows,
            (tokens or (8192 if gpu else 512)) if paged else 1 << 40,
            shares=paged and isinstance(model, GPT),
            states=None if isinstance(self.runner, Paged) else self.runner.states,
            settle=self.settle,
        )
        self.limit = limit_of(model, "refuse") if isinstance(model, GPT) else getattr(model.config, "context", None)
        self.ahead = gpu and paged

    # What is asked

    def take(self, ticket: Ticket) -> None:
        """A request joins the queue; it is refused when it can never be answered."""
        ask = ticket.ask
        assert isinstance(ask, Ask)
        self.check(ask)
        translator = not isinstance(self.model, GPT)
        source = list(ask.prompt) if translator else None
        seeds = row_seeds(ask.seed, ask.samples)
        texts: list[Text] = []
        for row in range(1 if ask.beams > 1 else ask.samples):
            ids = [self.start] if translator else list(ask.prompt)
            first = texts[0] if texts else None
            how: dict[str, Any] = {"seed": seeds[row], "limit": self.limit, "source": source, "first": first}
            texts.append(Text(ticket, row, ids, self.tokenizer, **how))
        if ask.beams > 1:
            length = ask.length if self.limit is None else min(ask.length, self.limit - len(texts[0].ids) + 1)
            texts[0].search = Search(ask, ask.ends[0], length)
        self.check_room(texts[0])
        self.scheduler.waiting += texts

    @property
    def start(self) -> int:
        if self.tokenizer.start is None:
            raise Refused(400, "model: its tokenizer has no start token, so it cannot begin a translation")
        return self.tokenizer.start

    def check(self, ask: Ask) -> None:
        if self.runner is None:
            raise Refused(400, f"model: a {type(self.model).__name__} says no words; ask what it can do")
        config: Any = self.model.config
        vocabulary = getattr(config, "source_vocabulary", None) or config.vocabulary
        if not ask.prompt:
            raise ValueError("prompt: expected one token or more")
        if min(ask.prompt) < 0 or max(ask.prompt) >= vocabulary:
            raise ValueError(f"prompt: expected ids from 0 to {vocabulary - 1}")
        if ask.length < (1 if ask.beams > 1 else 0):
            raise ValueError(f"max_tokens: expected 1 or more, not {ask.length}")
        if self.limit is not None and len(ask.prompt) > self.limit:
            raise ValueError(
                f"prompt: {len(ask.prompt):,} tokens are more than the model's context of {self.limit:,}; shorten it"
            )
        if ask.beams > 1 and (len(ask.ends) != 1 or ask.stop or ask.off or ask.prompt_top is not None):
            raise ValueError("beams: a search has one end, and neither stop strings nor heads that are off")
        ask.choice.check(config.vocabulary, ask.ends)
        if ask.off and not isinstance(self.runner, Paged):
            raise ValueError(
                f"heads_off: heads cannot be switched off in a {type(self.model).__name__} while it speaks"
            )
        for layer, head in ask.off:
            if not (0 <= layer < self.layers and 0 <= head < config.heads):
                raise ValueError(
                    f"heads_off: expected a layer of 0 to {self.layers - 1} and a head of 0 to {config.heads - 1}, "
                    f"not {layer}.{head}"
                )

    @property
    def layers(self) -> int:
        return self.runner.depth if isinstance(self.runner, Paged) else self.model.config.depth

    def check_room(self, text: Text) -> None:
        """Whether it fits into the cache when it is alone there; and whether so many beams can ever run."""
        scheduler, beams = self.scheduler, 1 if text.search is None else text.search.rule.beams
        if beams > scheduler.rows:
            raise ValueError(f"beams: expected at most {scheduler.rows}, as many as may run at once, not {beams}")
        if scheduler.states is not None:
            needed = scheduler.states(text) * beams
        else:
            longest = text.prompt + text.ask.length if text.limit is None else text.limit
            source = blocks_for(len(text.source or ()))
            needed = blocks_for(min(text.prompt + text.ask.length, longest)) * beams + source
        if needed > scheduler.blocks.total:
            raise ValueError(
                f"max_tokens: prompt and answer need {needed:,} blocks of the cache, and it has "
                f"{scheduler.blocks.total:,}; ask for fewer, or serve with a larger --cache"
            )

    @property
    def waiting(self) -> int:
        """Requests that nobody has begun with."""
        texts = [] if self.runner is None else self.scheduler.waiting
        return len(self.jobs) + sum(text.first is None for text in texts)

    # A step

    def step(self) -> bool:
        """Whether there was anything to do."""
        worked = self.do_a_job()
        if self.runner is None:
            return worked
        self.let_go()
        batch = self.scheduler.schedule()
        if not batch:
            return self.settle() or worked
        self.counts["steps"] += 1
        outcome = self.try_run(batch)
        self.settle()  # words of the step before, while this one is under way
        self.pending = outcome
        if not self.ahead or any(text.search is not None for text in batch.texts):
            self.settle()
        return True

    def do_a_job(self) -> bool:
        if not self.jobs:
            return False
        ticket, work = self.jobs.popleft()
        if ticket.gone:
            return True
        self.settle()
        try:
            self.news(ticket, Result(work(self.model, self.tokenizer)))
        except Exception as error:
            self.news(ticket, error)
        return True

    def try_run(self, batch: Batch) -> Outcome | None:
        """Should the step fail, everyone runs alone, and only those fail that do so then, too."""
        try:
            return self.run(batch)
        except Exception as error:
            if len(batch.texts) == 1:
                log.exception("a request failed")
                self.fail(batch.texts[0], error)
                return None
        self.settle()
        for one in batch.alone():
            self.pending = self.try_run(one) if not one.texts[0].ended else None
            self.settle()
        return None

    @torch.inference_mode()
    def run(self, batch: Batch) -> Outcome:
        assert self.runner is not None
        words = self.runner.say(batch)
        if words is not None:
            for text in batch.speaking:
                text.read += 1
                text.drawn += 1
            return self.sent(batch.speaking, words, {})
        aloud = [text for text, _ in batch.reading if text.ask.prompt_top is not None]
        logits = self.read_aloud(batch) if aloud else self.runner.run(batch)
        done = [text for text, count in batch.reading if text.read + count == text.positions]
        texts = batch.speaking + done
        for text, count in [(text, 1) for text in batch.speaking] + batch.reading:
            text.read += count
            self.counts["prompt_tokens"] += 0 if text.speaks else count
        for text in done:
            self.scheduler.know(text)
        if any(text.search is not None for text in texts):
            logits, texts = self.advance(logits, texts)
        drawing = [(row, text) for row, text in enumerate(texts) if text.ask.length]
        if len(drawing) < len(texts):
            logits = logits[torch.tensor([row for row, _ in drawing], dtype=torch.int64, device=logits.device)]
        for text in texts:
            if not text.ask.length:
                self.end(text, text.piece("length"))
        texts, words, tops = self.choose(logits, [text for _, text in drawing])
        if texts:
            self.runner.hear(texts, words)
        for text in texts:
            text.drawn += 1
            text.speaks = True
        return self.sent(texts, words, tops)

    def choose(
        self, logits: Float[Tensor, "M V"], texts: list[Text]
    ) -> tuple[list[Text], Int[Tensor, "M"], dict[int, Top]]:
        """A word of each; should that fail, everyone chooses alone."""
        try:
            return texts, *words_of(logits, texts)
        except Exception as error:
            if len(texts) == 1:
                log.exception("a request failed")
                self.fail(texts[0], error)
                return [], torch.empty(0, dtype=torch.int64, device=logits.device), {}
        each = [self.choose(logits[row : row + 1], [text]) for row, text in enumerate(texts)]
        left = [one for one in each if one[0]]
        words = torch.cat([one[1] for one in each])
        return [one[0][0] for one in left], words, {at: one[2][0] for at, one in enumerate(left) if one[2]}

    def sent(self, texts: list[Text], words: Int[Tensor, "M"], tops: dict[int, Top]) -> Outcome:
        """The words on their way to the host."""
        if not words.is_cuda:
            return Outcome(texts, words, tops, None)
        host = torch.empty(words.shape, dtype=words.dtype, pin_memory=True)
        host.copy_(words, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        return Outcome(texts, host, tops, arrived)

    def read_aloud(self, batch: Batch) -> Float[Tensor, "M V"]:
        """With what was likely at every place of some prompts."""
        assert self.runner is not None
        hidden = self.runner.hidden(batch)
        begin, last = len(batch.speaking), list(range(len(batch.speaking)))
        for text, count in batch.reading:
            if text.ask.prompt_top is not None and text.row == 0:
                if text.read == 0:
                    text.fresh.append(Said(text.ids[0], None, []))
                for first in range(0, count, LOGITS):
                    after = text.ids[text.read + first + 1 : text.read + min(first + LOGITS, count) + 1]
                    logits = self.says.logits(hidden[begin + first : begin + first + len(after)])
                    text.fresh += read_aloud(logits, after, text.ask.prompt_top) if after else []
            begin += count
            if text.read + count == text.positions:
                last.append(begin - 1)
                if text.fresh:
                    self.news(text.ticket, text.piece(None))
        return self.says.logits(hidden[torch.tensor(last, dtype=torch.int64, device=hidden.device)])

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
                reason = text.hear(word, tops[row].said(word) if row in tops else Said(word, None, []))
                heard += reason != "end"
                if reason is not None:
                    self.end(text, text.piece(reason))
                elif text.ask.stream:
                    self.news(text.ticket, text.piece(None))
            except Exception as error:
                self.fail(text, error)
        self.counts["said_tokens"] += heard
        return True

    def end(self, text: Text, piece: Piece) -> None:
        text.ended = True
        self.scheduler.leave(text)
        self.counts["finished"] += 1
        self.news(text.ticket, piece)

    def fail(self, text: Text, error: Exception) -> None:
        self.counts["failed"] += 1
        self.drop(text.ticket)
        self.news(text.ticket, error)

    def drop(self, ticket: Ticket) -> None:
        """All texts of a request leave."""
        scheduler = self.scheduler
        for text in [text for text in (*scheduler.running, *scheduler.waiting) if text.ticket is ticket]:
            text.ended = True
            scheduler.leave(text)
        scheduler.waiting = deque(text for text in scheduler.waiting if text.ticket is not ticket)

    def let_go(self) -> None:
        """Of those whose client is gone, and those whose time is over."""
        texts, now = [*self.scheduler.running, *self.scheduler.waiting], time.monotonic()
        for ticket in {text.ticket.number: text.ticket for text in texts if text.ticket.gone}.values():
            self.counts["cancelled"] += 1
            self.drop(ticket)
        late = [text for text in texts if (text.ask.deadline or now) < now and not text.ended]
        if late:
            self.settle()
        for text in late:
            if not text.ended:
                self.end_late(text)

    def end_late(self, text: Text) -> None:
        if text.search is not None:  # its beams are no texts that anyone has chosen
            self.fail(text, Refused(408, "timeout: the time was over before the search was"))
        else:
            if text in self.scheduler.waiting:
                self.scheduler.waiting.remove(text)
            self.end(text, text.piece("deadline"))

    # Beam search

    def advance(self, logits: Float[Tensor, "M V"], texts: list[Text]) -> tuple[Float[Tensor, "L V"], list[Text]]:
        """Searches choose which beams go on with which word; of the others, what they could say is left."""
        assert self.runner is not None
        rest = [row for row, text in enumerate(texts) if text.search is None]
        for search in {id(text.search): text.search for text in texts if text.search is not None}.values():
            rows = [texts.index(beam) for beam in search.beams]
            try:
                self.go_on(search, search.advance(logits[torch.tensor(rows, device=logits.device)]))
            except Exception as error:
                self.fail(search.beams[0], error)
        return logits[torch.tensor(rest, dtype=torch.int64, device=logits.device)], [texts[row] for row in rest]

    def go_on(self, search: Search, chosen: Sequence[tuple[int, int]]) -> None:
        assert self.runner is not None
        if not chosen:
            self.found(search)
            return
        old = search.beams
        goes_on = {beam for beam, _ in chosen}
        for number, beam in enumerate(old):
            if number not in goes_on:
                self.scheduler.prune(beam, search)
        first: set[int] = set()
        beams: list[Text] = []
        for number, _ in chosen:
            beam = old[number]
            if number in first:
                twin, copied = self.scheduler.branch(beam, search)
                self.runner.branch(beam, twin, copied)
                beam = twin
            first.add(number)
            beams.append(beam)
        search.beams = beams
        for beam, (_, word) in zip(beams, chosen, strict=True):
            beam.ids.append(word)
            beam.drawn, beam.speaks = beam.drawn + 1, True
        self.runner.hear(beams, torch.tensor([word for _, word in chosen], device=self.runner.device))

    def found(self, search: Search) -> None:
        """The best are told, each as a text of its own."""
        ticket, best = search.beams[0].ticket, search.sentence.best()
        self.drop(ticket)
        self.counts["finished"] += 1
        for row in range(ticket.ask.samples):  # type: ignore[union-attr]
            if row >= len(best):
                self.news(ticket, Piece(row, "", [], "end", float("-inf")))
                continue
            ids, score, _ = best[row]
            said = [Said(id, None, []) for id in ids]
            reason: Reason = "length" if len(ids) >= search.length else "end"
            self.news(ticket, Piece(row, self.tokenizer.decode(ids), said, reason, score))
            self.counts["said_tokens"] += len(ids)

    # What is measured

    def numbers(self) -> dict[str, float]:
        found: dict[str, float] = {**self.counts, "waiting": self.waiting, "running": 0}
        if self.runner is not None:
            blocks = self.scheduler.blocks
            found |= {"running": len(self.scheduler.running), "blocks_total": blocks.total, "blocks_used": blocks.used}
            pages = self.runner.pages
            found["cache_bytes"] = self.runner.blocks * 16384 if pages is None else pages.nbytes
            found["block_places"] = BLOCK
        return found
