"""Tests wait for events, never for a time. The limit is only there so that a broken server ends the
test.
"""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 300.0
"""Seconds: long enough for a machine that is ten times slower, or busy with other things."""


def until(condition: Callable[[], object]) -> None:
    """Poll until the condition is true."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it never came to be so"
        time.sleep(0.005)
