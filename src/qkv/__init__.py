"""Attention and Transformers: learn it, train it, look inside it, serve it, with the same model object."""

from typing import TYPE_CHECKING

from qkv.version import __version__

if TYPE_CHECKING:
    from qkv.artifact import load, save
    from qkv.insight.look import look
else:
    from qkv.lazy import attach

    attach(
        __name__,
        {"qkv.artifact": ("load", "save"), "qkv.insight.look": ("look",)},
        submodules=("artifact", "data", "evaluation", "generation", "insight", "models", "nn", "text", "training"),
    )

__all__ = ["__version__", "load", "look", "save"]
