"""Incremental detokenizer: token ids arrive one by one, text comes out in whole characters.

The chunks together are `tokenizer.decode` of all ids, provided that the join between two tokens
depends only on these two. Text is never taken back, and the cost per id is constant.
"""

from __future__ import annotations

import codecs
import copy
import re
from collections.abc import Iterable
from functools import lru_cache

from qkv.text.tokenizer import Tokenizer

BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


class IncrementalDetokenizer:
    """`add` returns the text that an id completes (perhaps none), `close` returns the rest.

    Args:
        tokenizer: The tokenizer of the ids.

    Example:
        >>> from qkv.text import train
        >>> from qkv.text.detokenizer import IncrementalDetokenizer
        >>> tokenizer = train("characters", ["the cat"], 20)
        >>> detokenizer = IncrementalDetokenizer(tokenizer)
        >>> [detokenizer.add(id) for id in tokenizer.encode("cat")]
        ['c', 'a', 't']
        >>> detokenizer.close()
        ''
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.skipped = tokenizer.without_text
        self.byte_level = "ByteLevel" in tokenizer.decoders
        self.only_byte_level = self.byte_level and tokenizer.decoders <= {"Sequence", "ByteLevel"}
        """Nothing remains to be done once the bytes are characters."""
        self.byte_fallback = "ByteFallback" in tokenizer.decoders
        self.utf8_decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.length = 0
        """Number of characters that `add` has returned."""
        self.last_ids: list[int] = []
        """The last id whose text was returned; the join to the next token depends on it alone."""
        self.pending: list[int] = []
        """Ids whose text is incomplete: part of a character, or a run of byte tokens."""

    def copy(self) -> IncrementalDetokenizer:
        """Return a detokenizer that continues after the same ids."""
        twin = copy.copy(self)
        twin.utf8_decoder = codecs.getincrementaldecoder("utf-8")("replace")
        twin.utf8_decoder.setstate(self.utf8_decoder.getstate())
        twin.pending = list(self.pending)
        return twin

    def add(self, id: int) -> str:
        """Return the text that this id completes."""
        token = self.tokenizer.inner.id_to_token(id)
        if id in self.skipped or token is None:
            return ""

        characters = ""
        if self.byte_level:
            characters = self.utf8_decoder.decode(bytes_of(token))
        if self.only_byte_level:
            self.length += len(characters)
            return characters

        self.pending.append(id)
        inside_character = bool(self.utf8_decoder.getstate()[0])
        inside_bytes = self.byte_fallback and BYTE_TOKEN.fullmatch(token)
        if inside_character or inside_bytes:
            return ""

        return self.decode_pending()

    def add_all(self, ids: Iterable[int]) -> str:
        """Return the text that these ids complete; faster than one `add` for each."""
        if not self.only_byte_level:
            return "".join(map(self.add, ids))

        encoded = map(bytes_by_id(self.tokenizer).__getitem__, ids)
        characters = self.utf8_decoder.decode(b"".join(encoded))
        self.length += len(characters)
        return characters

    def offset_of(self, id: int) -> int:
        """Return the offset of the first character of an id that is added next.

        That is where the id before it ended, or inside a character that both share. Bytes before it
        that turn out to be invalid are one replacement character, which stands between them.
        """
        token = self.tokenizer.inner.id_to_token(id) or ""
        unread = self.utf8_decoder.getstate()[0]
        if unread:
            try:
                codecs.utf_8_decode(unread + bytes_of(token), "strict", False)
            except UnicodeDecodeError as error:
                return self.length + (error.start == 0)
        elif self.pending and not BYTE_TOKEN.fullmatch(token):
            return self.length + len(self.pending_text())

        return self.length

    def close(self) -> str:
        """Return the text of all ids that are still pending."""
        if self.only_byte_level:
            return self.utf8_decoder.decode(b"", final=True)

        return self.decode_pending()

    def decode_pending(self) -> str:
        if not self.pending:
            return ""

        text = self.pending_text()
        self.length += len(text)
        self.last_ids = self.pending[-1:]
        self.pending = []

        return text

    def pending_text(self) -> str:
        decode = self.tokenizer.decode
        prefix = decode(self.last_ids)
        return decode(self.last_ids + self.pending)[len(prefix) :]


class BytesById(dict[int, bytes]):
    """The bytes of each id of a byte-level tokenizer; none for special tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.inner = tokenizer.inner
        self.skipped = tokenizer.without_text

    def __missing__(self, id: int) -> bytes:
        token = self.inner.id_to_token(id)
        encoded = b""
        if id not in self.skipped and token is not None:
            encoded = bytes_of(token)

        self[id] = encoded
        return encoded


@lru_cache(maxsize=16)
def bytes_by_id(tokenizer: Tokenizer) -> BytesById:
    """Return the table of a tokenizer, which fills as its ids are used."""
    return BytesById(tokenizer)


@lru_cache(maxsize=1 << 16)
def bytes_of(token: str) -> bytes:
    """Return the bytes of a byte-level token; one that was added as plain text is in UTF-8."""
    byte_of = byte_of_sign()
    if all(sign in byte_of for sign in token):
        return bytes(byte_of[sign] for sign in token)

    return token.encode()


@lru_cache(maxsize=1)
def byte_of_sign() -> dict[str, int]:
    """Return GPT-2's alphabet: printable bytes stand for themselves, others start at Ā."""
    printed = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    signs = {chr(byte): byte for byte in printed}

    next_sign = 256
    for byte in range(256):
        if byte not in printed:
            signs[chr(next_sign)] = byte
            next_sign += 1

    return signs
