"""Tokens and their logprobs as JSON: in OpenAI's two formats and in qkv's own."""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from qkv.serving.engine.generation_request import Alternative, OutputChunk, TokenLogprob
from qkv.text.detokenizer import BYTE_TOKEN, IncrementalDetokenizer, bytes_of
from qkv.text.tokenizer import Tokenizer

ZERO_LOGPROB = -9999.0
"""OpenAI's logarithm of a probability of 0: JSON has no infinity."""


class TokenStream:
    """The tokens of one text, each with the characters that it completes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.stream = IncrementalDetokenizer(tokenizer)
        self.offset = 0
        """Characters so far; only `text_offset` advances it."""

    def token(self, id: int) -> dict[str, Any]:
        """A token, with the characters that it adds to the text."""
        return {"id": id, "text": self.stream.add(id), "token": spelling(self.tokenizer, id)}

    def scored_tokens(self, tokens: Iterable[TokenLogprob]) -> list[dict[str, Any]]:
        """Tokens in qkv's format, with logprobs and alternatives."""
        items = []
        for token in tokens:
            alternatives = []
            for other in token.alternatives:
                alternatives.append(
                    {**single_token(self.tokenizer, other.id), **probabilities(other)}
                )

            items.append(
                {
                    **self.token(token.id),
                    "logprob": finite(token.logprob),
                    "alternatives": alternatives,
                }
            )

        return items

    def text_offset(self, id: int) -> int:
        """Add a token, and return the offset of its first character in the text.

        That is where the token before it ended, or inside a character that both share. Bytes before
        it that turn out to be invalid are one replacement character, which stands between them.
        """
        stream = self.stream
        offset = self.offset
        pending = stream.utf8_decoder.getstate()[0]
        if pending:
            try:
                codecs.utf_8_decode(
                    pending + bytes(token_bytes(self.tokenizer, id)), "strict", False
                )
            except UnicodeDecodeError as error:
                offset += error.start == 0
        elif stream.pending and not BYTE_TOKEN.fullmatch(spelling(self.tokenizer, id)):
            decode = self.tokenizer.decode
            offset += len(decode(stream.last_ids + stream.pending)) - len(decode(stream.last_ids))

        self.offset += len(stream.add(id))

        return offset


def entries_in(chunks: Iterable[OutputChunk]) -> int:
    """Number of tokens and alternatives."""
    entries = 0
    for chunk in chunks:
        for token in chunk.tokens:
            entries += 1 + len(token.alternatives)

    return entries


def probabilities(alternative: Alternative) -> dict[str, float]:
    """The logprob and the sampling probability of a token."""
    return {
        "logprob": finite(alternative.logprob) or 0.0,
        "probability": alternative.probability,
    }


def prompt_tokens(tokenizer: Tokenizer, ids: Sequence[int]) -> list[dict[str, Any]]:
    """The tokens of a prompt in qkv's format."""
    stream = TokenStream(tokenizer)
    return [stream.token(id) for id in ids]


def finite(logprob: float | None) -> float | None:
    """The logprob, with OpenAI's number in place of an infinite one."""
    if logprob is None or math.isfinite(logprob):
        return logprob

    return ZERO_LOGPROB


@lru_cache(maxsize=65536)
def single_token(tokenizer: Tokenizer, id: int) -> dict[str, Any]:
    """A token as it would continue a text."""
    return {"id": id, "text": token_text(tokenizer, id), "token": spelling(tokenizer, id)}


@lru_cache(maxsize=65536)
def token_text(tokenizer: Tokenizer, id: int) -> str:
    """The text of a token inside a text."""
    stream = IncrementalDetokenizer(tokenizer)
    stream.last_ids = preceding_token(tokenizer)
    return stream.add(id) + stream.close()


@lru_cache(maxsize=16)
def preceding_token(tokenizer: Tokenizer) -> list[int]:
    """Any ordinary token: the text of a token may depend on there being one before it."""
    for id in range(tokenizer.vocabulary):
        token = tokenizer.inner.id_to_token(id)
        if token is None or id in tokenizer.special or BYTE_TOKEN.fullmatch(token):
            continue
        if tokenizer.decode([id]):
            return [id]

    return []


def spelling(tokenizer: Tokenizer, id: int) -> str:
    """A token as the vocabulary writes it; a model may have more ids than its tokenizer."""
    return tokenizer.inner.id_to_token(id) or f"[{id}]"


def token_bytes(tokenizer: Tokenizer, id: int) -> list[int]:
    """The bytes of a token."""
    if id in tokenizer.special or id >= tokenizer.vocabulary:
        return list(spelling(tokenizer, id).encode())
    if "ByteLevel" in tokenizer.decoders:
        return list(bytes_of(spelling(tokenizer, id)))

    return list(token_text(tokenizer, id).encode())


def openai_text(tokenizer: Tokenizer, id: int) -> str:
    """OpenAI's text of a token: part of a character by its bytes, a special token by its name."""
    if id in tokenizer.special or id >= tokenizer.vocabulary:
        return spelling(tokenizer, id)

    text = token_text(tokenizer, id)
    if "\ufffd" in text and "ByteLevel" in tokenizer.decoders:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token_bytes(tokenizer, id))

    return text


def completion_logprobs(
    tokenizer: Tokenizer, tokens: Sequence[TokenLogprob], top: int, stream: TokenStream
) -> dict[str, Any]:
    """The `logprobs` of a completion; `stream` counts the offsets of the choice's text."""
    top_logprobs: list[dict[str, float | None] | None] = []
    for token in tokens:
        if token.logprob is None:
            top_logprobs.append(None)
            continue

        likely = {}
        for other in token.alternatives[:top]:
            likely[openai_text(tokenizer, other.id)] = finite(other.logprob)

        top_logprobs.append(likely)

    return {
        "tokens": [openai_text(tokenizer, token.id) for token in tokens],
        "token_logprobs": [finite(token.logprob) for token in tokens],
        "top_logprobs": top_logprobs if top else None,
        "text_offset": [stream.text_offset(token.id) for token in tokens],
    }


def chat_logprobs(tokenizer: Tokenizer, tokens: Sequence[TokenLogprob], top: int) -> dict[str, Any]:
    """The `logprobs` of a chat completion."""
    content = []
    for token in tokens:
        likely = []
        for other in token.alternatives[:top]:
            likely.append(chat_token(tokenizer, other.id, other.logprob))

        item = chat_token(tokenizer, token.id, token.logprob)
        content.append({**item, "top_logprobs": likely})

    return {"content": content, "refusal": None}


def chat_token(tokenizer: Tokenizer, id: int, logprob: float | None) -> dict[str, Any]:
    return {
        "token": openai_text(tokenizer, id),
        "logprob": finite(logprob),
        "bytes": token_bytes(tokenizer, id),
    }
