"""Modules of neural networks: attention, blocks, embeddings, norms, KV caches, hooks and LoRA.

The shapes, with the same letters in every file:

    B batch    T query length    S key length    H heads    K kv_heads
    D head width    E model width    F feed-forward width    V vocabulary

Names are imported at first use, so that the configs can be imported without torch. Low-rank
adapters are in `qkv.nn.lora`, and attend with its masks in `qkv.nn.attention`.
"""

from typing import TYPE_CHECKING

from qkv.nn.stack_config import AdapterConfig, RotaryScaling, StackConfig

if TYPE_CHECKING:
    from qkv.nn.attention.multi_head import MultiHeadAttention
    from qkv.nn.block import Block, Stack
    from qkv.nn.cache import KeyValueCache, SegmentMemory
    from qkv.nn.embedding import Embedding
    from qkv.nn.feed_forward import FeedForward
    from qkv.nn.hooks import HookPoints, add_hook, capture, hook_points
    from qkv.nn.linear.linear import Linear
    from qkv.nn.norm import LayerNorm, RMSNorm
    from qkv.nn.own_parts import register_part
    from qkv.nn.position import PositionEncoding
    from qkv.nn.recurrent import Recurrent
else:
    from qkv.imports import attach

    attach(__name__, submodules=("attention", "lora"))

__all__ = [
    "AdapterConfig",
    "Block",
    "Embedding",
    "FeedForward",
    "HookPoints",
    "KeyValueCache",
    "LayerNorm",
    "Linear",
    "MultiHeadAttention",
    "PositionEncoding",
    "RMSNorm",
    "Recurrent",
    "RotaryScaling",
    "SegmentMemory",
    "Stack",
    "StackConfig",
    "add_hook",
    "capture",
    "hook_points",
    "register_part",
]
