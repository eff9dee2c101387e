"""Fixtures of the tests that run a command."""

from support.command_fixtures import models, qkv

__all__ = ["models", "qkv"]
