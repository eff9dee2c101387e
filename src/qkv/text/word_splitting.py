"""What a word is, and how words and punctuation are put together again.

A word keeps the apostrophe, hyphen, point or colon inside it (don't, well-known, 3.14, 10:30); any
other sign stands alone. Spaces are not kept: they come back by the rules of punctuation. A
quotation mark that opens is told from one that closes by what stands before it; curly ones are read
as straight ones, and all come back straight.
"""

from __future__ import annotations

from tokenizers import Regex, decoders, normalizers, pre_tokenizers
from tokenizers.decoders import Decoder
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

CONTINUES = "##"  # begins a piece that goes on a word

WORD_OR_SIGN = r"\w+(?:['-]\w+|(?<=\d)[.,:]\d+)*|[^\w\s]"
AFTER_AN_OPENING = r"(?<![^\s(\[{«“/—–-])"  # at the start, or after a space or a sign that opens
BEFORE_A_CLOSING = r""" (?=[.,;:!?…)\]}»"'])"""
BEHIND_AN_OPENING = r"(?<=[(\[{«“‘¿¡]) "


def normalizer() -> Normalizer:
    """One spelling for each letter, and “ or ‘ for a quotation mark that opens."""
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
    return pre_tokenizers.Split(Regex(WORD_OR_SIGN), behavior="removed", invert=True)


def joiner() -> Decoder:
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
