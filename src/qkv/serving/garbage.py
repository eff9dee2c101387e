"""Garbage collection of a server: its pauses delay every stream."""

from __future__ import annotations

import gc

THRESHOLDS = (20_000, 10, 10)
"""More objects than a batch of requests creates, most of which are gone before a collection."""


def freeze_loaded() -> None:
    """Exclude all that is loaded from garbage collections, which become rarer."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
