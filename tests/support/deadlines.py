"""Deadlines for tests that need some tokens before the deadline."""

from __future__ import annotations

DEADLINES = (0.4, 1.6, 6.4, 25.6, 102.4)
"""Seconds; a test takes the first that is long enough for a token, however slow the machine."""
