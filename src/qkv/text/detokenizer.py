"""Ids one by one become text piece by piece: each piece is whole characters, and none is taken
back.

All pieces together are `tokenizer.decode` of all ids, as long as how a word is joined depends on
the word before it alone; and an id costs the same wherever it stands.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable
from functools import lru_cache

from qkv.text.tokenizer import Tokenizer

A_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")


class IncrementalDetokenizer:
    """`add` an id and get the text that is settled by it, be it none; `close` gives what was still
    waiting.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.silent = tokenizer.special - {tokenizer.unknown}
        self.byte_level = "ByteLevel" in tokenizer.decoders
        self.bytes_alone = tokenizer.decoders <= {"Sequence", "ByteLevel"} and self.byte_level
        """There is nothing to do after the bytes have become characters."""
        self.characters = codecs.getincrementaldecoder("utf-8")("replace")
        self.bytes_as_words = "ByteFallback" in tokenizer.decoders
        self.before: list[int] = []
        """The last id whose text is out: how a word is joined to the one before it depends on that
        one alone.
        """
        self.waiting: list[int] = []
        """Words whose characters are not whole: part of one, or a run of words that stand for
        bytes, until it ends.
        """

    def add(self, id: int) -> str:
        token = self.tokenizer.inner.id_to_token(id)
        if id in self.silent or token is None:
            return ""

        characters = self.characters.decode(bytes_of(token)) if self.byte_level else ""
        if self.bytes_alone:
            return characters

        self.waiting.append(id)
        half = bool(self.characters.getstate()[0]) or (
            self.bytes_as_words and A_BYTE.fullmatch(token)
        )

        return "" if half else self.settle()

    def add_all(self, ids: Iterable[int]) -> str:
        """The same of several at once, which is quicker."""
        if not self.bytes_alone:
            return "".join(map(self.add, ids))

        tokens = map(self.tokenizer.inner.id_to_token, (id for id in ids if id not in self.silent))
        return self.characters.decode(
            b"".join(bytes_of(token) for token in tokens if token is not None)
        )

    def close(self) -> str:
        return self.characters.decode(b"", final=True) if self.bytes_alone else self.settle()

    def settle(self) -> str:
        if not self.waiting:
            return ""

        decode = self.tokenizer.decode
        text = decode(self.before + self.waiting)[len(decode(self.before)) :]
        self.before, self.waiting = self.waiting[-1:], []

        return text


@lru_cache(maxsize=1 << 16)
def bytes_of(token: str) -> bytes:
    """What a byte-level token stands for: a byte for each sign, unless it was added as plain text."""
    signs = byte_of_sign()
    if all(sign in signs for sign in token):
        return bytes(signs[sign] for sign in token)

    return token.encode()


@lru_cache(maxsize=1)
def byte_of_sign() -> dict[str, int]:
    """GPT-2 writes each byte as a sign that can be printed: as itself, or else one of those from Ā
    on.
    """
    printed = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {
        chr(256 + place): byte for place, byte in enumerate(others)
    }
