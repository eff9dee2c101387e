"""Training: one loop for every model, from the names of data to a folder with a model, and nothing lost on the way."""

from typing import TYPE_CHECKING

from qkv.training.config import DataConfig, OptimizerConfig, RunConfig

if TYPE_CHECKING:
    from qkv.training.start import start
else:
    from qkv.lazy import attach

    attach(__name__, {"qkv.training.start": ("start",)})

__all__ = ["DataConfig", "OptimizerConfig", "RunConfig", "start"]
