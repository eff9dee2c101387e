"""Training: one loop for every model, from the names of data to a folder with a model, and nothing
lost on the way.
"""

from typing import TYPE_CHECKING

from qkv.training.run_config import DataConfig, OptimizerConfig, RunConfig

if TYPE_CHECKING:
    from qkv.training.train import train
else:
    from qkv.lazy_imports import attach

    attach(__name__, {"qkv.training.train": ("train",)})

__all__ = ["DataConfig", "OptimizerConfig", "RunConfig", "train"]
