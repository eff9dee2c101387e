"""The masked objective: some words of a row are hidden, and said again from both sides (BERT)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int

from qkv.data.batches.batch import IGNORE, Batch
from qkv.data.batches.documents import document_numbers, positions_within
from qkv.data.batches.order import TokenWindows, draws
from qkv.data.tokens.token_arrays import Tokens
from qkv.text.tokenizer import Tokenizer

SHOWN_AS_MASK, SHOWN_AS_RANDOM = (
    0.8,
    0.1,
)  # and the rest as it is, so that a word that is shown may be wrong too


@dataclass(frozen=True, eq=False)
class WordPieces:
    """What masking must know of a vocabulary."""

    mask: int
    starts_word: Bool[np.ndarray, "V"]
    """Which tokens begin a word, rather than go on with one."""
    special: Bool[np.ndarray, "V"]
    """Which tokens are no words: never asked, and never put in place of a word."""
    start: int | None = None
    """Comes first in a row, if there is such a token."""
    end: int | None = None
    """Comes last."""
    padding: int = 0

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> WordPieces:
        if tokenizer.mask is None:
            raise ValueError(
                "tokenizer: the masked objective needs a mask token, [mask] or [MASK], and it has none"
            )

        special = np.ones(tokenizer.vocabulary, dtype=bool)  # so are ids that stand for nothing
        special[list(tokenizer.inner.get_vocab(with_added_tokens=True).values())] = False
        special[list(tokenizer.special)] = True

        return cls(
            tokenizer.mask,
            tokenizer.starts_word,
            special,
            tokenizer.start,
            tokenizer.end,
            tokenizer.padding or 0,
        )


class MaskedData:
    """`batch(step)` to train on, `ordered()` to validate on.

    A row is [start], words, [end]. In each, `rate` of the words are asked, and of those 80% are
    shown as [mask], 10% as a random word and 10% as they are. With whole_words, all pieces of a
    word are asked together. Without across_documents the texts in a row do not see each other. In
    each epoch every word is in a row, where it may be asked; a text shorter than one row is one row
    with padding.
    """

    def __init__(
        self,
        tokens: Tokens,
        context: int,
        rows: int,
        seed: int,
        words: WordPieces,
        *,
        rate: float = 0.15,
        whole_words: bool = False,
        across_documents: bool = True,
    ) -> None:
        if not 0 < rate <= 1:
            raise ValueError(f"rate: expected a fraction above 0, up to 1, not {rate}")
        if not len(tokens):
            raise ValueError("tokens: expected 1 or more, not 0")

        self.tokens, self.context, self.rows, self.seed, self.words = (
            tokens,
            context,
            rows,
            seed,
            words,
        )

        self.rate, self.whole_words, self.across_documents = rate, whole_words, across_documents
        self.before = np.array([] if words.start is None else [words.start], dtype=np.int64)
        self.after = np.array([] if words.end is None else [words.end], dtype=np.int64)
        self.size = context - len(self.before) - len(self.after)
        if self.size < 1:
            raise ValueError(
                f"context: expected {context - self.size + 1} or more, to hold a word, not {context}"
            )

        self.ordinary = np.flatnonzero(~words.special)
        if not len(self.ordinary):
            raise ValueError("tokenizer: expected words to mask, and it has special tokens alone")

        self.asked = max(1, round(rate * self.size))
        """Places a row (M), always as many so that shapes stay the same; those not needed ask
        nothing.
        """
        self.windows = TokenWindows(len(tokens), self.size, rows, seed)
        self.order_version = self.windows.version
        self.steps_per_epoch = self.windows.steps_per_epoch
        self.tokens_per_step = rows * context

    def batch(self, step: int) -> Batch:
        begins = [window.begin for window in self.windows.at(step)]
        return self.cut(
            begins,
            (draws("target_positions", self.seed, number) for number in self.windows.numbers(step)),
        )

    def ordered(self) -> Iterator[Batch]:
        """Every word is in one row. The same words are asked every time, whatever the seed, so that
        losses compare.
        """
        begins = range(0, len(self.tokens), self.size)
        for first in range(0, len(begins), self.rows):
            chosen = begins[first : first + self.rows]
            yield self.cut(
                chosen, (draws("ordered places", 0, begin // self.size) for begin in chosen)
            )

    def cut(self, begins: list[int] | range, randoms: Iterable[np.random.Generator]) -> Batch:
        B, T = len(begins), self.context
        ids = np.full((B, T), self.words.padding, dtype=np.int64)
        target_positions = np.zeros((B, self.asked), dtype=np.int64)
        targets = np.full((B, self.asked), IGNORE, dtype=np.int64)
        documents = None if self.across_documents else np.zeros((B, T), dtype=np.int64)
        lengths = np.zeros(B, dtype=np.int64)

        for row, (begin, random) in enumerate(zip(begins, randoms, strict=True)):
            read = self.tokens.read(begin, min(begin + self.size, len(self.tokens)))
            words = np.concatenate((self.before, read, self.after))
            lengths[row] = len(words)
            hidden, chosen = self.hide(words, random)
            ids[row, : len(words)] = hidden
            target_positions[row, : len(chosen)], targets[row, : len(chosen)] = (
                chosen,
                words[chosen],
            )
            if documents is not None:  # [start] is of the first text, and [end] of the last
                numbers = document_numbers(self.tokens.ends, begin, len(read))
                documents[row] = np.pad(
                    numbers, (len(self.before), T - len(self.before) - len(read)), mode="edge"
                )

        padding_mask = np.arange(T) < lengths[:, None]  # (B, T)

        return Batch(
            ids=torch.from_numpy(ids),
            targets=torch.from_numpy(targets),
            target_positions=torch.from_numpy(target_positions),
            padding_mask=None if padding_mask.all() else torch.from_numpy(padding_mask),
            documents=None if documents is None else torch.from_numpy(documents),
            positions=None if documents is None else torch.from_numpy(positions_within(documents)),
        )

    def hide(
        self, words: Int[np.ndarray, "T"], random: np.random.Generator
    ) -> tuple[Int[np.ndarray, "T"], Int[np.ndarray, "M"]]:
        """The row as it is shown, and the places that are asked."""
        possible = np.flatnonzero(~self.words.special[words])
        count = min(len(possible), max(1, round(self.rate * len(possible))))
        if self.whole_words:
            pieces = self.choose_words(words, possible, count, random)
        else:
            pieces = np.sort(random.permutation(possible)[:count])

        chance = random.random(len(pieces))
        others = self.ordinary[random.integers(len(self.ordinary), size=len(pieces))]
        shown = np.where(chance < SHOWN_AS_MASK + SHOWN_AS_RANDOM, others, words[pieces])
        hidden = words.copy()
        hidden[pieces] = np.where(chance < SHOWN_AS_MASK, self.words.mask, shown)

        return hidden, pieces[: self.asked]

    def choose_words(
        self,
        words: Int[np.ndarray, "T"],
        possible: Int[np.ndarray, "N"],
        count: int,
        random: np.random.Generator,
    ) -> Int[np.ndarray, "M"]:
        """The pieces of words drawn at random, each word whole, up to `count` pieces."""
        begins = self.words.starts_word[words[possible]]
        begins[:1] = True  # a row may begin inside a word
        begins[1:] |= np.diff(possible) > 1  # a special token ends a word
        word_of = np.cumsum(begins) - 1  # of every piece
        lengths = np.bincount(word_of).tolist()
        order = random.permutation(len(lengths)).tolist()
        chosen = np.zeros(len(lengths), dtype=bool)
        left = count

        for word in order:
            if lengths[word] <= left:
                chosen[word] = True
                left -= lengths[word]

            if not left:
                break

        if (
            left == count
        ):  # every word is longer: one is hidden all the same, and as much of it asked as may be
            chosen[order[:1]] = True

        return possible[chosen[word_of]]
