"""Attention and Transformers: learn it, train it, look inside it, serve it, with the same model object."""

from typing import TYPE_CHECKING, Any

from qkv.artifact import load, save
from qkv.version import __version__

if TYPE_CHECKING:
    from qkv.insight.look import look

__all__ = ["__version__", "load", "look", "save"]


def __getattr__(name: str) -> Any:
    if name == "look":  # what draws is read only when something is drawn
        from qkv.insight.look import look

        return look
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
