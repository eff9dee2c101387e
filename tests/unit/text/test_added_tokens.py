"""Added tokens are found where the library `tokenizers` finds them, in linear time."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken

from qkv.text import Tokenizer, added_tokens, train
from qkv.text.added_tokens import EACH_SPACE, SPACES, added_tokens_of, any_of
from qkv.text.chat_template import Message, encode_chat

NAMES = ["<a>", "<a>b", "<ab>", "b>", "end", " x", "<\n>"]
PARTS = [
    *NAMES,
    "<",
    ">",
    "a",
    "b",
    "_",
    "é",
    " ",
    "  ",
    "\n",
    "\t",
    "\u00a0",
    "\u2003",
    "\x1c",
    ".",
]


TRAINED = train("byte-pair", ["abc"], 261).inner.to_str()


def tokenizer_with(added: list[AddedToken], template: str = "") -> Tokenizer:
    inner = tokenizers.Tokenizer.from_str(TRAINED)
    inner.add_tokens(added)
    return Tokenizer(inner, {"chat_template": template})


def by_library(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the library's ids, with special tokens recognised in the text."""
    tokenizer.inner.encode_special_tokens = False
    try:
        return list(tokenizer.inner.encode(text, add_special_tokens=False).ids)
    finally:
        tokenizer.inner.encode_special_tokens = True


@pytest.mark.parametrize("seed", range(8))
def test_random_texts_with_random_tokens_have_the_ids_of_the_library(seed: int) -> None:
    """Any mixture of lstrip, rstrip, single_word, normalized and special, with shared prefixes."""
    rng = random.Random(seed)

    def flip() -> bool:
        return rng.random() < 0.4

    names = rng.sample(NAMES, 4)
    added = [
        AddedToken(
            name,
            lstrip=flip(),
            rstrip=flip(),
            single_word=flip(),
            normalized=flip(),
            special=flip(),
        )
        for name in names
    ]
    actual = 0
    inner = tokenizer_with(added).inner
    for _ in range(40):
        text = "".join(rng.choices(PARTS, k=rng.randrange(1, 12)))
        tokenizer = Tokenizer(inner, {"chat_template": "{{ " + json.dumps(text) + " }}"})
        expected = by_library(tokenizer, text)
        assert encode_chat(tokenizer, [Message(role="user", content="")]) == expected, (text, added)
        actual += len(added_tokens_of(tokenizer).find(text))

    assert actual > 10


def test_white_space_is_that_of_unicode() -> None:
    """Python's \\s also has the four separators of ASCII, which the library does not strip."""
    tokenizer = tokenizer_with([AddedToken("<a>", lstrip=True, rstrip=True, normalized=False)])
    for character in map(
        chr, [*range(0x300), *range(0x1680, 0x1690), *range(0x2000, 0x2070), 0x3000, 0xFEFF]
    ):
        stripped = by_library(tokenizer, f"{character}<a>{character}") == [tokenizer.id("<a>")]
        assert stripped == (character in EACH_SPACE) == bool(SPACES.fullmatch(character)), hex(
            ord(character)
        )


def test_quoted_tokens_are_not_found() -> None:
    tokenizer = tokenizer_with(
        [AddedToken("<a>", lstrip=True, single_word=True), AddedToken("<b>")]
    )
    known = added_tokens_of(tokenizer)
    quotes = ("\ufdd0", "\ufdd1")
    text = known.quoted("x <a> <b>", quotes) + " <a>"
    assert text == "x \ufdd0<a>\ufdd1 \ufdd0<b>\ufdd1 <a>"
    assert [(text[item.begin : item.end], item.id) for item in known.find(text, quotes)] == [
        (" <a>", tokenizer.id("<a>"))
    ]
    after_a_word = "x\ufdd1<a>"  # the quote is no part of the text
    assert known.find(after_a_word, quotes) == []


def test_a_run_of_spaces_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pattern repeats anything, so a search is linear in the text."""
    sizes: list[int] = []
    real = added_tokens.with_spaces

    def counted(match: Any, text: str, last: int, end: int, token: AddedToken) -> tuple[int, int]:
        sizes.append(match.start() - last)
        start, stop = real(match, text, last, end, token)
        sizes.append(stop - match.end())
        return start, stop

    monkeypatch.setattr(added_tokens, "with_spaces", counted)
    added = [AddedToken(name, lstrip=True, rstrip=True) for name in ("<a>", "<ab>")]
    tokenizer = tokenizer_with(added, "{{ messages[0].content }}<a>")
    content = " " * 300_000 + "x" + " \n" * 100_000
    ids = encode_chat(tokenizer, [Message(role="user", content=content)])
    assert ids[-1] == tokenizer.id("<a>")
    assert ids[:-1] == tokenizer.encode_as_text(content.rstrip())
    known = added_tokens_of(tokenizer)
    assert not repeats(known.any)
    text = ("<a>" + " " * 50) * 2000
    sizes.clear()
    assert len(known.find(text)) == 2000
    assert sum(sizes) <= len(text)


def repeats(pattern: str) -> bool:
    return any(sign in re.sub(r"\\.", "", pattern) for sign in "*+{")


def test_thousands_of_tokens_are_one_trie() -> None:
    names = [f"<unused{number}>" for number in range(3000)]
    rng = random.Random(0)
    pattern = re.compile(any_of(["[a]", "[ab]", "[a", *names]))
    assert pattern.pattern.count("<") == 1
    for name in rng.sample(names, 50):
        assert pattern.findall(f"<<unused{name}[ab[a]") == [name, "[a", "[a]"]


def test_a_token_of_any_length_is_one_chain() -> None:
    long = "<" + "x" * 5000 + ">"
    assert re.fullmatch(any_of([long, long + "y"]), long + "y")
