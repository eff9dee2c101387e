"""What a page says in words: the text in its heading, and of each view that is not there why."""

from __future__ import annotations

import re
from collections.abc import Sequence

from qkv.insight.inspect.whole_words import WholeWord
from qkv.insight.look import BRIEF, MIDDLING, SHORT, Look

HEADING = 60
"""So many words of a text stand in the heading."""

NAMED = re.compile(r"[\[<].+[\]>]", re.DOTALL)
"""A special token, such as [SEP]: no bracket of the text."""
AFTER_A_WORD = re.compile(r"[,.;:!?%)\]}'’”»…(\[{↵⇥]")
BEFORE_A_WORD = re.compile(r".*[(\[{]", re.DOTALL)


def heading(look: Look) -> list[str]:
    """The text; of a translation the source, then the target, without the marks of their ends."""
    source, chosen = look.reading.source, look.reading.chosen
    if source is None or chosen is None:
        return [joined(look.reading.text.words)]

    ended = source.tokens[-1:] == chosen.tokens[-1:]

    return [joined(source.words[: -1 if ended else None]), joined(chosen.words[:-1])]


def joined(words: Sequence[WholeWord]) -> str:
    """A word that begins with a letter was parted from the one before; most signs stand at a word."""
    text, before = "", ""
    for each in (word.text for word in words[:HEADING]):
        close = (
            AFTER_A_WORD.match(each) and not NAMED.fullmatch(each) and not NAMED.fullmatch(before)
        )
        opened = BEFORE_A_WORD.fullmatch(before)
        text += each if not text or close or opened else f" {each}"
        before = each

    return text


def lacking(look: Look) -> dict[str, str]:
    """The views that this look has nothing for, each with the reason."""
    found: dict[str, str] = {}
    tokens = len(look.reading.text.ids)
    speechless = "An encoder alone says no words"
    if not look.attention:
        none = "This RNN has no attention: no word of it looks at another"
        why = (
            none
            if recurrent(look) and look.norms is None
            else "Attention was not captured (attention=False)"
        )
        found |= dict.fromkeys(("head", "heads", "lines"), why)

    if look.next is None:
        found["next"] = speechless

    if look.lens is None:
        found["lens"] = speechless if look.next is None else made_by("lens", tokens, SHORT)

    if look.norms is None:
        found["norms"] = (
            "An RNN has no residual stream"
            if recurrent(look)
            else made_by("norms", tokens, MIDDLING)
        )

    if look.attribution is None:
        known = (
            f"Attribution is made for texts of up to {BRIEF} tokens"
            if tokens > BRIEF
            else "It was not asked for"
        )
        found["attribution"] = f"{known}: qkv look … --view attribution makes it"
        if look.next is None:
            found["attribution"] = (
                f"{speechless} to explain; of a fine-tuned one --view attribution explains the score"
            )

    return found


def made_by(view: str, tokens: int, most: int) -> str:
    known = f"The text has more than {most:,} tokens" if tokens > most else "It was not asked for"
    return f"{known}: qkv look … --view {view} makes it"


def recurrent(look: Look) -> bool:
    """A translator whose words look at the source alone, or at nothing, is an RNN."""
    return look.reading.source is not None and {each.kind for each in look.attention} <= {"cross"}
