"""An engine without a thread: a test runs every step itself and sees the output after each."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from qkv.models.model import Model
from qkv.serving.engine.engine import Engine
from qkv.serving.engine.generation_request import GenerationRequest, OutputChunk, RequestHandle
from qkv.text import Tokenizer, train
from support.sentences import SENTENCES

WORDS = train("words", SENTENCES, 80)


class Steps:
    """`request` joins the queue, `step` runs a step, `finish` goes on until all work is done."""

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer = WORDS,
        *,
        cache: int = 1 << 30,
        rows: int = 64,
        tokens: int | None = None,
    ) -> None:
        self.updates: dict[int, list[Any]] = defaultdict(list)
        self.engine = Engine(model, tokenizer, self.emit, cache=cache, rows=rows, tokens=tokens)

    def emit(self, handle: RequestHandle, update: Any) -> None:
        self.updates[handle.id].append(update)

    def request(self, prompt: list[int], max_tokens: int = 8, **fields: Any) -> RequestHandle:
        request = GenerationRequest(prompt=prompt, max_tokens=max_tokens, **fields)
        self.engine.check(request)
        handle = RequestHandle(request)
        self.engine.add_request(handle)
        return handle

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.engine.step()

    def finish(self) -> None:
        while self.engine.step():
            assert self.engine.scheduler.blocks.used <= self.engine.scheduler.blocks.total

    def ids(self, handle: RequestHandle) -> list[list[int]]:
        """The generated ids of each sample of a request."""
        generated: dict[int, list[int]] = defaultdict(list)
        for chunk in self.chunks(handle):
            generated[chunk.sample] += [token.id for token in chunk.tokens]
        return [generated[sample] for sample in range(max(generated, default=-1) + 1)]

    def chunks(self, handle: RequestHandle) -> list[OutputChunk]:
        """All chunks of a request; raises the error that it ended with."""
        for update in self.updates[handle.id]:
            if isinstance(update, Exception):
                raise update
        return self.updates[handle.id]

    @property
    def used(self) -> int:
        return self.engine.scheduler.blocks.used
