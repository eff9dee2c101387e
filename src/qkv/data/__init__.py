"""From texts, pairs and labelled rows to batches of ids: sources, preparing, order, objectives."""

from qkv.data.source import (
    Labelled,
    LabelledSource,
    PairSource,
    Piece,
    TextSource,
    open_labelled,
    open_pairs,
    open_texts,
)

__all__ = [
    "Labelled",
    "LabelledSource",
    "PairSource",
    "Piece",
    "TextSource",
    "open_labelled",
    "open_pairs",
    "open_texts",
]
