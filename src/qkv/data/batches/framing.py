"""From an example to what a model reads: its texts as ids, with marks before, between and after
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from qkv.data.sources.examples import Example
from qkv.text.tokenizer import Tokenizer

AT_ONCE = 4096
"""So many texts are encoded at a time: their ids are Python's numbers until they are packed."""


class Framed(NamedTuple):
    """One example as ids: one sequence, or several that are read side by side."""

    sequences: list[Int[np.ndarray, "_"]]
    seconds: Int[np.ndarray, "G"]
    """Where the second text begins in each; its length where there is none."""
    target_positions: Int[np.ndarray, "N"]
    """Where it is asked: one place a sequence, or one a word to be tagged. Words that were cut off
    have none.
    """


@dataclass(frozen=True, kw_only=True)
class Frame:
    """GPT-1's `[start] text [delimiter] text [extract]`; BERT's is the same, its delimiter and
    extract both [SEP].
    """

    task: str
    start: int | None
    delimiter: int
    extract: int
    padding: int
    segments: bool
    """Whether the model is told which words are of the second text."""
    context: int
    pooling: str
    """The place that is asked: the last is the extract's, otherwise the first. Of a word that is
    tagged, its last piece or its first: a causal model has read a word only when its last piece
    came."""

    def encode(self, tokenizer: Tokenizer, examples: Sequence[Example]) -> FramedExamples:
        """What is longer than the context is cut, of a pair the longer text first."""
        texts = 1 if self.task in ("classify", "tag") else 2
        if self.room(texts) < texts:
            raise ValueError(
                f"context: {self.context} tokens have no room for words and the marks around them"
            )

        return FramedExamples(
            (self.tagged if self.task == "tag" else self.joined)(tokenizer, examples)
        )

    def room(self, texts: int) -> int:
        """For words, beside the marks."""
        return self.context - (self.start is not None) - texts

    def joined(
        self, tokenizer: Tokenizer, examples: Sequence[Example]
    ) -> Iterator[TokenizedExample]:
        for some in stretches(examples):
            found = encoded(tokenizer, ((text, each.where) for each in some for text in each.texts))
            for example in some:
                texts = [next(found) for _ in example.texts]
                sequences, seconds, cut = [], [], False
                for one, other in self.sides(texts):
                    ids, second, shorter = self.written(one, other)
                    sequences.append(ids)
                    seconds.append(second)
                    cut = cut or shorter

                target_positions = [
                    len(ids) - 1 if self.pooling == "last" else 0 for ids in sequences
                ]
                yield TokenizedExample(sequences, seconds, target_positions, cut, 0)

    def sides(self, texts: list[list[int]]) -> list[tuple[list[int], list[int] | None]]:
        """The sequences of an example. Similarity has no order, so both are read; a choice comes
        after its context.
        """
        if self.task == "choice":
            return [(texts[0], choice) for choice in texts[1:]]
        if len(texts) == 1:
            return [(texts[0], None)]

        one, other = texts

        return [(one, other), (other, one)] if self.task == "similarity" else [(one, other)]

    def written(self, one: list[int], other: list[int] | None) -> tuple[list[int], int, bool]:
        """The ids, where the second text begins in them, and whether anything was cut."""
        start = [] if self.start is None else [self.start]
        if other is None:
            room = self.room(1)
            ids = [*start, *one[:room], self.extract]
            return ids, len(ids), len(one) > room

        first, second = cut_pair(len(one), len(other), self.room(2))
        ids = [*start, *one[:first], self.delimiter, *other[:second], self.extract]

        return ids, len(start) + first + 1, (first, second) != (len(one), len(other))

    def tagged(
        self, tokenizer: Tokenizer, examples: Sequence[Example]
    ) -> Iterator[TokenizedExample]:
        """Word by word, so that it is known which pieces are of which; the pieces of a word are
        looked up once.
        """
        pieces: dict[str, list[int]] = {}
        space = space_between(tokenizer)
        start, room = [] if self.start is None else [self.start], self.room(1)

        for some in stretches(examples):
            spelled = [
                [space * (i > 0) + word for i, word in enumerate(each.texts)] for each in some
            ]
            new: dict[str, str] = {}
            for example, words in zip(some, spelled, strict=True):
                new.update({word: example.where for word in words if word not in pieces})

            pieces.update(zip(new, encoded(tokenizer, new.items()), strict=True))
            for words in spelled:
                found = [pieces[word] for word in words]
                ends = np.cumsum([len(each) for each in found])
                asked = ends - 1 if self.pooling == "last" else np.concatenate(([0], ends[:-1]))
                target_positions = (asked[asked < room] + len(start)).tolist()
                ids = [*start, *list(chain.from_iterable(found))[:room], self.extract]
                yield TokenizedExample(
                    [ids],
                    [len(ids)],
                    target_positions,
                    int(ends[-1]) > room,
                    len(words) - len(target_positions),
                )


class TokenizedExample(NamedTuple):
    """A framed example before it is packed."""

    sequences: list[list[int]]
    seconds: list[int]
    target_positions: list[int]
    cut: bool
    words_cut: int


class FramedExamples(Sequence[Framed]):
    """All examples in a few arrays: small, and each a view when it is asked for."""

    cut: int
    """How many examples were longer than the context."""
    words_cut: int
    """How many words of a sentence have no place, because they were cut off."""

    def __init__(self, written: Iterable[TokenizedExample]) -> None:
        ids, lengths, seconds, groups = Growing(), Growing(), Growing(), Growing()
        target_positions, asked = Growing(), Growing()
        self.cut = self.words_cut = 0

        for each in written:
            for sequence in each.sequences:
                ids.extend(sequence)

            lengths.extend([len(sequence) for sequence in each.sequences])
            seconds.extend(each.seconds)
            groups.extend([len(each.sequences)])
            target_positions.extend(each.target_positions)
            asked.extend([len(each.target_positions)])
            self.cut += each.cut
            self.words_cut += each.words_cut

        self.ids, self.seconds, self.target_positions = (
            ids.packed(),
            seconds.packed(),
            target_positions.packed(),
        )
        self.sequence_ends = np.cumsum(lengths.packed(), dtype=np.int64)
        self.group_ends = np.cumsum(groups.packed(), dtype=np.int64)
        self.place_ends = np.cumsum(asked.packed(), dtype=np.int64)
        begins = self.group_ends - groups.packed()
        self.lengths = (
            np.maximum.reduceat(lengths.packed(), begins) if len(begins) else lengths.packed()
        )
        """Of the longest sequence of each example."""

    def __len__(self) -> int:
        return len(self.group_ends)

    def __getitem__(self, number: int) -> Framed:  # type: ignore[override]
        if not 0 <= number < len(self):
            raise IndexError(number)

        first, last = begin_of(self.group_ends, number), int(self.group_ends[number])
        sequences = [
            self.ids[begin_of(self.sequence_ends, each) : self.sequence_ends[each]]
            for each in range(first, last)
        ]
        target_positions = self.target_positions[
            begin_of(self.place_ends, number) : self.place_ends[number]
        ]

        return Framed(sequences, self.seconds[first:last], target_positions)


class Growing:
    """Numbers that come in lists, packed now and then."""

    def __init__(self) -> None:
        self.arrays: list[Int[np.ndarray, "_"]] = []
        self.waiting: list[int] = []

    def extend(self, numbers: list[int]) -> None:
        self.waiting += numbers
        if len(self.waiting) > 1 << 16:
            self.pack()

    def pack(self) -> None:
        self.arrays.append(np.array(self.waiting, dtype=np.int32))
        self.waiting = []

    def packed(self) -> Int[np.ndarray, "_"]:
        self.pack()
        self.arrays = [np.concatenate(self.arrays)]
        return self.arrays[0]


def begin_of(ends: Int[np.ndarray, "_"], number: int) -> int:
    return int(ends[number - 1]) if number else 0


def stretches(examples: Sequence[Example]) -> Iterator[Sequence[Example]]:
    return (examples[first : first + AT_ONCE] for first in range(0, len(examples), AT_ONCE))


def encoded(tokenizer: Tokenizer, texts: Iterable[tuple[str, str]]) -> Iterator[list[int]]:
    """The ids of texts. One that the tokenizer makes nothing of is an unknown word, where it has a
    token for that.
    """
    spelled, target_positions = [], []
    for text, where in texts:
        spelled.append(text)
        target_positions.append(where)

    for text, where, ids in zip(
        spelled, target_positions, tokenizer.encode_batch(spelled), strict=True
    ):
        if ids:
            yield ids
        elif tokenizer.unknown is not None:
            yield [tokenizer.unknown]
        else:
            raise ValueError(
                f"{where}: the tokenizer makes nothing of {text.strip()!r}; leave it out"
            )


def space_between(tokenizer: Tokenizer) -> str:
    """What a word has before it in a sentence; nothing where the tokenizer puts a space before
    every text anyway.
    """
    return " " if tokenizer.encode("a a") == tokenizer.encode("a") + tokenizer.encode(" a") else ""


def cut_pair(one: int, other: int, room: int) -> tuple[int, int]:
    """How much of two lengths fits: a word is taken from the longer text, again and again, the
    second when equal.
    """
    beyond = one + other - room
    if beyond <= 0:
        return one, other
    if beyond <= abs(one - other):
        return (one - beyond, other) if one > other else (one, other - beyond)

    return room - room // 2, room // 2
