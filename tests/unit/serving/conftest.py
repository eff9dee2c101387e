"""Fixtures of the serving tests."""

from support.serving_fixtures import host, models, server

__all__ = ["host", "models", "server"]
