"""Added tokens in a text, where the library `tokenizers` finds them, in time linear in the text.

A regular expression with `\\s*` before a token (lstrip) is quadratic in a run of spaces: it starts
anew at each one. Here only the tokens themselves are searched for, and the spaces beside a token
are looked at once. The tokens form a trie, so that thousands of them cost little more than one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from tokenizers import AddedToken

from qkv.text.tokenizer import Tokenizer

SPACES = re.compile("[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]*")
"""Unicode's White_Space, which is `\\s` in Rust."""
EACH_SPACE = "".join(
    character for character in map(chr, range(0x3001)) if SPACES.fullmatch(character)
)
QUOTES = 4  # in a row at most, beside a marker


class AddedTokenMatch(NamedTuple):
    """An added token in a text, with the spaces that it takes along."""

    begin: int
    end: int
    id: int


@lru_cache(maxsize=8)
def added_tokens_of(tokenizer: Tokenizer) -> AddedTokens:
    return AddedTokens(tokenizer)


class AddedTokens:
    """The markers of one tokenizer: see `Tokenizer.markers`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.known = tokenizer.markers
        self.any = any_of(self.known)
        self.by_normalized = {
            normalized: any_of(
                name for name, (_, token) in self.known.items() if token.normalized == normalized
            )
            for normalized in (False, True)
        }

        self.beginnings = tuple({name[:cut] for name in self.known for cut in range(1, len(name))})
        self.endings = tuple({name[cut:] for name in self.known for cut in range(1, len(name))})
        self.longest = max(map(len, self.known), default=0)

    def quoted(self, text: str, quotes: tuple[str, str]) -> str:
        """The text with quotes around each marker that is spelled in it."""
        return re.sub(self.any, lambda match: quotes[0] + match[0] + quotes[1], text)

    def find(self, text: str, quotes: tuple[str, str] | None = None) -> list[AddedTokenMatch]:
        """All markers of a text from left to right, but not those between `quotes`.

        As in the library, tokens that are not normalized are found first, and the others in what is
        left between them.
        """
        found: list[AddedTokenMatch] = []
        for normalized in (False, True):
            pattern = f"({self.by_normalized[normalized]})"
            if quotes is not None:
                pattern = f"{quotes[0]}{self.any}{quotes[1]}|{pattern}"

            gaps = [0, *(border for each in found for border in each[:2]), len(text)]
            for begin, end in zip(gaps[::2], gaps[1::2], strict=True):
                matches = re.compile(pattern).finditer(text, begin, end)
                found += self.found(matches, text, begin, end, "".join(quotes or ()))

            found.sort()

        return found

    def found(
        self, matches: Iterable[re.Match[str]], text: str, begin: int, end: int, quotes: str
    ) -> Iterator[AddedTokenMatch]:
        """What the matches between `begin` and `end` are, by the library's rules for each token."""
        last = begin
        for match in matches:
            if match[1] is None:  # quoted
                continue

            id, token = self.known[match[1]]
            if token.single_word and not stands_alone(match, text, begin, end, quotes):
                continue

            start, stop = with_spaces(match, text, last, end, token)
            yield AddedTokenMatch(start, stop, id)
            last = stop


def any_of(names: Iterable[str]) -> str:
    """A pattern of any of the names, the longest where several begin."""
    trie: dict[str, Any] = {}
    for name in names:
        node = trie
        for character in name:
            node = node.setdefault(character, {})

        node[""] = {}

    return written(trie) or "(?!)"


def written(node: dict[str, Any]) -> str:
    """A node of the trie as a pattern; a chain without branches needs no recursion."""
    chain = ""
    while len(node) == 1 and "" not in node:
        ((character, node),) = node.items()
        chain += re.escape(character)

    branches = [
        re.escape(character) + written(child) for character, child in node.items() if character
    ]

    return chain + (f"(?:{'|'.join(branches)})" + "?" * ("" in node) if branches else "")


def with_spaces(
    match: re.Match[str], text: str, last: int, end: int, token: AddedToken
) -> tuple[int, int]:
    """Where a token begins and ends that may take the spaces beside it along, between `last` and
    `end`.
    """
    start, stop = max(match.start(), last), match.end()
    if token.lstrip:
        start = last + len(text[last:start].rstrip(EACH_SPACE))

    if token.rstrip and (spaces := SPACES.match(text, stop, end)) is not None:
        stop = spaces.end()

    return start, max(stop, start)


def stands_alone(match: re.Match[str], text: str, begin: int, end: int, quotes: str) -> bool:
    """Whether there is a letter, digit or underscore on neither side of a match; quotes are not
    looked at.
    """
    before = text[max(begin, match.start() - QUOTES) : match.start()]
    after = text[match.end() : min(end, match.end() + QUOTES)]
    if quotes:
        before, after = before.rstrip(quotes), after.lstrip(quotes)

    return not re.search(r"\w\Z", before) and not re.match(r"\w", after)
