"""Split text into words and punctuation marks, and join them again.

A word keeps the apostrophe, hyphen, point or colon inside it (don't, well-known, 3.14, 10:30); any
other mark is a token. Spaces are not kept; joining restores them by the rules of punctuation.
Opening and closing quotation marks are distinguished by the character before them; curly ones are
read as straight ones, and all are joined as straight ones.
"""

from __future__ import annotations

from tokenizers import Regex, decoders, normalizers, pre_tokenizers
from tokenizers.decoders import Decoder
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

CONTINUES = "##"
"""Prefix of a piece that continues a word."""

WORD_OR_SIGN = r"\w+(?:['-]\w+|(?<=\d)[.,:]\d+)*|[^\w\s]"
AFTER_AN_OPENING = r"(?<![^\s(\[{«“/—–-])"
"""At the start of a text, or after a space or an opening mark."""
BEFORE_A_CLOSING = r""" (?=[.,;:!?…)\]}»"'])"""
BEHIND_AN_OPENING = r"(?<=[(\[{«“‘¿¡]) "


def normalizer() -> Normalizer:
    """Return a normalizer: one code for each letter, and “ or ‘ for an opening quotation mark."""
    return normalizers.Sequence(
        [
            normalizers.NFC(),
            normalizers.Replace(Regex("[“”]"), '"'),
            normalizers.Replace(Regex("[‘’]"), "'"),
            normalizers.Replace(Regex(AFTER_AN_OPENING + '"'), "“"),
            normalizers.Replace(Regex(AFTER_AN_OPENING + "'"), "‘"),
        ]
    )


def splitter() -> PreTokenizer:
    """Return a pre-tokenizer that splits text into words and punctuation marks."""
    return pre_tokenizers.Split(Regex(WORD_OR_SIGN), behavior="removed", invert=True)


def joiner() -> Decoder:
    """Return a decoder that joins words with spaces, except around punctuation."""
    return decoders.Sequence(
        [
            decoders.WordPiece(prefix=CONTINUES, cleanup=False),
            decoders.Fuse(),
            decoders.Replace(Regex(BEFORE_A_CLOSING), ""),
            decoders.Replace(Regex(BEHIND_AN_OPENING), ""),
            decoders.Replace("“", '"'),
            decoders.Replace("‘", "'"),
        ]
    )
