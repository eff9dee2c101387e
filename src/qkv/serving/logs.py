"""What is written down of an error that nobody foresaw."""

from __future__ import annotations

import logging
import traceback

log = logging.getLogger("qkv.serving")


def log_unforeseen(error: BaseException) -> None:
    """Where it happened, and of what kind it is. Its words stay out of the log: a prompt may be among them."""
    frames = traceback.extract_tb(error.__traceback__)[-8:]
    where = " < ".join(f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in reversed(frames))
    log.error("%s at %s", type(error).__name__, where)
