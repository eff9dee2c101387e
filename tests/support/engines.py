"""An engine without a thread: a test makes every step itself, and sees what was said after each."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from qkv.models.registry import Model
from qkv.serving.engine.engine import Engine
from qkv.serving.engine.generation_request import GenerationRequest, OutputChunk, RequestHandle
from qkv.text import Tokenizer, train
from support.sentences import SENTENCES

WORDS = train("words", SENTENCES, 80)


class Steps:
    """`ask` joins the queue, `step` makes a step, `finish` goes on until nothing is left to do."""

    def __init__(self, model: Model, tokenizer: Tokenizer = WORDS, **how: Any) -> None:
        self.told: dict[int, list[Any]] = defaultdict(list)
        self.engine = Engine(
            model, tokenizer, lambda ticket, news: self.told[ticket.number].append(news), **how
        )

    def ask(self, prompt: list[int], length: int = 8, **how: Any) -> RequestHandle:
        ticket = RequestHandle(GenerationRequest(prompt=prompt, length=length, **how))
        self.engine.take(ticket)
        return ticket

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.engine.step()

    def finish(self) -> None:
        while self.engine.step():
            assert self.engine.scheduler.blocks.used <= self.engine.scheduler.blocks.total

    def ids(self, ticket: RequestHandle) -> list[list[int]]:
        """What each text of a request said."""
        said: dict[int, list[int]] = defaultdict(list)
        for piece in self.pieces(ticket):
            said[piece.row] += [each.id for each in piece.said]
        return [said[row] for row in range(max(said, default=-1) + 1)]

    def pieces(self, ticket: RequestHandle) -> list[OutputChunk]:
        for news in self.told[ticket.number]:
            if isinstance(news, Exception):
                raise news
        return self.told[ticket.number]

    @property
    def used(self) -> int:
        return self.engine.scheduler.blocks.used
