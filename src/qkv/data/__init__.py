"""Data: reading texts, pairs and examples (sources), token ids on disk (tokens), training batches."""

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
