"""Fixtures of the GPU tests: prepared data goes to a folder of the test."""

from support.training_fixtures import cache

__all__ = ["cache"]
