"""Waiting for events instead of times; the limit only ends a test whose server is broken."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 300.0
"""Seconds: enough for a machine that is ten times slower, or busy with other work."""


def until(condition: Callable[[], object]) -> None:
    """Poll until the condition is true."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "the condition never became true"
        time.sleep(0.005)
