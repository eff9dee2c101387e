"""Train a tokenizer on text: characters, words, byte-pair encoding or WordPiece."""

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
SAMPLE = 50_000_000
"""Bytes of text to train on; training then takes about 250 MB of memory."""


def train(kind: Kind, texts: Iterable[str], vocabulary: int, *, most: int = SAMPLE) -> Tokenizer:
    """Train a tokenizer on texts; the same texts give the same tokenizer.

    Args:
        kind: characters, words, byte-pair (as GPT-2) or word-piece (as BERT).
        texts: Texts, read once; they need not fit in memory.
        vocabulary: Most tokens (V); fewer if the texts do not have as many.
        most: Bytes to train on. From longer texts, all kinds but characters use evenly spaced
            pieces of this total size.

    Returns:
        The tokenizer; its special tokens have the ids 0 to 4.

    Raises:
        TypeError: If `texts` is one string, or not strings.
        ValueError: If the kind is unknown, the texts are empty, or the vocabulary is too small.

    Example:
        >>> from qkv.text import train
        >>> tokenizer = train("byte-pair", ["the cat sat on the mat"], 270)
        >>> tokenizer.decode(tokenizer.encode("the cat"))
        'the cat'
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

    learn = {"words": whole_words, "byte-pair": byte_pairs, "word-piece": word_pieces}[kind]
    return Tokenizer(learn(sample(cut(texts), most), vocabulary))


def checked(texts: Iterable[str]) -> Iterator[str]:
    """Yield the texts; raise if one is not a string, or at the end if all are empty."""
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


def check_vocabulary(kind: Kind, vocabulary: int, least: int, what: str) -> None:
    if vocabulary < least:
        raise ValueError(
            f"vocabulary: {vocabulary} is too small for {kind}: expected {least} or more, "
            f"{len(SPECIAL)} special tokens and {what}"
        )


def characters(texts: Iterable[str], vocabulary: int) -> tokenizers.Tokenizer:
    """Train on the most frequent characters, as byte-pair encoding without merges."""
    check_vocabulary("characters", vocabulary, len(SPECIAL) + 1, "a character")
    counts: Counter[str] = Counter()

    for text in texts:
        counts.update(text)

    frequent = sorted(counts, key=lambda character: (-counts[character], character))
    tokens = SPECIAL + frequent[: vocabulary - len(SPECIAL)]
    ids = {token: id for id, token in enumerate(tokens)}
    inner = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=[], unk_token=OURS["unknown"]))
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens(SPECIAL)

    return inner


def whole_words(pieces: list[bytes], vocabulary: int) -> tokenizers.Tokenizer:
    """Train on the most frequent words and punctuation marks; any other word is unknown."""
    check_vocabulary("words", vocabulary, len(SPECIAL) + 1, "a word")
    inner = word_tokenizer(models.WordLevel(unk_token=OURS["unknown"]))
    trainer = trainers.WordLevelTrainer(
        vocab_size=vocabulary, special_tokens=SPECIAL, show_progress=False
    )
    inner.train_from_iterator(map(bytes.decode, pieces), trainer)
    if inner.get_vocab_size() == len(SPECIAL):
        raise ValueError("texts: there is no word in them, only spaces")

    return inner


def byte_pairs(pieces: list[bytes], vocabulary: int) -> tokenizers.Tokenizer:
    """Train GPT-2's byte-pair encoding: pairs of bytes are merged, and no text is unknown."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    check_vocabulary(
        "byte-pair", vocabulary, len(SPECIAL) + len(alphabet), f"{len(alphabet)} bytes"
    )
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
    """Train BERT's WordPiece: rare words in pieces; all pieces but the first start with ##."""
    inner = word_tokenizer(models.WordPiece(unk_token=OURS["unknown"]))
    alphabet = alphabet_of(inner, pieces)
    if not alphabet:
        raise ValueError("texts: there is no word in them, only spaces")

    what = f"{len(alphabet)} characters, counted apart at the start of a word and inside"
    check_vocabulary("word-piece", vocabulary, len(SPECIAL) + len(alphabet), what)

    # The trainer numbers characters inside words in an order that differs from run to run, and
    # breaks ties by number. As special tokens they are numbered first; afterwards they become
    # ordinary tokens again.
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
    """Return every character that starts a word, and with ## those that can be inside one."""
    characters: set[str] = set()
    for piece in pieces:
        characters.update(inner.normalizer.normalize_str(piece.decode()))

    split = inner.pre_tokenizer.pre_tokenize_str
    first = sorted(character for character in characters if split(character))
    inside = []
    for character in first:
        between_letters = len(split(f"a{character}a")) == 1
        between_digits = len(split(f"1{character}1")) == 1
        if between_letters or between_digits:
            inside.append(word_splitting.CONTINUES + character)

    return first + inside


def word_tokenizer(model: models.Model) -> tokenizers.Tokenizer:
    inner = tokenizers.Tokenizer(model)
    inner.normalizer = word_splitting.normalizer()
    inner.pre_tokenizer = word_splitting.splitter()
    inner.decoder = word_splitting.joiner()
    return inner
