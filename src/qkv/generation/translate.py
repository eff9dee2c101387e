"""Sentences in, sentences out: those of similar length are translated together, and each knows its
place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from qkv.generation.generate import Translator
from qkv.generation.prompts import texts_of
from qkv.generation.search.beam_search import beam_search
from qkv.generation.search.search_loop import batches, rounded
from qkv.models import RNN, Transformer
from qkv.text.tokenizer import Tokenizer

SIMILAR = 16
"""Sources whose lengths lie in the same multiple of so many tokens may be translated together."""
AT_ONCE = 64
"""Sources that one search gets; it reads fewer of them together, but need not begin as often."""


class Translation(NamedTuple):
    text: str
    score: float
    """What the search ranks by: the log-probability, with the length reckoned in."""
    ids: list[int]


def translate_texts(
    models: Translator,
    tokenizer: Tokenizer,
    texts: str | Sequence[str],
    *,
    length: int | None = None,
    **how: Any,
) -> Iterator[tuple[int, list[Translation]]]:
    """The place of each text and its translations, the best first; the longest texts come first.
    One string is a text at place 0.

    Several models translate together. A translation has at most `length` tokens: unless given,
    twice as many as its source and a few more, rounded, so that it does not depend on what is
    translated beside it. An empty text has an empty translation. The rest is as in `beam_search`.
    """
    if tokenizer.start is None or tokenizer.end is None:
        raise ValueError(
            "tokenizer: a translator needs a start and an end token, and this one lacks them"
        )

    models = models if isinstance(models, Sequence) else [models]
    sources = source_ids(models, tokenizer, texts_of(texts)[0])
    # A start that is no word, such as Marian's padding, is never said.
    never = tuple({tokenizer.start} - {tokenizer.end})
    how = {"start": tokenizer.start, "end": tokenizer.end, "forbidden": never, **how}

    def translations() -> Iterator[tuple[int, list[Translation]]]:
        for chosen in batches(sources, AT_ONCE, similar=SIMILAR):
            size, rows = (
                rounded(len(sources[chosen[0]]), SIMILAR),
                [sources[place] for place in chosen],
            )
            longest = room_for(models, 2 * size + SIMILAR) if length is None else length
            found = beam_search(models, rows, length=longest, **how) if size else [[] for _ in rows]
            for place, hypotheses in zip(chosen, found, strict=True):
                said = [
                    Translation(in_one_line(tokenizer.decode(ids)), score, ids)
                    for ids, score, _ in hypotheses
                ]
                yield place, said or [Translation("", 0.0, [])]

    return translations()


def source_ids(
    models: Sequence[Transformer | RNN], tokenizer: Tokenizer, texts: Sequence[str]
) -> list[list[int]]:
    """What a translator reads of each text: its words and the end; nothing of an empty one."""
    assert tokenizer.end is not None
    sources = [[*ids, tokenizer.end] if ids else [] for ids in tokenizer.encode_batch(texts)]
    room = room_for(models, max(map(len, sources), default=0))

    for number, source in enumerate(sources, start=1):
        if len(source) > room:
            where = f"line {number}" if len(sources) > 1 else "text"
            raise ValueError(
                f"{where}: {len(source):,} tokens are more than the model's context of {room:,}; split the sentence"
            )

    return sources


def room_for(models: Sequence[Transformer | RNN], tokens: int) -> int:
    """So many tokens, or as many as the models have seen in training; an RNN knows no end."""
    return min([tokens, *(each.config.context for each in models if isinstance(each, Transformer))])


def in_one_line(text: str) -> str:
    """A translation is one line, as its source was, whatever the model says."""
    return " ".join(text.split("\n")).strip()
