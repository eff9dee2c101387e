"""What is written down of an error that nobody foresaw."""

from __future__ import annotations

import logging
import traceback

log = logging.getLogger("qkv.serving")


def log_unforeseen(error: BaseException) -> None:
    """Where it happened, and of what kind it is. Its words stay out of the log: a prompt may be
    among them.
    """
    log.error("%s at %s", type(error).__name__, where(error))


def where(error: BaseException) -> str:
    """The innermost eight frames, the last call first."""
    frames = traceback.extract_tb(error.__traceback__)[-8:]
    return " < ".join(
        f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in reversed(frames)
    )


def ordinary(error: BaseException) -> Exception:
    """An error of one request's work that `except Exception` catches: neither a Rust panic nor a
    sys.exit() in a model's code may end the thread that others need."""
    if isinstance(error, KeyboardInterrupt):
        raise error
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error

    made = RuntimeError(f"model: {type(error).__name__}")

    return made.with_traceback(error.__traceback__)
