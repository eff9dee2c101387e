"""The causal objective: after each word, say the next. Rows are cut from one long run of texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from qkv.data.batches.batch import IGNORE, Batch
from qkv.data.batches.documents import document_numbers, positions_within
from qkv.data.batches.order import TokenWindows
from qkv.data.tokens.token_arrays import Tokens


class CausalData:
    """`batch(step)` to train on, `ordered()` to validate on. In each epoch, as in `ordered`, every
    token but the first is a target once; a text shorter than the context is one row with padding.

    Texts are packed one after another. With across_documents a word sees the texts before its own
    in the row; without, each text is alone: the batch numbers them, positions begin again, and no
    word is asked for the next text's first.
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
                f"tokens: expected 2 or more, so that one is the next of another, not {len(tokens)}"
            )

        self.tokens, self.context, self.rows = tokens, context, rows
        self.across_documents = across_documents
        self.windows = TokenWindows(len(tokens), context, rows, seed, ahead=1)
        self.order_version = self.windows.version
        self.steps_per_epoch = self.windows.steps_per_epoch
        self.tokens_per_step = rows * context

    def batch(self, step: int) -> Batch:
        windows = self.windows.at(step)
        return self.cut([window.begin for window in windows], [window.seen for window in windows])

    def ordered(self) -> Iterator[Batch]:
        """Every word but the very first is a target once. The last batch may have fewer rows, its
        last row padding.
        """
        begins = range(0, len(self.tokens) - 1, self.context)
        for first in range(0, len(begins), self.rows):
            yield self.cut(begins[first : first + self.rows])

    def cut(self, begins: Sequence[int], seen: Sequence[int] | None = None) -> Batch:
        """The rows that begin there; of each, so many first positions are read but not asked."""
        T = self.context
        ids = np.zeros((len(begins), T), dtype=np.int64)
        targets = np.full((len(begins), T), IGNORE, dtype=np.int64)
        documents = None if self.across_documents else np.zeros((len(begins), T), dtype=np.int64)
        lengths = np.minimum(T, len(self.tokens) - 1 - np.asarray(begins))

        for row, (begin, length) in enumerate(zip(begins, lengths.tolist(), strict=True)):
            read = self.tokens.read(begin, begin + length + 1)
            ids[row, :length], targets[row, :length] = read[:-1], read[1:]
            if documents is not None:
                numbers = document_numbers(self.tokens.ends, begin, T + 1)
                documents[row] = numbers[:-1]
                targets[row, numbers[1:] != numbers[:-1]] = IGNORE

            targets[row, : seen[row] if seen else 0] = IGNORE

        padding_mask = np.arange(T) < lengths[:, None]  # (B, T)

        return Batch(
            ids=torch.from_numpy(ids),
            targets=torch.from_numpy(targets),
            padding_mask=None if padding_mask.all() else torch.from_numpy(padding_mask),
            documents=None if documents is None else torch.from_numpy(documents),
            positions=None if documents is None else torch.from_numpy(positions_within(documents)),
        )
