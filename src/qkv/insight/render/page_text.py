"""Texts of a page: its heading, and why a view is missing."""

from __future__ import annotations

import re
from collections.abc import Sequence

from qkv.insight.inspect.look_data import (
    ATTRIBUTION_MAX_TOKENS,
    LENS_MAX_TOKENS,
    NORMS_MAX_TOKENS,
    LookData,
)
from qkv.insight.inspect.whole_words import WholeWord
from qkv.insight.walk.model_walk import MODEL_WALK_MAX_TOKENS
from qkv.insight.walk.telling_heads import WALK_MAX_TOKENS

HEADING = 60
"""Words of a text in the heading, at most."""
HEADING_CHARACTERS = 400

SPECIAL = re.compile(r"[\[<].+[\]>]", re.DOTALL)
"""A special token such as [SEP], and no bracket of the text."""
AFTER_A_WORD = re.compile(r"[,.;:!?%)\]}'’”»…(\[{↵⇥]")
BEFORE_A_WORD = re.compile(r".*[(\[{]", re.DOTALL)

NO_TOKENS = "An encoder without a token head predicts no tokens"


def heading(look: LookData) -> list[str]:
    """The texts as given.

    Where only tokens are known, the text is joined from its words; that of a translation is the
    source and the target without their end tokens.
    """
    if look.texts:
        return [text[:HEADING_CHARACTERS] for text in look.texts]

    source = look.reading.source
    target = look.reading.chosen
    if source is None or target is None:
        return [joined(look.reading.text.words)]

    source_words = source.words
    if source.tokens[-1:] == target.tokens[-1:]:
        source_words = source_words[:-1]

    return [joined(source_words), joined(target.words[:-1])]


def joined(words: Sequence[WholeWord]) -> str:
    """The words as one text: no space before most punctuation, nor after an opening bracket."""
    text = ""
    before = ""
    for word in words[:HEADING]:
        if text and not touches(before, word.text):
            text += " "

        text += word.text
        before = word.text

    return text


def touches(before: str, word: str) -> bool:
    """True if no space stands between two words."""
    if BEFORE_A_WORD.fullmatch(before):
        return True
    if SPECIAL.fullmatch(before) or SPECIAL.fullmatch(word):
        return False

    return AFTER_A_WORD.match(word) is not None


def missing_views(look: LookData) -> dict[str, str]:
    """The views that this look has no data for, each with the reason."""
    reasons: dict[str, str] = {}
    tokens = len(look.reading.text.ids)
    if not look.attention:
        reasons |= dict.fromkeys(("head", "heads", "lines"), why_no_attention(look))

    if look.next is None:
        reasons["next"] = NO_TOKENS
        if look.lens is None:
            reasons["lens"] = NO_TOKENS
    elif look.lens is None:
        reasons["lens"] = not_computed("lens", tokens, LENS_MAX_TOKENS)

    if look.norms is None and recurrent(look):
        reasons["norms"] = "An RNN has no residual stream"
    elif look.norms is None:
        reasons["norms"] = not_computed("norms", tokens, NORMS_MAX_TOKENS)

    if not look.walks:
        reasons["walk"] = why_no_walk(look, tokens)

    if look.model_walk is None:
        reasons["model"] = not_computed("model", tokens, MODEL_WALK_MAX_TOKENS)

    if look.attribution is None:
        reasons["attribution"] = why_no_attribution(look, tokens)

    return reasons


def why_no_attention(look: LookData) -> str:
    if recurrent(look) and look.norms is None:
        return "This RNN has no attention"

    return "Attention was not captured (attention=False)"


def why_no_walk(look: LookData, tokens: int) -> str:
    if not look.attention:
        return why_no_attention(look)

    reason = "It was not requested, or this attention does not show its query, key and value"
    if tokens > WALK_MAX_TOKENS:
        reason = f"The text has more than {WALK_MAX_TOKENS} tokens"

    return f"{reason}: use qkv look … --view walk --layer 0 --head 0"


def why_no_attribution(look: LookData, tokens: int) -> str:
    if look.next is None:
        return (
            f"{NO_TOKENS} to explain; for a fine-tuned model, --view attribution explains the score"
        )

    reason = "It was not requested"
    if tokens > ATTRIBUTION_MAX_TOKENS:
        reason = (
            f"By default, attribution is computed up to {ATTRIBUTION_MAX_TOKENS} tokens of text"
        )

    return f"{reason}: use qkv look … --view attribution"


def not_computed(view: str, tokens: int, most: int) -> str:
    reason = "It was not requested"
    if tokens > most:
        reason = f"The text has more than {most:,} tokens"

    return f"{reason}: use qkv look … --view {view}"


def recurrent(look: LookData) -> bool:
    """True for an RNN translator: it has cross-attention alone, or no attention at all."""
    if look.reading.source is None:
        return False

    return all(attention.kind == "cross" for attention in look.attention)
