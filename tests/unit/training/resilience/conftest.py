"""Fixtures of the checkpoint tests."""

from support.small_checkpoints import checkpoints, messages

__all__ = ["checkpoints", "messages"]
