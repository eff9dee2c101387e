"""Fixtures for training: a cache folder of prepared data, and a signal to stop at a step."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that prepared data is cached in."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("QKV_CACHE", str(folder))
    return folder


@pytest.fixture
def stop_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Send SIGTERM in the n-th step from now; a negative number disarms it."""
    from qkv.training import loop

    original = loop.gradients_of

    def arm(steps: int) -> None:
        remaining = steps

        def gradients_of(*args: Any, **kwargs: Any) -> Any:
            nonlocal remaining
            remaining -= 1
            if remaining == 0:
                signal.raise_signal(signal.SIGTERM)

            return original(*args, **kwargs)

        monkeypatch.setattr("qkv.training.loop.gradients_of", gradients_of)

    return arm
