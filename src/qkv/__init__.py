"""Attention and Transformers: learn it, train it, look inside it, serve it, with the same model object."""

from qkv.artifact import load, save

__version__ = "0.4.0"
__all__ = ["__version__", "load", "save"]
