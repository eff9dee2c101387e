"""Threads of a server that a test holds until it releases them."""

from __future__ import annotations

import threading
from typing import Any

from qkv.serving.model_host import ModelHost
from support.waiting import PATIENCE


class HeldEngine:
    """Blocks the engine's thread before its next step until it is released."""

    def __init__(self, host: ModelHost) -> None:
        self.reached, self.free = threading.Event(), threading.Event()
        step = host.run_step

        def held() -> bool:
            self.reached.set()
            assert self.free.wait(PATIENCE)
            return step()

        host.run_step = held  # type: ignore[method-assign]
        assert self.reached.wait(PATIENCE)


class HeldJob:
    """A job that blocks the thread of jobs until it is released."""

    def __init__(self) -> None:
        self.reached, self.free = threading.Event(), threading.Event()

    def __call__(self, model: Any, tokenizer: Any) -> None:
        self.reached.set()
        assert self.free.wait(PATIENCE)
