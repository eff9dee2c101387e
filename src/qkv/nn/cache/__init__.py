"""KV caches and other decoding states: growing, static, paged, segment memory and recurrent."""

from qkv.nn.cache.decoder import DecoderState, SourceCache
from qkv.nn.cache.interface import DecodingState, check_rows
from qkv.nn.cache.kv_cache import KeyValueCache, reordered
from qkv.nn.cache.paged import PackedBatch, PackedDecoderBatch, PagedCache, SequenceGroup
from qkv.nn.cache.recurrent_state import RecurrentState
from qkv.nn.cache.segment_memory import SegmentMemory
from qkv.nn.cache.static import StaticCache

__all__ = [
    "DecoderState",
    "DecodingState",
    "KeyValueCache",
    "PackedBatch",
    "PackedDecoderBatch",
    "PagedCache",
    "RecurrentState",
    "SegmentMemory",
    "SequenceGroup",
    "SourceCache",
    "StaticCache",
    "check_rows",
    "reordered",
]
