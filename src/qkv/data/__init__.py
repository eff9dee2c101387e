"""From texts, pairs and labelled rows to batches of ids: sources, preparing, order, objectives."""

from qkv.data.sources.examples import Example, open_examples
from qkv.data.sources.source import DocumentPart, PairSource, TextSource, open_pairs, open_texts

__all__ = [
    "DocumentPart",
    "Example",
    "PairSource",
    "TextSource",
    "open_examples",
    "open_pairs",
    "open_texts",
]
