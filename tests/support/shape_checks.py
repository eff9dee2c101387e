"""Run-time checks of qkv's annotations in tests; an int is also a float, as for type checkers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from beartype import BeartypeConf, beartype
from jaxtyping import config

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))


@contextmanager
def unchecked() -> Iterator[None]:
    """qkv without the checks, as its users run it.

    The checks take half of a small model's time: slow references and preparations go without.
    """
    before = config.jaxtyping_disable
    config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        config.update("jaxtyping_disable", before)
