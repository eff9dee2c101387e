"""Fixtures of the error tables: a host with small models, and a server before it."""

from support.serving_fixtures import host, models, server

__all__ = ["host", "models", "server"]
