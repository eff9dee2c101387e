"""Turn panics of the Rust library `tokenizers` into ordinary exceptions.

PyO3 raises a Rust panic as `PanicException`, which derives from BaseException: `except Exception`
does not catch it, and it would end the thread in which it happens.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class TokenizerPanic(RuntimeError):
    """The library `tokenizers` panicked on this input; other calls are not affected."""


def panics_as_errors(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that it raises TokenizerPanic instead of PanicException."""

    @wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # PyO3 does not export the class
                raise

            reason = " ".join(str(error).split())
            raise TokenizerPanic(
                f"tokenizer: the library `tokenizers` panicked on this input ({reason}); "
                "check the rules in the tokenizer's files"
            ) from None

    return guarded
