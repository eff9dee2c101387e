"""The models of the lectures, one a file; their configs are in config.py, which needs no torch."""

from typing import TYPE_CHECKING

from qkv.models.config import BERTConfig, Config, GPTConfig, HeadConfig, RNNConfig, TransformerConfig, TunedConfig
from qkv.models.presets import PRESETS, preset

if TYPE_CHECKING:
    from qkv.models.bert import BERT
    from qkv.models.build import Model, build, count_parameters, group_key_value_heads
    from qkv.models.gpt import GPT
    from qkv.models.quantise import int8
    from qkv.models.rnn import RNN
    from qkv.models.transformer import Transformer
    from qkv.models.tuned import Tuned
else:
    from qkv.lazy import attach

    attach(
        __name__,
        {
            "qkv.models.bert": ("BERT",),
            "qkv.models.build": ("Model", "build", "count_parameters", "group_key_value_heads"),
            "qkv.models.gpt": ("GPT",),
            "qkv.models.quantise": ("int8",),
            "qkv.models.rnn": ("RNN",),
            "qkv.models.transformer": ("Transformer",),
            "qkv.models.tuned": ("Tuned",),
        },
    )

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
    "RNNConfig",
    "Transformer",
    "TransformerConfig",
    "Tuned",
    "TunedConfig",
    "build",
    "count_parameters",
    "group_key_value_heads",
    "int8",
    "preset",
]
