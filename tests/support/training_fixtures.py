"""Prepared data goes where the test's own files are; and a run that is told to stop."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("QKV_CACHE", str(folder))
    return folder


@pytest.fixture
def stop_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """The signal to stop comes in a step."""
    from qkv.training import loop

    plainly = loop.gradients_of

    def arm(steps: int) -> None:
        left = steps

        def gradients_of(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                signal.raise_signal(signal.SIGTERM)
            return plainly(*args, **kwargs)

        monkeypatch.setattr("qkv.training.loop.gradients_of", gradients_of)

    return arm
