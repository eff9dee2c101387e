"""Garbage collection of a server: its pauses delay every stream."""

from __future__ import annotations

import gc


def freeze_loaded() -> None:
    """Exclude all that is loaded from garbage collections, which would traverse it.

    Collections stay as frequent as Python makes them: cycles can hold large tensors.
    """
    gc.collect()
    gc.freeze()
