"""Text in, text out: a prompt becomes ids, and what a model says becomes text again, piece by
piece.

What is returned is the pieces that were streamed, put together; there is no other way to text.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, overload

from qkv.generation.generate import stream
from qkv.generation.generation_batch import Reason
from qkv.generation.prompts import Arrays, TextPrompts, check_text, text_rows, texts_of
from qkv.models import GPT
from qkv.text.detokenizer import IncrementalDetokenizer
from qkv.text.tokenizer import Tokenizer, beginning


class TextChunk(NamedTuple):
    row: int
    text: str
    """Whole characters that are never taken back; it may be empty."""
    reason: Reason | None
    """Why this is the row's last piece; None when it is not."""


def stream_text(
    model: GPT,
    tokenizer: Tokenizer,
    prompts: TextPrompts,
    *,
    length: int,
    stop: str | Sequence[str] = (),
    end: int | Sequence[int] | None = None,
    **how: Any,
) -> Iterator[TextChunk]:
    """What the model says after each prompt, as it says it. Row r * samples + s is sample s of
    prompt r.

    A row ends before the first stop string, of which nothing is ever said; there may be one or
    several. `end` is the tokenizer's unless given. A prompt is text, or the ids of a chat; one
    prompt alone is row 0. The rest is as in `decode.stream`.
    """
    stop, _ = texts_of(stop, "stop")
    if any(not each for each in stop):
        raise ValueError("stop: expected a text of one character or more, not an empty one")

    ids = [
        prompt_ids(tokenizer, row) if isinstance(row, str) else row
        for row in text_rows(prompts).rows
    ]
    rows: dict[int, StopStringFilter] = defaultdict(lambda: StopStringFilter(tokenizer, stop))

    def stopped(row: int, said: list[int]) -> bool:
        rows[row].hear(said[-1])
        return rows[row].stopped

    words = stream(
        model,
        ids,
        length=length,
        end=tokenizer.end if end is None else end,
        stop=stopped if stop else None,
        **how,
    )

    def pieces() -> Iterator[TextChunk]:
        for word in words:
            speaker = rows[word.row]
            if not stop and word.id is not None:
                speaker.hear(word.id)

            if word.reason is not None:
                speaker.close()

            reason = "stop" if speaker.stopped and word.reason else word.reason
            yield TextChunk(word.row, speaker.take(), reason)

    return pieces()


@overload
def complete(
    model: GPT,
    tokenizer: Tokenizer,
    prompts: str | Sequence[int],
    *,
    samples: None = None,
    **how: Any,
) -> str: ...
@overload
def complete(
    model: GPT, tokenizer: Tokenizer, prompts: str | Sequence[int], *, samples: int, **how: Any
) -> list[str]: ...
@overload
def complete(
    model: GPT,
    tokenizer: Tokenizer,
    prompts: Sequence[str] | Sequence[Sequence[int]] | Sequence[str | Sequence[int]],
    *,
    samples: int | None = None,
    **how: Any,
) -> list[str]: ...
@overload
def complete(
    model: GPT,
    tokenizer: Tokenizer,
    prompts: Arrays,
    *,
    samples: int | None = None,
    **how: Any,
) -> Any: ...
def complete(
    model: GPT,
    tokenizer: Tokenizer,
    prompts: TextPrompts,
    *,
    samples: int | None = None,
    **how: Any,
) -> str | list[str]:
    """What the model says after each prompt, without the prompt: the texts of `stream_text`, each
    whole.

    One prompt, a string or a flat list of ids, gives one string; a list of prompts gives a list.
    With `samples`, be it 1, a list is given in any case, of `samples` texts for each prompt.
    """
    rows, single = text_rows(prompts)
    texts = [""] * (len(rows) * max(0, 1 if samples is None else samples))

    for piece in stream_text(model, tokenizer, rows or prompts, samples=samples, **how):
        texts[piece.row] += piece.text

    return texts[0] if single and samples is None else texts


def prompt_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a prompt: with the start id before it where the tokenizer says so; of an empty
    one, a text's begin.
    """
    check_text(text, "prompt")
    ids = tokenizer.encode(text)
    if tokenizer.starts_texts and tokenizer.start is not None:
        return [tokenizer.start, *ids]
    if ids:
        return ids

    begin = beginning(tokenizer)
    if begin is None:
        raise ValueError(
            "prompt: it is empty, and this tokenizer has no start or end token to begin with; say a word"
        )

    return [begin]


class StopStringFilter:
    """One row's text: what may be said of it by now, and what might be the beginning of a stop
    string.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        self.stream, self.stop = IncrementalDetokenizer(tokenizer), tuple(stop)
        self.held = ""
        self.settled = 0
        """So much of what is held is said with the next piece."""
        self.stopped = False

    def hear(self, id: int) -> None:
        self.add(self.stream.add(id))

    def hear_all(self, ids: Iterable[int]) -> None:
        self.add(self.stream.add_all(ids))

    def close(self) -> None:
        if not self.stopped:
            self.add(self.stream.close())

        if not self.stopped:
            self.settled = len(self.held)

    def add(self, text: str) -> None:
        self.held += text
        if not self.stop:
            self.settled = len(self.held)
            return

        found = [
            (place + len(each), place)
            for each in self.stop
            if (place := self.held.find(each, self.settled)) >= 0
        ]
        if found:  # the one that is whole first, however many characters came at once
            _, place = min(found)
            self.held, self.settled, self.stopped = self.held[:place], place, True
        else:
            self.settled = len(self.held) - max(
                (overlap(self.held, each) for each in self.stop), default=0
            )

    def take(self) -> str:
        text, self.held = self.held[: self.settled], self.held[self.settled :]
        self.settled = 0
        return text


def overlap(text: str, stop: str) -> int:
    """How many characters at the end of the text are the beginning of the stop string, though not
    all of it.
    """
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
