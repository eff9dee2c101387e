"""Find added tokens in a text exactly where the library `tokenizers` does, in linear time.

A regular expression with `\\s*` before a token (lstrip) is quadratic in a run of spaces, since it
starts again at each one. Here only the tokens are searched for, and the spaces beside a match are
scanned once. The tokens form a trie, so that thousands of them cost little more than one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from tokenizers import AddedToken

from qkv.text.tokenizer import Tokenizer

SPACES = re.compile("[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]*")
"""Unicode's White_Space, which is `\\s` in Rust but differs from `\\s` in Python."""
EACH_SPACE = "".join(sign for sign in map(chr, range(0x3001)) if SPACES.fullmatch(sign))
QUOTES = 4
"""Quotes that can stand in a row beside a token."""


class AddedTokenMatch(NamedTuple):
    """An added token in a text, with the spaces that it absorbs."""

    begin: int
    end: int
    id: int


@lru_cache(maxsize=8)
def added_tokens_of(tokenizer: Tokenizer) -> AddedTokens:
    """Return the matcher of a tokenizer; building it takes longer than using it."""
    return AddedTokens(tokenizer)


class AddedTokens:
    """Matches the added tokens of one tokenizer; see `Tokenizer.added_tokens`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.known = tokenizer.added_tokens
        self.any = any_of(self.known)
        self.patterns = {False: self.pattern(False), True: self.pattern(True)}
        """By `normalized`: the library matches the two groups one after the other."""

        # Parts of tokens, which text around a message could complete.
        beginnings = set()
        endings = set()
        for name in self.known:
            for cut in range(1, len(name)):
                beginnings.add(name[:cut])
                endings.add(name[cut:])

        self.beginnings = tuple(beginnings)
        self.endings = tuple(endings)
        self.longest = max(map(len, self.known), default=0)

    def pattern(self, normalized: bool) -> str:
        names = [name for name, (_, token) in self.known.items() if token.normalized == normalized]
        return any_of(names)

    def quoted(self, text: str, quotes: tuple[str, str]) -> str:
        """Return the text with quotes around every added token that it spells."""
        return re.sub(self.any, lambda match: quotes[0] + match[0] + quotes[1], text)

    def find(self, text: str, quotes: tuple[str, str] | None = None) -> list[AddedTokenMatch]:
        """Return all added tokens of a text from left to right, except those between `quotes`.

        As in the library, tokens that are not normalized are matched first, and the others only in
        the gaps between them.
        """
        matches: list[AddedTokenMatch] = []
        for normalized in (False, True):
            pattern = f"({self.patterns[normalized]})"
            if quotes is not None:  # a quoted token matches without the group
                pattern = f"{quotes[0]}{self.any}{quotes[1]}|{pattern}"

            compiled = re.compile(pattern)
            for begin, end in gaps_between(matches, len(text)):
                candidates = compiled.finditer(text, begin, end)
                matches += self.accepted(candidates, text, begin, end, "".join(quotes or ()))

            matches.sort()

        return matches

    def accepted(
        self, candidates: Iterable[re.Match[str]], text: str, begin: int, end: int, quotes: str
    ) -> Iterator[AddedTokenMatch]:
        """Yield the candidates between `begin` and `end` that the library's rules accept."""
        last = begin
        for match in candidates:
            if match[1] is None:  # quoted
                continue

            id, token = self.known[match[1]]
            if token.single_word and not is_whole_word(match, text, begin, end, quotes):
                continue

            start, stop = with_spaces(match, text, last, end, token)
            yield AddedTokenMatch(start, stop, id)
            last = stop


def gaps_between(matches: list[AddedTokenMatch], length: int) -> list[tuple[int, int]]:
    """Return begin and end of the text before, between and after sorted matches."""
    gaps = []
    begin = 0
    for match in matches:
        gaps.append((begin, match.begin))
        begin = match.end

    gaps.append((begin, length))
    return gaps


def any_of(names: Iterable[str]) -> str:
    """Return a pattern of any of the names, the longest where several match."""
    trie: dict[str, Any] = {}
    for name in names:
        node = trie
        for character in name:
            node = node.setdefault(character, {})

        node[""] = {}

    return pattern_of(trie) or "(?!)"


def pattern_of(node: dict[str, Any]) -> str:
    """Return a trie's node as a pattern; a chain without branches needs no recursion."""
    chain = ""
    while len(node) == 1 and "" not in node:
        ((character, node),) = node.items()
        chain += re.escape(character)

    branches = []
    for character, child in node.items():
        if character:
            branches.append(re.escape(character) + pattern_of(child))

    if not branches:
        return chain

    pattern = f"{chain}(?:{'|'.join(branches)})"
    if "" in node:  # a name ends here, and a longer one goes on
        pattern += "?"

    return pattern


def with_spaces(
    match: re.Match[str], text: str, last: int, end: int, token: AddedToken
) -> tuple[int, int]:
    """Return begin and end of a match, with the spaces between `last` and `end` it absorbs."""
    start = max(match.start(), last)
    stop = match.end()
    if token.lstrip:
        start = last + len(text[last:start].rstrip(EACH_SPACE))

    if token.rstrip and (spaces := SPACES.match(text, stop, end)) is not None:
        stop = spaces.end()

    return start, max(stop, start)


def is_whole_word(match: re.Match[str], text: str, begin: int, end: int, quotes: str) -> bool:
    """Return whether no letter, digit or underscore is beside a match; quotes are skipped."""
    before = text[max(begin, match.start() - QUOTES) : match.start()]
    after = text[match.end() : min(end, match.end() + QUOTES)]
    if quotes:
        before = before.rstrip(quotes)
        after = after.lstrip(quotes)

    return not re.search(r"\w\Z", before) and not re.match(r"\w", after)
