"""Training and fine-tuning: one loop for every model, with checkpoints, resuming and metrics."""

from typing import TYPE_CHECKING

from qkv.training.run_config import DataConfig, OptimizerConfig, RunConfig

if TYPE_CHECKING:
    from qkv.training.finetune.finetune import finetune
    from qkv.training.finetune.finetune_config import FinetuneConfig, FinetuneRunConfig
    from qkv.training.train import train
else:
    from qkv.imports import attach

    attach(__name__)

__all__ = [
    "DataConfig",
    "FinetuneConfig",
    "FinetuneRunConfig",
    "OptimizerConfig",
    "RunConfig",
    "finetune",
    "train",
]
