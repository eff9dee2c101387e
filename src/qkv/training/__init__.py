"""Training: one loop for every model, from the names of data to a folder with a model, and nothing lost on the way."""

from qkv.training.config import DataConfig, OptimizerConfig, RunConfig
from qkv.training.start import start

__all__ = ["DataConfig", "OptimizerConfig", "RunConfig", "start"]
