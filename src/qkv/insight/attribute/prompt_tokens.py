"""One prompt as model input, and single tokens by their texts."""

from __future__ import annotations

from qkv.insight.inspect.model_input import Reading, make_side, read, readable_token
from qkv.models.model import Model
from qkv.text.printable import printable
from qkv.text.tokenizer import Tokenizer


def read_prompt(model: Model, tokenizer: Tokenizer, text: str, target: str | None) -> Reading:
    """The input of one prompt; without a target, a translator's decoder gets its start token."""
    if not model.has_source:
        if target is not None:
            raise ValueError("target: only a translator has one; leave it out")

        return read(model, tokenizer, text)

    if target is not None:
        return read(model, tokenizer, source=text, target=target)

    reading = read(model, tokenizer, source=text, target=text)
    return reading._replace(text=make_side(tokenizer, reading.text.ids[:1]))


def token_id(tokenizer: Tokenizer, text: str | None, name: str) -> int | None:
    """The id of a text that must be one token."""
    if text is None:
        return None

    ids = tokenizer.encode(text)
    if len(ids) != 1:
        pieces = printable(" | ".join(readable_token(tokenizer, id) for id in ids))
        raise ValueError(f"{name}: expected one token, but {text!r} is {len(ids)}: {pieces}")

    return ids[0]
