"""KV caches and other decoding states: growing, static, paged, segment memory and recurrent."""

from qkv.nn.cache.decoder import DecoderState, EncodedSource, SourceCache
from qkv.nn.cache.interface import NO_STATE, Cache, check_rows, check_state
from qkv.nn.cache.kv_cache import KeyValueCache, reordered
from qkv.nn.cache.packed_prompts import PackedPrompts
from qkv.nn.cache.paged import PackedBatch, PagedCache, SequenceGroup
from qkv.nn.cache.recurrent_state import RecurrentState
from qkv.nn.cache.segment_memory import SegmentMemory
from qkv.nn.cache.static import StaticCache

__all__ = [
    "NO_STATE",
    "Cache",
    "DecoderState",
    "EncodedSource",
    "KeyValueCache",
    "PackedBatch",
    "PackedPrompts",
    "PagedCache",
    "RecurrentState",
    "SegmentMemory",
    "SequenceGroup",
    "SourceCache",
    "StaticCache",
    "check_rows",
    "check_state",
    "reordered",
]
