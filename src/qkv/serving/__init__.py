"""Serving: a continuous-batching engine, an OpenAI-compatible API and the playground."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qkv.serving.serve import serve
else:
    from qkv.imports import attach

    attach(__name__)

__all__ = ["serve"]
