"""How qkv's annotations are checked in tests: as a type checker reads them, an int is also a float."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from beartype import BeartypeConf, beartype
from jaxtyping import config

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))


@contextmanager
def unchecked() -> Iterator[None]:
    """qkv as its users run it. Checks take half of a small model's time: a slow reference can do
    without them, and so can what a test only prepares."""
    before = config.jaxtyping_disable
    config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        config.update("jaxtyping_disable", before)
