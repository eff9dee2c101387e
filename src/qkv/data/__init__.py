"""From texts, pairs and labelled rows to batches of ids: sources, preparing, order, objectives."""

from qkv.data.sources.examples import Example, open_examples
from qkv.data.sources.source import PairSource, DocumentPart, TextSource, open_pairs, open_texts

__all__ = [
    "Example",
    "PairSource",
    "DocumentPart",
    "TextSource",
    "open_examples",
    "open_pairs",
    "open_texts",
]
