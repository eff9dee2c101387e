"""Checks of exercise 8: byte-pair encoding, on small texts in which each mistake shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from qkv.learn.exercises.blocks.byte_pair_reference import (
    Pair,
    apply,
    count,
    encoded,
    learn,
    longest_first,
    pieces,
    replace,
)
from qkv.learn.expectations import Failed, FailingExample, InputDraw, check

MOST_SHOWN = 16
"""Tokens of a list that are drawn."""
TEXTS = ("", "a", "\x00\n", "Grüße, 東京 👩‍🔬", "naïve café", "the cat sat on the mat")


# What is said


def draw_ids(draw: InputDraw, kinds: int = 3) -> list[int]:
    return [int(token) for token in draw.integers(97 + kinds, 3 * draw.size + 2, low=97)]


def draw_text(draw: InputDraw) -> str:
    """A text of few letters, in which pairs come again."""
    return "".join("abé"[token - 97] for token in draw_ids(draw))


def row(name: str, values: Sequence[Any]) -> tuple[str, ...]:
    cells = [str(value) for value in values[:MOST_SHOWN]]
    return (name, *cells, "...") if len(values) > MOST_SHOWN else (name, *cells)


def expect_list(
    found: Any,
    expected: list[Any],
    what: str,
    mistakes: Mapping[str, list[Any]],
    given: Mapping[str, Sequence[Any]],
) -> None:
    """Fail unless a list is the expected one; a known mistake is named."""
    if found is None:
        raise Failed(f"{what}: the function returns None; is a return statement missing?")
    if not isinstance(found, list):
        raise Failed(f"{what}: expected a list, not {type(found).__name__}")
    if found == expected:
        return

    rows = [row(name, values) for name, values in given.items()]
    example = FailingExample(what, (*rows, row("yours", found), row("expected", expected)))
    for message, mistake in mistakes.items():
        if mistake != expected and found == mistake:
            raise Failed(message, example)

    raise Failed(f"{what}: the list is not the expected one", example)


# Checks


@check("count_pairs", "How often each pair of neighbours occurs")
def pairs(mine: ModuleType, draw: InputDraw) -> None:
    for ids in ([], [7], [2, 1, 3, 1, 2], [7, 7, 7], draw_ids(draw)):
        found = mine.count_pairs(list(ids))
        expected = count(ids)
        if not isinstance(found, dict):
            raise Failed(f"count_pairs: expected a dict, not {type(found).__name__}")
        if dict(found) == dict(expected):
            continue

        unordered: Counter[Pair] = Counter()
        for (first, second), number in expected.items():
            unordered[min(first, second), max(first, second)] += number

        known = {
            "count_pairs: in [7, 7, 7] the pair (7, 7) occurs twice: pairs may overlap": Counter(
                dict.fromkeys(expected, 1)
            ),
            "count_pairs: the last pair is missing": count(ids[:-1]),
            "count_pairs: every other pair is counted; pairs may overlap": Counter(
                zip(ids[::2], ids[1::2], strict=False)
            ),
            "count_pairs: (1, 2) and (2, 1) are different pairs": unordered,
            "count_pairs: the last token and the first are not neighbours": count(ids + ids[:1]),
        }
        rows = [row("ids", ids)]
        for pair in {**expected, **found}:
            number, right = found.get(pair, 0), expected[pair]
            rows.append((str(pair), str(right) if number == right else f"{number}, not {right}"))

        example = FailingExample("count_pairs", tuple(rows))
        for message, mistake in known.items():
            if dict(found) == dict(mistake):
                raise Failed(message, example)

        raise Failed("count_pairs: the counts are not the expected ones", example)


def mismerged(ids: list[int], pair: Pair) -> dict[str, list[int]]:
    """What known mistakes make of a list, by what to tell the student."""
    expected = replace(ids, pair, 300)
    from_right = replace(ids[::-1], (pair[1], pair[0]), 300)[::-1]
    second_stays, overlapping = [], []
    for place, token in enumerate(ids):
        here = (token, *ids[place + 1 : place + 2]) == pair
        before = place > 0 and (ids[place - 1], token) == pair
        second_stays.append(300 if here else token)
        if here or not before:
            overlapping.append(300 if here else token)

    first_only = list(ids)
    if 300 in expected:
        place = expected.index(300)
        first_only[place : place + 2] = [300]

    return {
        "merge: nothing is merged; a list never equals a tuple: tuple([1, 2]) == (1, 2)": (
            list(ids)
        ),
        "merge: only the first occurrence is merged": first_only,
        "merge: the second token of a merged pair stays; go on after it": second_stays,
        "merge: occurrences that overlap are merged twice; go on after the pair": (overlapping),
        "merge: pairs are merged from the right; go from left to right": from_right,
        "merge: the last token is lost": expected[:-1],
        "merge: if the list ends with a pair, it is not merged": (
            replace(ids[:-1], pair, 300) + ids[-1:]
        ),
    }


@check("merge", "A new token for each occurrence of a pair, from left to right")
def merged(mine: ModuleType, draw: InputDraw) -> None:
    drawn = draw_ids(draw)
    cases: list[tuple[list[int], Pair]] = [
        ([], (1, 2)),
        ([1, 2], (1, 2)),
        ([1, 2, 3, 1, 2, 1], (1, 2)),
        ([7, 7, 7], (7, 7)),
        ([2, 1, 2, 2], (1, 2)),
        (drawn, (drawn[0], drawn[1])),
    ]
    for ids, pair in cases:
        given = list(ids)
        found = mine.merge(given, pair, 300)
        expected = replace(ids, pair, 300)
        expect_list(
            found,
            expected,
            f"merge of the pair {pair}, new = 300",
            mismerged(ids, pair),
            {"ids": ids},
        )
        if given != ids:
            raise Failed("merge changes the list that it is given; it should make a new list")


def mistrained(text: str, merges: int) -> dict[str, list[Pair]]:
    """Merges that known mistakes learn from a text, by what to tell the student."""
    ids = list(text.encode())
    named = {
        "train: this pair does not occur most often": "rarest",
        "train: if two pairs occur equally often, the one that comes first in the text is "
        "merged": "last tie",
        "train: if two pairs occur equally often, the one that comes first in the text is "
        "merged, not that with the largest ids": "largest tie",
        "train: if two pairs occur equally often, the one that comes first in the text is "
        "merged, not that with the smallest ids": "smallest tie",
        "train: the same pair comes again and again; merge it before the next count": (
            "not merged"
        ),
        "train: all merges are taken from the first count; count again after each": (
            "counted once"
        ),
        "train: a pair that occurs once is not merged": "once",
        "train: the first new token must be token 256": "from 257",
    }
    mistakes = {what: learn(ids, merges, mistake) for what, mistake in named.items()}
    characters = [ord(character) for character in text]
    mistakes["train: the ids are those of characters; begin with the bytes of UTF-8"] = learn(
        characters, merges
    )
    mistakes["train: the text is stripped; white space at its ends belongs to it, too"] = learn(
        list(text.strip().encode()), merges
    )
    mistakes["train: one merge too many"] = learn(ids, merges + 1)
    mistakes["train: one merge is missing"] = learn(ids, merges - 1)
    return mistakes


@check("train", "Each time the pair that occurs most often; of equals the first in the text")
def trained(mine: ModuleType, draw: InputDraw) -> None:
    # Small texts in which single rules show, then a drawn one
    texts = [
        "",
        "ab",
        "abab",
        " a a",
        "a\na\n",
        "babaxaxa",
        "xyxyzz zz",
        "aaabdaaabac",
        "éèéè",
        draw_text(draw),
    ]
    for text in texts:
        for merges in (1, 2, 3, 3 * draw.size):
            ids = list(text.encode())
            try:
                found = mine.train(text, merges)
            except (ValueError, IndexError) as error:
                raise Failed(
                    f"train({text!r}, {merges}) stops with {type(error).__name__}: {error}; is "
                    "there a pair at all?"
                ) from error

            expect_list(
                found,
                learn(ids, merges),
                f"train({text!r}, {merges})",
                mistrained(text, merges),
                {"bytes": ids},
            )


@check("encode", "The merges, applied to the bytes in their order")
def applied(mine: ModuleType, draw: InputDraw) -> None:
    drawn = learn(list(draw_text(draw).encode()), 2 * draw.size)
    cases: list[tuple[str, list[Pair]]] = [
        ("", []),
        ("abab", [(97, 98)]),
        ("ababab", [(97, 98), (256, 256)]),
        # The longest token, abc, cannot be reached: b goes to bc first.
        ("abcabc", [(98, 99), (97, 98), (257, 99)]),
        ("xyxyab", [(97, 98)]),
        (" ab\n", [(97, 98)]),
        ("éé", [(0xC3, 0xA9), (256, 256)]),
        (draw_text(draw), drawn),
    ]
    for text, merges in cases:
        data = list(text.encode())
        order = range(len(merges))
        given = list(merges)
        found = mine.encode(text, given)
        expect_list(
            found,
            encoded(text, merges),
            f"encode({text!r})",
            {
                "encode: these are the bytes alone; no merge is applied": data,
                "encode: merge number n makes token 256 + n; here the first one is 257": (
                    apply(data, merges, order, 257)
                ),
                "encode: the merges are applied in the reverse of their order": (
                    apply(data, merges, order[::-1], 256)
                ),
                "encode: the longest token is taken at each place; apply the merges in their "
                "order": longest_first(text, merges),
                "encode: the text is stripped; white space at its ends belongs to it, too": (
                    encoded(text.strip(), merges)
                ),
                "encode: merges are learned from this text; apply the given merges": (
                    encoded(text, learn(data, len(merges)))
                ),
                "encode: the ids are those of characters; begin with the bytes of UTF-8": (
                    apply([ord(character) for character in text], merges, order, 256)
                ),
            },
            {"bytes": data, "merges": merges},
        )
        if given != merges:
            raise Failed("encode changes the list of merges; the caller still needs it")


@check("decode", "The bytes of the tokens, joined, as text")
def decoded(mine: ModuleType, draw: InputDraw) -> None:
    merges = learn(list(draw_text(draw).encode()), 3 * draw.size)
    nested = [(97, 98), (256, 256), (257, 99)]
    cases = [("abab", nested), ("ababcab", nested), (draw_text(draw), merges)]
    for text in TEXTS:
        cases.append((text, merges))

    for text, known in cases:
        ids = encoded(text, known)
        data = pieces(known)
        try:
            found = mine.decode(list(ids), list(known))
        except UnicodeDecodeError as error:
            raise Failed(
                f"decode of {text!r}: join the bytes of all tokens before you decode them: {error}"
            ) from error

        swapped = pieces([])
        for first, second in known:
            swapped.append(swapped[second] + swapped[first])

        apart = "".join(data[token].decode(errors="replace") for token in ids)
        latin = b"".join(data[token] for token in ids).decode("latin-1")
        expect_text(
            found,
            text,
            ids,
            {
                "decode: a character may need the bytes of two tokens; join the bytes first": apart,
                "decode: each byte becomes a character of its own; the bytes are UTF-8": latin,
                "decode: the two parts of a merged token are swapped": (
                    b"".join(swapped[token] for token in ids).decode(errors="replace")
                ),
            },
        )


@check("decode", "A character that is cut in the middle does not stop it")
def cut_characters(mine: ModuleType, draw: InputDraw) -> None:
    ids = [*b"a" * draw.size, 0xC3, *b"b"]
    text = "a" * draw.size + "\ufffdb"
    try:
        found = mine.decode(list(ids), [])
    except UnicodeDecodeError as error:
        raise Failed(
            "decode: bytes that are not UTF-8 stop it; a model may write such tokens: "
            f'use errors="replace" ({error})'
        ) from error

    expect_text(
        found, text, ids, {"decode: bytes that are not UTF-8 vanish": text.replace("\ufffd", "")}
    )


def expect_text(found: Any, expected: str, ids: list[int], mistakes: Mapping[str, str]) -> None:
    """Fail unless a decoded text is the expected one; a known mistake is named."""
    if not isinstance(found, str):
        raise Failed(f"decode: expected a str, not {type(found).__name__}")
    if found == expected:
        return

    shown = FailingExample("decode", (row("ids", ids), ("yours", found), ("expected", expected)))
    for message, mistake in mistakes.items():
        if mistake != expected and found == mistake:
            raise Failed(message, shown)

    raise Failed(f"decode: the text is {found[:40]!r}; expected {expected[:40]!r}", shown)


@check("decode", "encode and decode give any text back")
def round_trip(mine: ModuleType, draw: InputDraw) -> None:
    merges = mine.train(" ".join(TEXTS) * 2, 10 * draw.size)
    for text in (*TEXTS, draw_text(draw)):
        ids = mine.encode(text, merges)
        expect_text(mine.decode(ids, merges), text, ids, {})
