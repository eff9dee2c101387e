"""Fixtures of the training tests."""

from support.training_fixtures import cache, stop_after

__all__ = ["cache", "stop_after"]
