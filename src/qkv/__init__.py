"""Attention and Transformers: learn it, train it, look inside it, serve it, with the same model object."""

from typing import TYPE_CHECKING

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

__version__ = "0.6.0"
__all__ = ["__version__", "load", "look", "save"]
