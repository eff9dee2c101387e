"""When generation stops: end ids, stop strings, the number of tokens and the context."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

from qkv.text.detokenizer import IncrementalDetokenizer
from qkv.text.tokenizer import Tokenizer

Reason = Literal["end", "stop", "length", "context", "deadline"]
"""Why a sequence ended; only a server has deadlines."""


def as_ends(end: int | Sequence[int] | None) -> tuple[int, ...]:
    """The ids that end a sequence; the end id itself is not part of it."""
    if end is None:
        return ()
    if isinstance(end, int | str):
        return (end,)  # a string is refused later, by the argument's name

    return tuple(end)


class StopRule(NamedTuple):
    """The rule that ends a sequence."""

    ends: tuple[int, ...]
    length: int
    """New tokens at most."""
    context: int | None
    """Positions of the context, if there is an end."""

    def append(
        self,
        sequence: list[int],
        token: int,
        prompt_length: int,
        stops: Callable[[int], bool] | None = None,
    ) -> Reason | None:
        """Append a token, unless it is an end id, and return why the sequence ended, if it did.

        `stops` is called with the token once it is appended, and finds stop strings.
        """
        if token in self.ends:
            return "end"

        sequence.append(token)
        if stops is not None and stops(token):
            return "stop"
        if len(sequence) - prompt_length >= self.length:
            return "length"

        # The last token is not read, so it needs no position.
        if self.context is not None and len(sequence) > self.context:
            return "context"

        return None


class StopStringFilter:
    """The text of one row as it is generated, up to the first stop string.

    Text that might be the beginning of a stop string is held back until it is known.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        self.detokenizer = IncrementalDetokenizer(tokenizer)
        self.stop = tuple(stop)
        self.last = ""
        """The text that the last token completed."""
        self.certain: list[str] = []
        """Text that `take` has not returned."""
        self.held = ""
        """Text after it that might begin a stop string."""
        self.stopped = False

    def add_token(self, id: int) -> bool:
        """Append one token; returns whether a stop string is complete."""
        self.last = self.detokenizer.add(id)
        self.add_text(self.last)
        return self.stopped

    def add_tokens(self, ids: Iterable[int]) -> None:
        """Append several tokens."""
        self.add_text(self.detokenizer.add_all(ids))

    def close(self) -> None:
        """End the text: what was held back is not a stop string."""
        if not self.stopped:
            self.add_text(self.detokenizer.close())

        if not self.stopped:
            self.certain.append(self.held)
            self.held = ""

    def add_text(self, text: str) -> None:
        if not self.stop:
            self.certain.append(text)
            return

        text = self.held + text
        end = self.first_stop(text)
        if end is None:
            end = len(text) - max(overlap(text, stop) for stop in self.stop)
        else:
            self.stopped = True

        self.certain.append(text[:end])
        self.held = text[end:]

    def first_stop(self, text: str) -> int | None:
        """Where the stop string begins that is complete first, however much text came at once."""
        matches = []
        for stop in self.stop:
            begin = text.find(stop)
            if begin >= 0:
                matches.append((begin + len(stop), begin))

        if not matches:
            return None

        _, begin = min(matches)
        return begin

    def take(self) -> str:
        """The text that is certain and has not been taken yet."""
        text = "".join(self.certain)
        self.certain = []
        return text


def overlap(text: str, stop: str) -> int:
    """Characters at the end of the text that begin the stop string, but are not all of it."""
    longest = min(len(text), len(stop) - 1)
    for size in range(longest, 0, -1):
        if text.endswith(stop[:size]):
            return size

    return 0
