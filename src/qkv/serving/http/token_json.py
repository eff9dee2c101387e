"""Tokens as people read them, and their probabilities, in OpenAI's two shapes and in our own."""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from qkv.serving.engine.generation_request import Alternative, TokenLogprob
from qkv.text.detokenizer import A_BYTE, IncrementalDetokenizer, bytes_of
from qkv.text.tokenizer import Tokenizer

NEVER = -9999.0
"""OpenAI's logarithm of a probability of 0: JSON has no infinity."""


class Running:
    """The tokens of one text: each with the characters that it settles, so that all together are
    the text.
    """

    def __init__(self, tokenizer: Tokenizer, offset: int = 0) -> None:
        self.tokenizer, self.stream, self.offset = (
            tokenizer,
            IncrementalDetokenizer(tokenizer),
            offset,
        )

    def read(self, said: Iterable[TokenLogprob]) -> list[dict[str, Any]]:
        """Our own shape."""
        return [self.one(each) for each in said]

    def one(self, said: TokenLogprob) -> dict[str, Any]:
        return {
            **self.known(said.id),
            "logprob": finite(said.logprob),
            "alternatives": [
                {**lone(self.tokenizer, each.id), **chances_of(each)} for each in said.alternatives
            ],
        }  # fmt: skip

    def place(self, id: int) -> int:
        """Where a token begins, which is read thereby: where the one before it ended, or within one
        character with it. Bytes before it that turn out to be no character are a sign of their own,
        which stands between them."""
        stream = self.stream
        own, half = self.offset, stream.characters.getstate()[0]
        if half:
            try:
                codecs.utf_8_decode(half + bytes(signs_of(self.tokenizer, id)), "strict", False)
            except UnicodeDecodeError as error:
                own += error.start == 0
        elif stream.waiting and not A_BYTE.fullmatch(spelled(self.tokenizer, id)):
            decode, before = self.tokenizer.decode, stream.before
            own += len(decode(before + stream.waiting)) - len(decode(before))

        self.offset += len(stream.add(id))

        return own

    def known(self, id: int) -> dict[str, Any]:
        return {"id": id, "text": self.stream.add(id), "token": spelled(self.tokenizer, id)}


def listed(said: Sequence[TokenLogprob]) -> int:
    """Tokens, and alternatives of each."""
    return sum(1 + len(each.alternatives) for each in said)


def chances_of(each: Alternative) -> dict[str, float]:
    return {"logprob": finite(each.logprob) or 0.0, "probability": each.probability}


def prompt_tokens(tokenizer: Tokenizer, ids: Sequence[int]) -> list[dict[str, Any]]:
    running = Running(tokenizer)
    return [running.known(id) for id in ids]


def finite(logprob: float | None) -> float | None:
    return logprob if logprob is None or math.isfinite(logprob) else NEVER


@lru_cache(maxsize=65536)
def lone(tokenizer: Tokenizer, id: int) -> dict[str, Any]:
    """A token as it would go on a text."""
    return {"id": id, "text": text_of(tokenizer, id), "token": spelled(tokenizer, id)}


@lru_cache(maxsize=65536)
def text_of(tokenizer: Tokenizer, id: int) -> str:
    stream = IncrementalDetokenizer(tokenizer)
    stream.before = word_before(tokenizer)
    return stream.add(id) + stream.close()


@lru_cache(maxsize=16)
def word_before(tokenizer: Tokenizer) -> list[int]:
    """Any word: how a token reads may depend on there being one."""
    for id in range(tokenizer.vocabulary):
        token = tokenizer.inner.id_to_token(id)
        if (
            token is not None
            and id not in tokenizer.special
            and not A_BYTE.fullmatch(token)
            and tokenizer.decode([id])
        ):
            return [id]

    return []


def spelled(tokenizer: Tokenizer, id: int) -> str:
    """As the vocabulary writes it; some models have room for more tokens than there are."""
    return tokenizer.inner.id_to_token(id) or f"[{id}]"


def signs_of(tokenizer: Tokenizer, id: int) -> list[int]:
    """The bytes that a token stands for."""
    if id in tokenizer.special or id >= tokenizer.vocabulary:
        return list(spelled(tokenizer, id).encode())
    if "ByteLevel" in tokenizer.decoders:
        return list(bytes_of(spelled(tokenizer, id)))

    return list(text_of(tokenizer, id).encode())


def shown(tokenizer: Tokenizer, id: int) -> str:
    """OpenAI's text of a token: a part of a character by its bytes, a special token by its name."""
    if id in tokenizer.special or id >= tokenizer.vocabulary:
        return spelled(tokenizer, id)

    text = text_of(tokenizer, id)
    if "\ufffd" in text and "ByteLevel" in tokenizer.decoders:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in signs_of(tokenizer, id))

    return text


def of_completion(
    tokenizer: Tokenizer, said: Sequence[TokenLogprob], top: int, running: Running
) -> dict[str, Any]:
    """The `logprobs` of a completion. `running` knows where in the text each token begins."""
    return {
        "tokens": [shown(tokenizer, each.id) for each in said],
        "token_logprobs": [finite(each.logprob) for each in said],
        "top_logprobs": [
            None if each.logprob is None
            else {shown(tokenizer, other.id): finite(other.logprob) for other in each.alternatives[:top]}
            for each in said
        ] if top else None,
        "text_offset": [running.place(each.id) for each in said],
    }  # fmt: skip


def of_chat(tokenizer: Tokenizer, said: Sequence[TokenLogprob], top: int) -> dict[str, Any]:
    """The `logprobs` of a chat."""

    def one(id: int, logprob: float | None) -> dict[str, Any]:
        return {
            "token": shown(tokenizer, id),
            "logprob": finite(logprob),
            "bytes": signs_of(tokenizer, id),
        }

    content = [
        {
            **one(each.id, each.logprob),
            "top_logprobs": [one(other.id, other.logprob) for other in each.alternatives[:top]],
        }
        for each in said
    ]

    return {"content": content, "refusal": None}
