"""Threads of a server that a test holds until it releases them."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest

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


class Gate:
    """Lets the engine run some steps of the model "long", and blocks the next until it opens."""

    def __init__(self, host: ModelHost, monkeypatch: pytest.MonkeyPatch, steps: int = 3) -> None:
        self.closed, self.open = threading.Event(), threading.Event()
        engine = host.entries["long"].engine
        assert engine is not None
        real, left = engine.run, itertools.count(steps, -1)

        def gated(batch: Any) -> Any:
            if next(left) <= 0:
                self.closed.set()
                assert self.open.wait(PATIENCE)
            return real(batch)

        monkeypatch.setattr(engine, "run", gated)


def empty(host: ModelHost) -> bool:
    """Whether the engine has no request of the model "long", nor one on its way to it."""
    if host.arrived or host.entering:
        return False

    metrics = host.entries["long"].metrics()
    return (metrics["running"], metrics["waiting"], metrics["blocks_used"]) == (0, 0, 0)
