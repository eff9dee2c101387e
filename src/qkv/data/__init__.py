"""From texts, pairs and labelled rows to batches of ids: sources, preparing, order, objectives."""

from qkv.data.examples import Example, open_examples
from qkv.data.source import PairSource, Piece, TextSource, open_pairs, open_texts

__all__ = [
    "Example",
    "PairSource",
    "Piece",
    "TextSource",
    "open_examples",
    "open_pairs",
    "open_texts",
]
