"""Special tokens around a text, as models read it in training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from qkv.text.tokenizer import Tokenizer

Reads = Literal["prompt", "sentence", "source", "target"]


class FrameTokens(NamedTuple):
    """Special tokens before and after a text."""

    before: list[int]
    after: list[int]

    @classmethod
    def of(cls, before: int | None, after: int | None) -> FrameTokens:
        """At most one token on each side."""
        return cls(optional_id(before), optional_id(after))

    def around(self, ids: Sequence[int]) -> list[int]:
        """Return the ids with the special tokens around them."""
        return [*self.before, *ids, *self.after]


def tokens_around(tokenizer: Tokenizer, reads: Reads) -> FrameTokens:
    """Return the special tokens around a text.

    A prompt of a GPT has the start token before it if the tokenizer adds one, a sentence of a BERT
    is between start and end token. A translator's source ends with the end token; its target begins
    after the start token.
    """
    starts = reads in ("sentence", "target") or (reads == "prompt" and tokenizer.adds_start_token)
    ends = reads in ("sentence", "source")
    return FrameTokens.of(tokenizer.start if starts else None, tokenizer.end if ends else None)


def optional_id(id: int | None) -> list[int]:
    return [] if id is None else [id]


def translation_ends(tokenizer: Tokenizer) -> tuple[int, int]:
    """Return the start and the end token of a translator; raise ValueError if there is none."""
    if tokenizer.start is None or tokenizer.end is None:
        raise ValueError(
            "tokenizer: a translator needs a start and an end token, and this one lacks them"
        )

    return tokenizer.start, tokenizer.end
