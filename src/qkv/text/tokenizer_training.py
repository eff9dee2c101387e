"""Learning a tokenizer from text: its characters, its words, byte pairs, or pieces of words."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal, get_args

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from qkv.text import word_splitting
from qkv.text.special_tokens import OURS
from qkv.text.tokenizer import Tokenizer
from qkv.text.training_sample import cut, sample

Kind = Literal["characters", "words", "byte-pair", "word-piece"]

SPECIAL = list(OURS.values())
SAMPLE = 50_000_000  # bytes; training then takes about 250 MB


def train(kind: Kind, texts: Iterable[str], vocabulary: int, *, most: int = SAMPLE) -> Tokenizer:
    """A tokenizer of at most `vocabulary` tokens, fewer where the texts do not have as many. The
    same texts give the same tokenizer.

    The texts are read once and need not fit in memory: of more than `most` bytes, words, byte-pair
    and word-piece learn from evenly spaced pieces that together have as many.
    """
    if kind not in get_args(Kind):
        raise ValueError(f"kind: expected one of {', '.join(get_args(Kind))}, not {kind!r}")
    if isinstance(texts, str):
        raise TypeError("texts: expected several texts, not one string; put it into a list")
    if not isinstance(vocabulary, int) or isinstance(vocabulary, bool):
        raise TypeError(f"vocabulary: expected a whole number, not {vocabulary!r}")

    texts = checked(texts)
    if kind == "characters":
        return Tokenizer(characters(texts, vocabulary))

    pieces = sample(cut(texts), most)
    learn = {"words": whole_words, "byte-pair": byte_pairs, "word-piece": word_pieces}[kind]

    return Tokenizer(learn(pieces, vocabulary))


def checked(texts: Iterable[str]) -> Iterator[str]:
    empty = True
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(
                f"texts: expected strings, but number {number} is a {type(text).__name__}"
            )

        empty = empty and not text
        yield text

    if empty:
        raise ValueError("texts: they are empty; a tokenizer needs some text to learn from")


def check_room(kind: Kind, vocabulary: int, least: int, what: str) -> None:
    if vocabulary < least:
        raise ValueError(
            f"vocabulary: {vocabulary} is too small for {kind}: expected {least} or more, "
            f"{len(SPECIAL)} special tokens and {what}"
        )


def characters(texts: Iterable[str], vocabulary: int) -> tokenizers.Tokenizer:
    """The most frequent characters. Byte-pair encoding with nothing to merge leaves each character
    alone.
    """
    check_room("characters", vocabulary, len(SPECIAL) + 1, "a character")
    counts: Counter[str] = Counter()

    for text in texts:
        counts.update(text)

    frequent = sorted(counts, key=lambda character: (-counts[character], character))
    tokens = SPECIAL + frequent[: vocabulary - len(SPECIAL)]
    inner = tokenizers.Tokenizer(
        models.BPE(
            vocab={token: id for id, token in enumerate(tokens)},
            merges=[],
            unk_token=OURS["unknown"],
        )
    )

    inner.decoder = decoders.Fuse()
    inner.add_special_tokens(SPECIAL)

    return inner


def whole_words(pieces: list[bytes], vocabulary: int) -> tokenizers.Tokenizer:
    """The most frequent words and signs; any other word is unknown."""
    check_room("words", vocabulary, len(SPECIAL) + 1, "a word")
    inner = of_words(models.WordLevel(unk_token=OURS["unknown"]))
    trainer = trainers.WordLevelTrainer(
        vocab_size=vocabulary, special_tokens=SPECIAL, show_progress=False
    )
    inner.train_from_iterator(map(bytes.decode, pieces), trainer)
    if inner.get_vocab_size() == len(SPECIAL):
        raise ValueError("texts: there is no word in them, only spaces")

    return inner


def byte_pairs(pieces: list[bytes], vocabulary: int) -> tokenizers.Tokenizer:
    """GPT-2's: text in bytes, split as GPT-2 does, the most frequent pairs merged. No text is
    unknown.
    """
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    check_room("byte-pair", vocabulary, len(SPECIAL) + len(alphabet), f"{len(alphabet)} bytes")
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=SPECIAL,
        initial_alphabet=alphabet,
        min_frequency=2,
        show_progress=False,
    )

    inner.train_from_iterator(map(bytes.decode, pieces), trainer)

    return inner


def word_pieces(pieces: list[bytes], vocabulary: int) -> tokenizers.Tokenizer:
    """BERT's: words, the rarer ones in pieces, of which all but the first are written with ##
    before them.
    """
    inner = of_words(models.WordPiece(unk_token=OURS["unknown"]))
    alphabet = alphabet_of(inner, pieces)
    if not alphabet:
        raise ValueError("texts: there is no word in them, only spaces")

    what = f"{len(alphabet)} characters, counted apart at the start of a word and inside"
    check_room("word-piece", vocabulary, len(SPECIAL) + len(alphabet), what)
    # The trainer numbers characters inside words as it meets them, in an order that differs from
    # run to run, and breaks ties by number. Named as special tokens they are numbered before; that
    # they are special is taken back after.
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary,
        special_tokens=SPECIAL + alphabet,
        min_frequency=2,
        show_progress=False,
    )

    inner.train_from_iterator(map(bytes.decode, pieces), trainer)
    values = json.loads(inner.to_str())
    values["added_tokens"] = values["added_tokens"][: len(SPECIAL)]

    return tokenizers.Tokenizer.from_str(json.dumps(values))


def alphabet_of(inner: tokenizers.Tokenizer, pieces: list[bytes]) -> list[str]:
    """Every character at the start of a word, and with ## those that can be inside one."""
    seen: set[str] = set()
    for piece in pieces:
        seen.update(inner.normalizer.normalize_str(piece.decode()))

    split = inner.pre_tokenizer.pre_tokenize_str
    first = sorted(character for character in seen if split(character))
    inside = [
        character for character in first if any(len(split(f"{a}{character}{a}")) == 1 for a in "a1")
    ]

    return first + [word_splitting.CONTINUES + character for character in inside]


def of_words(model: models.Model) -> tokenizers.Tokenizer:
    inner = tokenizers.Tokenizer(model)
    inner.normalizer, inner.pre_tokenizer, inner.decoder = (
        word_splitting.normalizer(),
        word_splitting.splitter(),
        word_splitting.joiner(),
    )
    return inner
