"""Masked language modelling (BERT): predict masked tokens from both directions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass

import numpy as np
from jaxtyping import Bool, Int

from qkv.data.batches.batch import IGNORE, Batch
from qkv.data.batches.documents import document_numbers, document_tensors
from qkv.data.batches.order import TokenWindows, random_generator
from qkv.data.batches.padding import pad_rows
from qkv.data.tokens.token_arrays import Tokens
from qkv.text.frame_tokens import FrameTokens, tokens_around
from qkv.text.tokenizer import Tokenizer

SHOWN_AS_MASK = 0.8
SHOWN_AS_RANDOM = 0.1
"""The rest is shown unchanged, so that any visible token may have to be predicted, too."""


@dataclass(frozen=True, eq=False)
class WordPieces:
    """The part of a vocabulary that masking needs."""

    mask: int
    starts_word: Bool[np.ndarray, "V"]
    """True for tokens that start a word, False for those that continue one."""
    special: Bool[np.ndarray, "V"]
    """True for special tokens: never masked, and never a random replacement."""
    frame: FrameTokens
    """The first and the last token of every row, if the vocabulary has them."""
    padding: int = 0

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> WordPieces:
        """The word pieces of a tokenizer."""
        if tokenizer.mask is None:
            raise ValueError(
                "tokenizer: masked language modelling needs a mask token, [mask] or [MASK], "
                "and it has none"
            )

        special = np.ones(tokenizer.vocabulary, dtype=bool)  # unused ids count as special
        special[list(tokenizer.inner.get_vocab(with_added_tokens=True).values())] = False
        special[list(tokenizer.special)] = True

        return cls(
            tokenizer.mask,
            tokenizer.starts_word,
            special,
            tokens_around(tokenizer, "sentence"),
            tokenizer.padding or 0,
        )


@dataclass(eq=False, repr=False)
class MaskedData:
    """Masked batches: `batch(step)` for training, `ordered()` for validation.

    A row is [start], tokens, [end]. A fraction `rate` of its tokens is masked: 80% of those are
    shown as [mask], 10% as a random token and 10% unchanged. With whole_words, all pieces of a word
    are masked together. Without across_documents the documents of a row do not attend to each
    other. In each epoch every token is in a row; data shorter than one row are one row with
    padding.
    """

    tokens: Tokens
    context: int
    rows: int
    seed: int
    words: WordPieces
    _: KW_ONLY
    rate: float = 0.15
    whole_words: bool = False
    across_documents: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(f"rate: expected a fraction above 0, up to 1, not {self.rate}")
        if not len(self.tokens):
            raise ValueError("tokens: expected 1 or more, not 0")

        # The special tokens around each row, and the tokens of the text between them
        self.before = np.array(self.words.frame.before, dtype=np.int64)
        self.after = np.array(self.words.frame.after, dtype=np.int64)
        around = len(self.words.frame.around([]))
        self.size = self.context - around
        if self.size < 1:
            raise ValueError(
                f"context: expected {around + 1} or more, to hold a token, not {self.context}"
            )

        self.ordinary = np.flatnonzero(~self.words.special)
        if not len(self.ordinary):
            raise ValueError("tokenizer: expected tokens to mask, but it has only special tokens")

        self.masked_per_row = max(1, round(self.rate * self.size))
        """Target positions per row (P), the same for all rows so that shapes do not change; unused
        ones have the target IGNORE.
        """
        self.windows = TokenWindows(len(self.tokens), self.size, self.rows, self.seed)
        self.order_version = self.windows.version
        self.steps_per_epoch = self.windows.steps_per_epoch
        self.tokens_per_step = self.rows * self.context

    def batch(self, step: int) -> Batch:
        """The batch of a training step."""
        begins = [window.begin for window in self.windows.at(step)]
        numbers = self.windows.numbers(step)
        generators = (random_generator("masked positions", self.seed, number) for number in numbers)

        return self.build(begins, generators)

    def ordered(self) -> Iterator[Batch]:
        """All tokens in order, with the same masks every time and for every seed."""
        begins = range(0, len(self.tokens), self.size)
        for first in range(0, len(begins), self.rows):
            chosen = begins[first : first + self.rows]
            numbers = range(first, first + len(chosen))
            generators = (random_generator("validation masks", 0, number) for number in numbers)
            yield self.build(chosen, generators)

    def build(self, begins: Sequence[int], generators: Iterable[np.random.Generator]) -> Batch:
        """A batch of the windows at `begins`, each masked by its own random generator."""
        rows: list[np.ndarray] = []
        target_positions: list[np.ndarray] = []
        targets: list[np.ndarray] = []
        documents: list[np.ndarray] = []

        for begin, random in zip(begins, generators, strict=True):
            window = self.tokens.read(begin, min(begin + self.size, len(self.tokens)))
            row = np.concatenate((self.before, window, self.after))
            masked, positions = self.mask_tokens(row, random)
            rows.append(masked)
            target_positions.append(positions)
            targets.append(row[positions])
            if not self.across_documents:
                documents.append(self.row_documents(begin, len(window)))

        ids, padding_mask = pad_rows(rows, self.words.padding, width=self.context)

        return Batch(
            ids=ids,
            targets=pad_rows(targets, IGNORE, width=self.masked_per_row)[0],
            target_positions=pad_rows(target_positions, width=self.masked_per_row)[0],
            padding_mask=padding_mask,
            **document_tensors(documents),
        )

    def row_documents(self, begin: int, length: int) -> Int[np.ndarray, "T"]:
        """The documents of a row; [start] belongs to the first one, and [end] to the last."""
        numbers = document_numbers(self.tokens.ends, begin, length)
        before = len(self.before)
        return np.pad(numbers, (before, self.context - before - length), mode="edge")

    def mask_tokens(
        self, ids: Int[np.ndarray, "T"], random: np.random.Generator
    ) -> tuple[Int[np.ndarray, "T"], Int[np.ndarray, "P"]]:
        """The row as the model reads it, and the positions it has to predict."""
        candidates = np.flatnonzero(~self.words.special[ids])
        count = min(len(candidates), max(1, round(self.rate * len(candidates))))
        if self.whole_words:
            chosen = self.choose_words(ids, candidates, count, random)
        else:
            chosen = np.sort(random.permutation(candidates)[:count])

        # Show 80% as [mask], 10% as a random token and 10% unchanged.
        uniform = random.random(len(chosen))
        others = self.ordinary[random.integers(len(self.ordinary), size=len(chosen))]
        shown = np.where(uniform < SHOWN_AS_MASK + SHOWN_AS_RANDOM, others, ids[chosen])
        masked = ids.copy()
        masked[chosen] = np.where(uniform < SHOWN_AS_MASK, self.words.mask, shown)

        return masked, chosen[: self.masked_per_row]

    def choose_words(
        self,
        ids: Int[np.ndarray, "T"],
        candidates: Int[np.ndarray, "N"],
        count: int,
        random: np.random.Generator,
    ) -> Int[np.ndarray, "M"]:
        """The positions of random whole words, up to `count` pieces."""
        # Number the word of every candidate.
        starts = self.words.starts_word[ids[candidates]]
        starts[:1] = True  # a row may start inside a word
        starts[1:] |= np.diff(candidates) > 1  # a special token ends a word
        word_of = np.cumsum(starts) - 1
        lengths = np.bincount(word_of).tolist()

        # Choose words in random order while they fit.
        order = random.permutation(len(lengths)).tolist()
        chosen = np.zeros(len(lengths), dtype=bool)
        left = count

        for word in order:
            if lengths[word] <= left:
                chosen[word] = True
                left -= lengths[word]

            if not left:
                break

        if left == count:  # every word is longer than `count`: mask one anyway
            chosen[order[:1]] = True

        return candidates[chosen[word_of]]
