"""Tokens and their logprobs as JSON: in OpenAI's two formats and in qkv's own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from qkv.serving.engine.generation_request import Alternative, OutputChunk, TokenLogprob
from qkv.text.detokenizer import BYTE_TOKEN, IncrementalDetokenizer, bytes_of
from qkv.text.tokenizer import Tokenizer

ZERO_LOGPROB = -9999.0
"""OpenAI's logarithm of a probability of 0: JSON has no infinity."""


def entries_in(chunks: Iterable[OutputChunk]) -> int:
    """Number of tokens and alternatives."""
    entries = 0
    for chunk in chunks:
        entries += len(chunk.token_ids)
        entries += sum(len(token.alternatives) for token in chunk.scored or ())

    return entries


def prompt_tokens(tokenizer: Tokenizer, ids: Sequence[int]) -> list[dict[str, Any]]:
    """The tokens of a prompt in qkv's format, each with the characters that it completes."""
    detokenizer = IncrementalDetokenizer(tokenizer)
    return [named_token(tokenizer, id, detokenizer.add(id)) for id in ids]


def named_token(tokenizer: Tokenizer, id: int, text: str) -> dict[str, Any]:
    """A token in qkv's format, without logprobs."""
    return {"id": id, "text": text, "token": spelling(tokenizer, id)}


def scored_tokens(tokenizer: Tokenizer, tokens: Iterable[TokenLogprob]) -> list[dict[str, Any]]:
    """Tokens in qkv's format, with logprobs and alternatives."""
    items = []
    for token in tokens:
        item = named_token(tokenizer, token.id, token.text)
        item["logprob"] = finite(token.logprob)
        item["alternatives"] = [likely_token(tokenizer, other) for other in token.alternatives]
        items.append(item)

    return items


def likely_token(tokenizer: Tokenizer, alternative: Alternative) -> dict[str, Any]:
    """A candidate for the next token, with its logprob and its sampling probability."""
    return {
        **named_token(tokenizer, alternative.id, token_text(tokenizer, alternative.id)),
        "logprob": finite(alternative.logprob) or 0.0,
        "probability": alternative.probability,
    }


def finite(logprob: float | None) -> float | None:
    """The logprob, with OpenAI's number in place of an infinite one."""
    if logprob is None or math.isfinite(logprob):
        return logprob

    return ZERO_LOGPROB


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
    tokenizer: Tokenizer, tokens: Sequence[TokenLogprob], top: int
) -> dict[str, Any]:
    """The `logprobs` of a completion."""
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
        "text_offset": [token.offset for token in tokens],
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
