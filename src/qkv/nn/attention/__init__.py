"""Attention: attend, its masks, biases and scores. Start with lookup.py, then attend.py."""

from qkv.nn.attention.attend import attend
from qkv.nn.attention.bias import Bias, Distance
from qkv.nn.attention.kernels.table import KERNELS, AttentionCall, register_kernel
from qkv.nn.attention.mask import (
    All,
    Causal,
    Explicit,
    Mask,
    Padding,
    Prefix,
    Window,
    all_of,
)
from qkv.nn.attention.score import Additive, General, dot, scaled_dot
from qkv.nn.attention.sparse_mask import Blockwise, Document, Fixed, Strided

__all__ = [
    "KERNELS",
    "Additive",
    "All",
    "AttentionCall",
    "Bias",
    "Blockwise",
    "Causal",
    "Distance",
    "Document",
    "Explicit",
    "Fixed",
    "General",
    "Mask",
    "Padding",
    "Prefix",
    "Strided",
    "Window",
    "all_of",
    "attend",
    "dot",
    "register_kernel",
    "scaled_dot",
]
