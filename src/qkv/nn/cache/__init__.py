"""KV caches and the other states of decoding: growing, static, paged, segment memory and recurrent."""

from qkv.nn.cache.caches import (
    DecoderState,
    DecodingState,
    KeyValueCache,
    RecurrentState,
    SegmentMemory,
    SourceCache,
    StaticCache,
    check_rows,
    reordered,
)
from qkv.nn.cache.paged import PackedBatch, PackedDecoderBatch, PagedCache, SequenceGroup

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
