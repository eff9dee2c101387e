"""Data: texts, pairs and examples from files, token ids on disk, and training batches."""

from qkv.data.sources.examples import Example, open_examples
from qkv.data.sources.named import register_source
from qkv.data.sources.source import DocumentPart, PairSource, TextSource, open_pairs, open_texts

__all__ = [
    "DocumentPart",
    "Example",
    "PairSource",
    "TextSource",
    "open_examples",
    "open_pairs",
    "open_texts",
    "register_source",
]
