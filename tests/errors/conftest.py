"""Fixtures of the error tables: a host with small models, and its server."""

from support.serving_fixtures import host, models, server

__all__ = ["host", "models", "server"]
