"""Byte-pair encoding as exercise 8 expects it, and with the mistakes that its checks name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

Pair = tuple[int, int]


def count(ids: Sequence[int]) -> Counter[Pair]:
    return Counter(pairwise(ids))


def replace(ids: Sequence[int], pair: Pair, new: int) -> list[int]:
    """The ids with a new token in place of each pair, from left to right."""
    result: list[int] = []
    waiting = False
    for token in ids:
        if waiting and (result[-1], token) == pair:
            result[-1] = new
            waiting = False
        else:
            result.append(token)
            waiting = True

    return result


def learn(ids: list[int], merges: int, mistake: str = "") -> list[Pair]:
    """The merges of a list of ids; a mistake changes one rule."""
    original = list(ids)
    found: list[Pair] = []
    least = 1 if mistake == "once" else 2
    first_new = 257 if mistake == "from 257" else 256
    for number in range(merges):
        counts = count(original if mistake == "counted once" else ids)
        if mistake == "counted once":
            counts = Counter({pair: n for pair, n in counts.items() if pair not in found})
        if max(counts.values(), default=0) < least:
            break

        best = (min if mistake == "rarest" else max)(counts.values())
        tied = [pair for pair, n in counts.items() if n == best]
        chosen = {"last tie": tied[-1], "largest tie": max(tied), "smallest tie": min(tied)}
        pair = chosen.get(mistake, tied[0])
        found.append(pair)
        if mistake != "not merged":
            ids = replace(ids, pair, first_new + number)

    return found


def apply(ids: list[int], merges: Sequence[Pair], order: Sequence[int], first: int) -> list[int]:
    """The ids after merges in some order; merge n makes the token first + n."""
    for number in order:
        ids = replace(ids, merges[number], first + number)

    return ids


def encoded(text: str, merges: Sequence[Pair]) -> list[int]:
    return apply(list(text.encode()), merges, range(len(merges)), 256)


def pieces(merges: Sequence[Pair]) -> list[bytes]:
    """The bytes of each token."""
    result = [bytes([byte]) for byte in range(256)]
    for first, second in merges:
        result.append(result[first] + result[second])

    return result


def longest_first(text: str, merges: Sequence[Pair]) -> list[int]:
    """The ids if the longest token is taken at each place."""
    known = {piece: token for token, piece in reversed(list(enumerate(pieces(merges))))}
    data = text.encode()
    ids = []
    while data:
        length = max(size for size in range(1, len(data) + 1) if data[:size] in known)
        ids.append(known[data[:length]])
        data = data[length:]

    return ids
