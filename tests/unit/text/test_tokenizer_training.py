"""Training tokenizers: round trips, the order of tokens, and the same result every time."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.text import Kind, Tokenizer, train
from qkv.text.training_sample import LONGEST_PIECE, OVERHEAD, cut, sample
from support.sentences import ODD, SENTENCES, SIZES

BYTE_PAIRS = train("byte-pair", SENTENCES, 320)
CHARACTERS = train("characters", SENTENCES, 200)
WORDS = train("words", SENTENCES, 200)


@given(st.text())
def test_byte_pairs_bring_back_any_text(text: str) -> None:
    assert BYTE_PAIRS.decode(BYTE_PAIRS.encode(text)) == text


@pytest.mark.parametrize("text", SENTENCES + ODD)
def test_byte_pairs_bring_back_odd_texts(text: str) -> None:
    ids = BYTE_PAIRS.encode(text)
    assert BYTE_PAIRS.decode(ids) == text
    assert not set(ids) & set(range(5)), "no text is a special token"


@given(st.text(alphabet=sorted(set("".join(SENTENCES)))))
def test_characters_bring_back_what_they_know(text: str) -> None:
    ids = CHARACTERS.encode(text)
    assert len(ids) == len(text)
    assert CHARACTERS.decode(ids) == text


def test_characters_keep_every_space_and_line() -> None:
    text = " \n\n a\t\tb \r\n  c\n"
    tokenizer = train("characters", [text], 20)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert [tokenizer.token(id) for id in tokenizer.encode(text)] == list(text)


@pytest.mark.parametrize("kind", ["words", "word-piece"])
@pytest.mark.parametrize(
    "text",
    [
        *SENTENCES,
        "Wait... what?! No; yes: (a, [b], {c}).",
        '"Hello," she said, "don\'t say \'never\' again."',
        "(\"quoted in brackets\") and the cats' tails; 'tis so.",
        "it costs 1,000.50 at 10:30, state-of-the-art",
        "«Evet», dedi. ¿Qué? ¡Sí!",
    ],
)
def test_words_and_punctuation_come_back(kind: Kind, text: str) -> None:
    tokenizer = train(kind, [text], 500)
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(
    st.lists(st.sampled_from(["cat", "dog", "kuş", "don't", "3.14", "İzmir"]), min_size=1),
    st.data(),
)
def test_words_with_punctuation_behind_them_come_back(
    sentence: list[str], data: st.DataObject
) -> None:
    text = " ".join(
        part + data.draw(st.sampled_from(["", ",", ".", "!", "?", ";", ":", "...", ")"]))
        for part in sentence
    )
    tokenizer = train("words", [text], 100)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_curly_quotation_marks_are_the_straight_ones() -> None:
    assert WORDS.encode("cats chase mice, don’t they?") == WORDS.encode(
        "cats chase mice, don't they?"
    )
    tokenizer = train("words", ['He said "yes".'], 20)
    assert tokenizer.encode("He said “yes”.") == tokenizer.encode('He said "yes".')
    assert tokenizer.decode(tokenizer.encode("He said “yes”.")) == 'He said "yes".'


def test_a_letter_and_its_accent_are_one_letter_to_words() -> None:
    tokenizer = train("words", ["kuş"], 20)
    assert tokenizer.encode("kus\u0327") == tokenizer.encode("kuş")


def test_words_are_whole_words() -> None:
    ids = WORDS.encode("Cats, cats chase mice")
    assert [WORDS.token(id) for id in ids] == ["[unknown]", ",", "cats", "chase", "mice"]
    assert WORDS.decode(ids) == "[unknown], cats chase mice"


def test_the_most_frequent_words_come_first() -> None:
    texts = ["b b b a a c c d", "e e e e"]
    tokenizer = train("words", texts, 8)
    assert [tokenizer.token(id) for id in range(5, 8)] == [
        "e",
        "b",
        "a",
    ]  # of a and c, the first in the alphabet
    assert tokenizer.encode("a b c d e") == [7, 6, 1, 1, 5]


@given(st.text(alphabet="abcde \n", min_size=1), st.integers(6, 14))
def test_the_most_frequent_characters_come_first(text: str, vocabulary: int) -> None:
    tokenizer = train("characters", [text], vocabulary)
    counts = Counter(text)
    learned = [tokenizer.token(id) for id in range(5, tokenizer.vocabulary)]
    assert len(learned) == min(len(counts), vocabulary - 5)
    assert (
        learned
        == sorted(counts, key=lambda character: (-counts[character], character))[: vocabulary - 5]
    )


def test_byte_pairs_merge_the_most_frequent_pair_first() -> None:
    tokenizer = train("byte-pair", ["low low low low lower lower newest newest"], 5 + 256 + 3)
    assert [tokenizer.token(id) for id in range(261, 264)] == ["lo", "low", "Ġlow"]


def test_byte_pairs_stay_within_gpt2s_words() -> None:
    """Letters, digits and punctuation are not merged with each other, nor a trailing space."""
    tokenizer = train("byte-pair", ["abc123!? abc123!? abc123!? it's it's"] * 20, 400)
    tokens = [tokenizer.token(id) for id in tokenizer.encode("abc123!? it's")]
    assert tokens == ["abc", "123", "!?", "Ġit", "'s"]


def test_word_pieces_of_a_word() -> None:
    tokenizer = train(
        "word-piece", ["play plays played walk walks walked talk talks talked"] * 5, 35
    )
    assert [tokenizer.token(id) for id in tokenizer.encode("plays, walked")] == [
        "play",
        "##s",
        "[unknown]",
        "walk",
        "##ed",
    ]
    assert [tokenizer.token(id) for id in tokenizer.encode("yaks")] == ["y", "##a", "##k", "##s"]
    assert tokenizer.decode(tokenizer.encode("yaks wed")) == "yaks wed"


def test_every_letter_can_go_on_a_word() -> None:
    """A letter that only starts words in the text is still known inside a word."""
    tokenizer = train("word-piece", ["Kedi Ev"] * 3, 100)
    assert tokenizer.unknown not in tokenizer.encode("EvK dEKi")


@pytest.mark.parametrize("kind", SIZES)
def test_special_tokens_have_the_first_ids(kind: Kind) -> None:
    tokenizer = train(kind, SENTENCES, SIZES[kind])
    roles = (tokenizer.padding, tokenizer.unknown, tokenizer.start, tokenizer.end, tokenizer.mask)
    assert roles == (0, 1, 2, 3, 4)
    assert [tokenizer.token(id) for id in roles] == [
        "[pad]",
        "[unknown]",
        "[start]",
        "[end]",
        "[mask]",
    ]
    assert tokenizer.vocabulary <= SIZES[kind]
    ids = tokenizer.encode(SENTENCES[0])
    assert tokenizer.decode([2, *ids, 3, 0, 0]) == tokenizer.decode(ids)


PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from qkv.text import train
from support.sentences import SENTENCES, SIZES
for kind, size in SIZES.items():
    print(train(kind, SENTENCES * 3, size).fingerprint)
"""


def test_the_same_text_gives_the_same_tokenizer_in_every_process(
    pytestconfig: pytest.Config,
) -> None:
    tests = str(pytestconfig.rootpath / "tests")
    expected = [train(kind, iter(SENTENCES * 3), size).fingerprint for kind, size in SIZES.items()]
    assert len(set(expected)) == len(SIZES)
    for _ in range(2):
        run = subprocess.run(
            [sys.executable, "-c", PROGRAM, tests], capture_output=True, text=True, check=True
        )
        assert run.stdout.split() == expected


@pytest.mark.parametrize("kind", SIZES)
def test_a_vocabulary_larger_than_the_text_has(kind: Kind) -> None:
    tokenizer = train(kind, ["a b"], 5000)
    assert tokenizer.vocabulary < 300
    assert tokenizer.decode(tokenizer.encode("a b")) == "a b"


# Texts of any length


class Counted(str):
    alive = most = 0

    def __init__(self, text: str) -> None:
        Counted.alive += 1
        Counted.most = max(Counted.most, Counted.alive)

    def __del__(self) -> None:
        Counted.alive -= 1


@pytest.mark.parametrize("kind", SIZES)
def test_texts_are_released_as_they_are_read(kind: Kind) -> None:
    def texts() -> Iterator[str]:
        for number in range(200):
            yield Counted(f"{SENTENCES[number % 5]} " * 3)

    Counted.most = 0
    train(kind, texts(), 400)
    assert Counted.most <= 2


@given(st.text(alphabet="ab \n", max_size=300), st.integers(1, 40))
def test_pieces_make_up_the_text(text: str, longest: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qkv.text.training_sample.LONGEST_PIECE", longest)
        pieces = list(cut([text, text]))

    assert "".join(pieces) == text + text
    assert all(0 < len(piece) <= 2 * longest for piece in pieces)


def test_a_long_text_gives_the_tokenizer_of_its_words() -> None:
    """Cuts fall between words, so one long text gives what many short ones do."""
    text = "the quick brown fox jumps over the lazy dog again, and again. " * 3000
    assert len(text) > 8 * LONGEST_PIECE
    pieces = list(cut([text]))
    assert len(pieces) > 4
    assert all(piece[0] == " " and piece[1] != " " for piece in pieces[1:])
    whole = Tokenizer(BYTE_PAIRS.inner)
    assert [id for piece in pieces for id in whole.encode(piece)] == whole.encode(text)


@given(st.lists(st.text(max_size=8), max_size=200), st.integers(200, 4000))
def test_a_sample_is_evenly_spaced_and_fits(pieces: list[str], most: int) -> None:
    selected = [piece.decode() for piece in sample(pieces, most)]
    every = next(
        every for every in (1, 2, 4, 8, 16, 32, 64, 128, 256) if selected == pieces[::every]
    )
    assert sum(len(piece.encode()) + OVERHEAD for piece in selected) <= most
    if every > 1:
        assert sum(len(piece.encode()) + OVERHEAD for piece in pieces) > most


def test_a_sample_contains_the_end_of_the_text() -> None:
    texts = ["early words"] * 1000 + ["late words"] * 1000
    tokenizer = train("words", texts, 8, most=20_000)
    assert {tokenizer.token(id) for id in (5, 6, 7)} == {"early", "late", "words"}
