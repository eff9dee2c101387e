"""Causal language modelling: predict the next token in windows of packed documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from qkv.data.batches.batch import IGNORE, Batch
from qkv.data.batches.documents import document_numbers, document_tensors
from qkv.data.batches.order import TokenWindows
from qkv.data.batches.padding import pad_rows
from qkv.data.tokens.token_arrays import Tokens


@dataclass(eq=False, repr=False)
class CausalData:
    """Causal batches: `batch(step)` for training, `ordered()` for validation.

    In each epoch, and in `ordered`, every token but the first is a target exactly once. Data
    shorter than the context are one row with padding.

    Documents are packed one after another. With across_documents a token attends to the documents
    before its own in the row; without, each document attends only to itself: the batch numbers the
    documents, positions restart, and the first token of a document is never a target.
    """

    tokens: Tokens
    context: int
    rows: int
    seed: int = 0
    across_documents: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        count = len(self.tokens)
        if count < 2:
            raise ValueError(
                f"tokens: expected 2 or more, so that one can be predicted, not {count}"
            )

        self.windows = TokenWindows(count, self.context, self.rows, self.seed, ahead=1)
        self.order_version = self.windows.version
        self.steps_per_epoch = self.windows.steps_per_epoch
        self.tokens_per_step = self.rows * self.context

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
        windows: list[np.ndarray] = []
        targets: list[np.ndarray] = []
        documents: list[np.ndarray] = []

        for begin, overlap in zip(begins, overlaps, strict=True):
            end = min(begin + self.context + 1, len(self.tokens))
            windows.append(self.tokens.read(begin, end))
            targets.append(windows[-1][1:].copy())
            targets[-1][:overlap] = IGNORE
            if not self.across_documents:
                numbers = document_numbers(self.tokens.ends, begin, self.context + 1)
                documents.append(numbers[:-1])
                starts = numbers[1 : end - begin] != numbers[: end - begin - 1]
                targets[-1][starts] = IGNORE

        ids, padding_mask = pad_rows([window[:-1] for window in windows], width=self.context)

        return Batch(
            ids=ids,
            targets=pad_rows(targets, IGNORE, width=self.context)[0],
            padding_mask=padding_mask,
            **document_tensors(documents),
        )
