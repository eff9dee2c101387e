"""Fixtures of the command tests."""

from support.command_fixtures import models, qkv

__all__ = ["models", "qkv"]
