"""Log entries for unexpected errors: the type and the stack frames, never the message."""

from __future__ import annotations

import logging
import traceback

log = logging.getLogger("qkv.serving")
MAX_FRAMES = 8


def log_unexpected(error: BaseException) -> None:
    """Log the type of an error and where it was raised; its message may contain a prompt."""
    log.error("%s at %s", type(error).__name__, stack_of(error))


def stack_of(error: BaseException) -> str:
    """The innermost frames as file:line, the last call first."""
    frames = traceback.extract_tb(error.__traceback__)[-MAX_FRAMES:]
    return " < ".join(
        f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in reversed(frames)
    )


def as_exception(error: BaseException) -> Exception:
    """The error itself, or a RuntimeError in place of one that `except Exception` does not catch.

    A Rust panic or a sys.exit() in the code of one model must not end a thread that others need.
    """
    if isinstance(error, KeyboardInterrupt):
        raise error
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error

    replacement = RuntimeError(f"model: {type(error).__name__}")

    return replacement.with_traceback(error.__traceback__)
