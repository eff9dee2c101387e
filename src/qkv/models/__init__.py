"""The models of the lectures, one a file, each with its config beside it."""

from qkv.models.bert import BERT, BERTConfig
from qkv.models.build import Config, Model, build, count_parameters, group_key_value_heads
from qkv.models.gpt import GPT, GPTConfig
from qkv.models.heads import HeadConfig
from qkv.models.presets import PRESETS, preset
from qkv.models.quantise import int8
from qkv.models.rnn import RNN, RNNConfig
from qkv.models.transformer import Transformer, TransformerConfig
from qkv.models.tuned import Tuned, TunedConfig

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
