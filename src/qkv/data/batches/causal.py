"""Causal language modelling: predict the next token in windows of packed documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from qkv.data.batches.batch import IGNORE, Batch
from qkv.data.batches.documents import document_numbers, packed_batch
from qkv.data.batches.order import TokenWindows
from qkv.data.tokens.token_arrays import Tokens


class CausalData:
    """Causal batches: `batch(step)` for training, `ordered()` for validation.

    In each epoch, and in `ordered`, every token but the first is a target exactly once. Data
    shorter than the context are one row with padding.

    Documents are packed one after another. With across_documents a token attends to the documents
    before its own in the row; without, each document attends only to itself: the batch numbers the
    documents, positions restart, and the first token of a document is never a target.
    """

    def __init__(
        self,
        tokens: Tokens,
        context: int,
        rows: int,
        seed: int = 0,
        *,
        across_documents: bool = True,
    ) -> None:
        if len(tokens) < 2:
            raise ValueError(
                f"tokens: expected 2 or more, so that one can be predicted, not {len(tokens)}"
            )

        self.tokens = tokens
        self.context = context
        self.rows = rows
        self.across_documents = across_documents
        self.windows = TokenWindows(len(tokens), context, rows, seed, ahead=1)
        self.order_version = self.windows.version
        self.steps_per_epoch = self.windows.steps_per_epoch
        self.tokens_per_step = rows * context

    def batch(self, step: int) -> Batch:
        """The batch of a training step."""
        begins, overlaps = zip(*self.windows.at(step), strict=True)
        return self.build(begins, overlaps)

    def ordered(self) -> Iterator[Batch]:
        """All tokens in order; the last batch may have fewer rows, and padding in its last row."""
        begins = range(0, len(self.tokens) - 1, self.context)
        for first in range(0, len(begins), self.rows):
            chosen = begins[first : first + self.rows]
            yield self.build(chosen, [0] * len(chosen))

    def build(self, begins: Sequence[int], overlaps: Sequence[int]) -> Batch:
        """A batch of the windows at `begins`; their first `overlaps` positions have no targets."""
        shape = (len(begins), self.context)  # (B, T)
        ids = np.zeros(shape, dtype=np.int64)
        targets = np.full(shape, IGNORE, dtype=np.int64)
        documents = np.zeros(shape, dtype=np.int64)
        lengths = np.minimum(self.context, len(self.tokens) - 1 - np.asarray(begins))

        for row, (begin, length) in enumerate(zip(begins, lengths.tolist(), strict=True)):
            window = self.tokens.read(begin, begin + length + 1)
            ids[row, :length] = window[:-1]
            targets[row, :length] = window[1:]
            targets[row, : overlaps[row]] = IGNORE
            if not self.across_documents:
                numbers = document_numbers(self.tokens.ends, begin, self.context + 1)
                documents[row] = numbers[:-1]
                targets[row, numbers[1:] != numbers[:-1]] = IGNORE

        padding_mask = np.arange(self.context) < lengths[:, None]  # (B, T)

        return packed_batch(
            ids, targets, padding_mask, None if self.across_documents else documents
        )
