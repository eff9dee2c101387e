"""Special tokens around a text, as models read it in training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from qkv.text.special_tokens import OURS
from qkv.text.tokenizer import Tokenizer

Reads = Literal["document", "prompt", "sentence", "source", "target"]


class FrameTokens(NamedTuple):
    """Special tokens before and after a text."""

    before: list[int]
    after: list[int]

    @classmethod
    def of(cls, before: int | None, after: int | None) -> FrameTokens:
        """At most one token on each side."""
        return cls(optional_ids(before), optional_ids(after))

    def around(self, ids: Sequence[int]) -> list[int]:
        """Return the ids with the special tokens around them."""
        return [*self.before, *ids, *self.after]


def tokens_around(tokenizer: Tokenizer, reads: Reads) -> FrameTokens:
    """Return the special tokens around a text.

    A document to train on ends with the end token, so that a text begins after that of another. A
    prompt of a GPT has the start token before it if the tokenizer adds one, a sentence of a BERT
    is between start and end token. A translator's source ends with the end token; its target begins
    after the start token.
    """
    starts = reads in ("sentence", "target") or (reads == "prompt" and tokenizer.adds_start_token)
    ends = reads in ("document", "sentence", "source")
    return FrameTokens.of(tokenizer.start if starts else None, tokenizer.end if ends else None)


def optional_ids(*ids: int | None) -> list[int]:
    return [id for id in ids if id is not None]


def start_id(tokenizer: Tokenizer) -> int | None:
    """Return the id before the first token of a text.

    Models that are trained here read texts one after another, so it is the end token of the text
    before; others have a start token.
    """
    ids = optional_ids(tokenizer.start, tokenizer.end)
    if tokenizer.start is not None and tokenizer.token(tokenizer.start) == OURS["start"]:
        ids.reverse()

    return next(iter(ids), None)


def translation_ends(tokenizer: Tokenizer) -> tuple[int, int]:
    """Return the start and the end token of a translator; raise ValueError if there is none."""
    if tokenizer.start is None or tokenizer.end is None:
        raise ValueError(
            "tokenizer: a translator needs a start and an end token, and this one lacks them"
        )

    return tokenizer.start, tokenizer.end
