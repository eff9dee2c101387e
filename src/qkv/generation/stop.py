"""When generation stops: end-of-text ids and stop strings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from qkv.text.detokenizer import IncrementalDetokenizer
from qkv.text.tokenizer import Tokenizer


def as_ends(end: int | Sequence[int] | None) -> tuple[int, ...]:
    """The ids that end a sequence; the end id itself is not part of it."""
    if end is None:
        return ()
    if isinstance(end, int | str):
        return (end,)  # a string is refused later, by the argument's name

    return tuple(end)


class StopStringFilter:
    """The text of one row as it is generated, up to the first stop string.

    Text that might be the beginning of a stop string is held back until it is known.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        self.detokenizer = IncrementalDetokenizer(tokenizer)
        self.stop = tuple(stop)
        self.held = ""
        """Text that `take` has not returned."""
        self.ready = 0
        """Number of its characters that `take` may return."""
        self.stopped = False

    def add_token(self, id: int) -> None:
        """Append one token."""
        self.add_text(self.detokenizer.add(id))

    def add_tokens(self, ids: Iterable[int]) -> None:
        """Append several tokens."""
        self.add_text(self.detokenizer.add_all(ids))

    def close(self) -> None:
        """End the text: what was held back is not a stop string."""
        if not self.stopped:
            self.add_text(self.detokenizer.close())

        if not self.stopped:
            self.ready = len(self.held)

    def add_text(self, text: str) -> None:
        self.held += text
        if not self.stop:
            self.ready = len(self.held)
            return

        begin = self.first_stop()
        if begin is None:
            held_back = max(overlap(self.held, stop) for stop in self.stop)
            self.ready = len(self.held) - held_back
        else:
            self.held = self.held[:begin]
            self.ready = begin
            self.stopped = True

    def first_stop(self) -> int | None:
        """Where the stop string begins that is complete first, however much text came at once."""
        matches = []
        for stop in self.stop:
            begin = self.held.find(stop, self.ready)
            if begin >= 0:
                matches.append((begin + len(stop), begin))

        if not matches:
            return None

        _, begin = min(matches)
        return begin

    def take(self) -> str:
        """The text that is certain and has not been taken yet."""
        text = self.held[: self.ready]
        self.held = self.held[self.ready :]
        self.ready = 0
        return text


def overlap(text: str, stop: str) -> int:
    """Characters at the end of the text that begin the stop string, but are not all of it."""
    longest = min(len(text), len(stop) - 1)
    for size in range(longest, 0, -1):
        if text.endswith(stop[:size]):
            return size

    return 0
