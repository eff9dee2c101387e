"""Framing examples for fine-tuning: texts as ids with start, delimiter and extract tokens."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from qkv.data.sources.examples import Example
from qkv.text.frame_tokens import FrameTokens
from qkv.text.tokenizer import Tokenizer

CHUNK = 4096
"""Examples encoded at a time: their ids are Python integers until they are packed."""


class Framed(NamedTuple):
    """One example as ids: one sequence, or several that are read side by side."""

    sequences: list[Int[np.ndarray, "_"]]
    seconds: Int[np.ndarray, "G"]
    """Where the second text starts in each sequence; the sequence's length if there is none."""
    target_positions: Int[np.ndarray, "N"]
    """The positions to predict at: one for each sequence, or one for each word to be tagged that is
    within the context.
    """


class TokenizedExample(NamedTuple):
    """A framed example before it is packed."""

    sequences: list[list[int]]
    seconds: list[int]
    target_positions: list[int]
    cut: bool
    """True if the example was truncated."""
    words_cut: int
    """Number of words beyond the context."""


@dataclass(frozen=True, kw_only=True)
class Frame:
    """GPT-1's `[start] text [delimiter] text [extract]`; for BERT, both last ones are [SEP]."""

    task: str
    start: int | None
    delimiter: int
    extract: int
    padding: int
    segments: bool
    """True if the model has segment embeddings, which mark the tokens of the second text."""
    context: int
    pooling: str
    """The position to predict at: `last` is the extract token, otherwise the first token. For a
    word to be tagged, its last or its first piece: a causal model has read the whole word only at
    its last piece."""

    def encode(self, tokenizer: Tokenizer, examples: Sequence[Example]) -> FramedExamples:
        """The framed examples, truncated to the context; in a pair, the longer text first."""
        texts = 1 if self.task in ("classify", "tag") else 2
        if self.room(texts) < texts:
            raise ValueError(
                f"context: {self.context} tokens have no room for words and the special tokens"
            )

        if self.task == "tag":
            return FramedExamples(self.frame_words(tokenizer, examples))

        return FramedExamples(self.frame_texts(tokenizer, examples))

    def room(self, texts: int) -> int:
        """The number of tokens left for text beside the special tokens."""
        return self.context - len(self.tokens.before) - texts

    @cached_property
    def tokens(self) -> FrameTokens:
        return FrameTokens.of(self.start, self.extract)

    # Texts

    def frame_texts(
        self, tokenizer: Tokenizer, examples: Sequence[Example]
    ) -> Iterator[TokenizedExample]:
        """Examples of one text, a pair, or a context with choices."""
        for chunk in chunks(examples):
            texts = ((text, example.where) for example in chunk for text in example.texts)
            ids = encode_texts(tokenizer, texts)
            for example in chunk:
                yield self.frame_example([next(ids) for _ in example.texts])

    def frame_example(self, texts: list[list[int]]) -> TokenizedExample:
        """The sequences of one example."""
        framed = TokenizedExample([], [], [], False, 0)
        truncated = False

        for first, second in self.sequences(texts):
            ids, second_start, cut = self.frame_sequence(first, second)
            framed.sequences.append(ids)
            framed.seconds.append(second_start)
            framed.target_positions.append(len(ids) - 1 if self.pooling == "last" else 0)
            truncated = truncated or cut

        return framed._replace(cut=truncated)

    def sequences(self, texts: list[list[int]]) -> list[tuple[list[int], list[int] | None]]:
        """The texts of each sequence.

        A choice follows its context; similarity is symmetric, so both orders are read.
        """
        if self.task == "choice":
            return [(texts[0], choice) for choice in texts[1:]]
        if len(texts) == 1:
            return [(texts[0], None)]

        first, second = texts
        if self.task == "similarity":
            return [(first, second), (second, first)]

        return [(first, second)]

    def frame_sequence(
        self, first: list[int], second: list[int] | None
    ) -> tuple[list[int], int, bool]:
        """The ids, where the second text starts in them, and whether anything was truncated."""
        if second is None:
            room = self.room(1)
            ids = self.tokens.around(first[:room])
            return ids, len(ids), len(first) > room

        one, two = cut_pair(len(first), len(second), self.room(2))
        ids = self.tokens.around([*first[:one], self.delimiter, *second[:two]])
        truncated = (one, two) != (len(first), len(second))

        return ids, len(ids) - two - 1, truncated

    # Words to be tagged

    def frame_words(
        self, tokenizer: Tokenizer, examples: Sequence[Example]
    ) -> Iterator[TokenizedExample]:
        """Sentences encoded word by word, so that the pieces of each word are known."""
        pieces: dict[str, list[int]] = {}  # each distinct word is encoded once
        space = word_separator(tokenizer)

        for chunk in chunks(examples):
            sentences: list[list[str]] = []
            new: dict[str, str] = {}

            for example in chunk:
                first, *rest = example.texts
                sentence = [first, *(space + word for word in rest)]
                sentences.append(sentence)
                for word in sentence:
                    if word not in pieces:
                        new[word] = example.where

            pieces.update(zip(new, encode_texts(tokenizer, new.items()), strict=True))
            for sentence in sentences:
                yield self.frame_sentence([pieces[word] for word in sentence])

    def frame_sentence(self, words: list[list[int]]) -> TokenizedExample:
        """One sentence from the pieces of its words."""
        room = self.room(1)
        ends = np.cumsum(list(map(len, words)))
        positions = ends - 1
        if self.pooling != "last":
            positions = np.concatenate(([0], ends[:-1]))

        target_positions = (positions[positions < room] + len(self.tokens.before)).tolist()
        text = list(chain.from_iterable(words))
        ids = self.tokens.around(text[:room])

        return TokenizedExample(
            [ids],
            [len(ids)],
            target_positions,
            cut=len(text) > room,
            words_cut=len(words) - len(target_positions),
        )


class FramedExamples(Sequence[Framed]):
    """All framed examples, packed into a few arrays; each example is a view of them."""

    cut: int
    """Number of examples that are longer than the context."""
    words_cut: int
    """Number of words to be tagged that are beyond the context."""

    def __init__(self, examples: Iterable[TokenizedExample]) -> None:
        ids = array("i")  # packed, and so smaller than lists
        lengths = array("i")
        seconds = array("i")
        groups = array("i")
        target_positions = array("i")
        target_counts = array("i")
        self.cut = 0
        self.words_cut = 0

        for example in examples:
            for sequence in example.sequences:
                ids.extend(sequence)
                lengths.append(len(sequence))

            seconds.extend(example.seconds)
            groups.append(len(example.sequences))
            target_positions.extend(example.target_positions)
            target_counts.append(len(example.target_positions))
            self.cut += example.cut
            self.words_cut += example.words_cut

        self.ids = np.asarray(ids)
        self.seconds = np.asarray(seconds)
        self.target_positions = np.asarray(target_positions)
        self.sequence_ends = np.cumsum(lengths, dtype=np.int64)
        self.group_ends = np.cumsum(groups, dtype=np.int64)
        self.target_ends = np.cumsum(target_counts, dtype=np.int64)
        self.lengths = np.asarray(lengths)
        """The length of the longest sequence of each example."""
        if len(self.group_ends):
            self.lengths = np.maximum.reduceat(self.lengths, self.group_ends - groups)

    def __len__(self) -> int:
        return len(self.group_ends)

    def __getitem__(self, number: int) -> Framed:  # type: ignore[override]
        if not 0 <= number < len(self):
            raise IndexError(number)

        group = span(self.group_ends, number)
        sequences = [
            self.ids[span(self.sequence_ends, index)] for index in range(group.start, group.stop)
        ]
        target_positions = self.target_positions[span(self.target_ends, number)]

        return Framed(sequences, self.seconds[group], target_positions)


def span(ends: Int[np.ndarray, "_"], number: int) -> slice:
    """The slice of an item, where `ends` are the ends of all items."""
    begin = int(ends[number - 1]) if number else 0
    return slice(begin, int(ends[number]))


def chunks(examples: Sequence[Example]) -> Iterator[Sequence[Example]]:
    for first in range(0, len(examples), CHUNK):
        yield examples[first : first + CHUNK]


def encode_texts(tokenizer: Tokenizer, texts: Iterable[tuple[str, str]]) -> Iterator[list[int]]:
    """The ids of texts, each given with its place for errors.

    A text without any token becomes the unknown token, where the tokenizer has one.
    """
    pairs = list(texts)
    all_ids = tokenizer.encode_batch([text for text, _ in pairs])

    for (text, where), ids in zip(pairs, all_ids, strict=True):
        if ids:
            yield ids
        elif tokenizer.unknown is not None:
            yield [tokenizer.unknown]
        else:
            raise ValueError(
                f"{where}: the tokenizer has no tokens for {text.strip()!r}; leave it out"
            )


def word_separator(tokenizer: Tokenizer) -> str:
    """What precedes a word inside a sentence: a space, unless the tokenizer adds one itself."""
    apart = tokenizer.encode("a") + tokenizer.encode(" a")
    return " " if tokenizer.encode("a a") == apart else ""


def cut_pair(one: int, other: int, room: int) -> tuple[int, int]:
    """Two lengths, truncated so that both texts together have at most `room` tokens.

    Tokens are removed one by one from the longer text, from the second if both are equally long.
    """
    excess = one + other - room
    if excess <= 0:
        return one, other
    if excess > abs(one - other):
        return room - room // 2, room // 2
    if one > other:
        return one - excess, other

    return one, other - excess
