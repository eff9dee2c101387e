"""Models: GPT, BERT, Transformer, RNNs, task models; their configs need no torch (configs.py)."""

from typing import TYPE_CHECKING

from qkv.models.configs import (
    BERTConfig,
    Config,
    GPTConfig,
    HeadConfig,
    ModelConfig,
    RNNConfig,
    RNNLMConfig,
    TaskModelConfig,
    TransformerConfig,
)

if TYPE_CHECKING:
    from qkv.models.bert import BERT
    from qkv.models.gpt import GPT
    from qkv.models.model import Model
    from qkv.models.presets import PRESETS, preset
    from qkv.models.registry import build, count_parameters, group_key_value_heads, register_family
    from qkv.models.rnn import RNN, RNNLanguageModel
    from qkv.models.task_model import TaskModel
    from qkv.models.transformer import Transformer
    from qkv.models.variants.quantize import int4, int8
else:
    from qkv.imports import attach

    attach(__name__)

__all__ = [
    "BERT",
    "GPT",
    "PRESETS",
    "RNN",
    "BERTConfig",
    "Config",
    "GPTConfig",
    "HeadConfig",
    "Model",
    "ModelConfig",
    "RNNConfig",
    "RNNLMConfig",
    "RNNLanguageModel",
    "TaskModel",
    "TaskModelConfig",
    "Transformer",
    "TransformerConfig",
    "build",
    "count_parameters",
    "group_key_value_heads",
    "int4",
    "int8",
    "preset",
    "register_family",
]
