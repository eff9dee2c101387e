"""Ids one by one become text piece by piece: each piece is whole characters, and none is taken back.

All pieces together are `tokenizer.decode` of all ids, and an id costs the same wherever it stands.
"""

from __future__ import annotations

import codecs
import re
from functools import lru_cache

from tokenizers import decoders

from qkv.text.tokenizer import Tokenizer

A_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")


class Stream:
    """`add` an id and get the text that is settled by it, be it none; `close` gives what was still waiting."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.silent = tokenizer.special - {tokenizer.unknown}
        decoder = tokenizer.inner.decoder
        self.bytes = isinstance(decoder, decoders.ByteLevel)
        self.characters = codecs.getincrementaldecoder("utf-8")("replace")
        self.bytes_as_words = decoder is not None and b"ByteFallback" in decoder.__getstate__()
        self.before: list[int] = []
        """The last id whose text is out: how a word is joined to the one before it depends on that one alone."""
        self.waiting: list[int] = []
        """A run of words that stand for bytes; what it means is known when it is over."""

    def add(self, id: int) -> str:
        token = self.tokenizer.inner.id_to_token(id)
        if id in self.silent or token is None:
            return ""
        if self.bytes:
            return self.characters.decode(bytes_of(token))
        self.waiting.append(id)
        return "" if self.bytes_as_words and A_BYTE.fullmatch(token) else self.settle()

    def close(self) -> str:
        return self.characters.decode(b"", final=True) if self.bytes else self.settle()

    def settle(self) -> str:
        if not self.waiting:
            return ""
        decode = self.tokenizer.decode
        text = decode(self.before + self.waiting)[len(decode(self.before)) :]
        self.before, self.waiting = self.waiting[-1:], []
        return text


def bytes_of(token: str) -> bytes:
    """What a byte-level token stands for: a byte for each sign, unless it was added as plain text."""
    signs = byte_of_sign()
    if all(sign in signs for sign in token):
        return bytes(signs[sign] for sign in token)
    return token.encode()


@lru_cache(maxsize=1)
def byte_of_sign() -> dict[str, int]:
    """GPT-2 writes each byte as a sign that can be printed: as itself, or else one of those from Ā on."""
    printed = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(256 + place): byte for place, byte in enumerate(others)}
