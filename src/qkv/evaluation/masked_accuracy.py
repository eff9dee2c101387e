"""Accuracy of masked language modelling: how well a BERT predicts masked tokens of a text.

The masked positions are those of validation in training. As there, most of the masked tokens are
shown as [mask], some as another token and some unchanged; see data/batches/masked.py.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from qkv.data.batches.batch import IGNORE, Batch
from qkv.data.batches.masked import MaskedData, WordPieces
from qkv.data.sources.source import TextSource
from qkv.data.tokens.prepare import prepare_texts
from qkv.evaluation.intervals import Score, bootstrap_score, perplexity, ratio
from qkv.evaluation.likelihood import (
    TOKENS_ON_GPU,
    Progress,
    ignore_progress,
    token_log_probabilities,
)
from qkv.generation.generate import without_dropout
from qkv.models import BERT
from qkv.nn.linear.frozen_matrix import quantized_activations
from qkv.text import Tokenizer

RATE = 0.15
"""The fraction of tokens that are masked."""
TOKENS = 2**12
"""Tokens of one forward pass on a CPU, which all cores share."""


class MaskedAccuracy(NamedTuple):
    """Scores of masked language modelling, and the counts behind them."""

    scores: tuple[Score, ...]
    """Accuracy, and the perplexity of the masked tokens."""
    rows: int
    tokens: int
    """Tokens of the text, without special tokens around rows."""
    masked: int
    unknown: int
    """Unknown tokens, which stand for words outside the vocabulary; they are never masked."""


class RowScores(NamedTuple):
    """The masked tokens of one row."""

    correct: int
    logprobs: list[float]


def masked_accuracy(
    model: BERT,
    tokenizer: Tokenizer,
    texts: TextSource,
    *,
    limit: int | None = None,
    seed: int = 0,
    progress: Progress = ignore_progress,
) -> MaskedAccuracy:
    """The accuracy of masked tokens in rows of the context's length, the first `limit` of them.

    The seed only affects the confidence intervals, not which tokens are masked.
    """
    _ = model.mlm_head  # raises if the model has none
    pieces = WordPieces.of(tokenizer)
    context = model.config.context
    device = next(model.parameters()).device
    tokens_per_pass = TOKENS_ON_GPU if device.type == "cuda" else TOKENS

    # The text, cut to the limit
    tokens = prepare_texts(texts, tokenizer, progress=False)  # the caller shows the progress
    if limit is not None:
        row_tokens = max(1, context - len(pieces.frame.around([])))
        tokens = tokens.within(0, min(len(tokens), limit * row_tokens))

    data = MaskedData(tokens, context, max(1, tokens_per_pass // context), 0, pieces, rate=RATE)
    count = -(-len(tokens) // data.size)
    rows: list[RowScores] = []
    done = 0
    unknown = 0

    with without_dropout(model):
        for batch in data.ordered():
            if tokenizer.unknown is not None:
                unknown += int((batch.ids == tokenizer.unknown).sum())

            rows += score_rows(model, batch.to(device))
            done += batch.rows
            progress(done, count)

    scored = [row for row in rows if row.logprobs]
    if not scored:
        raise ValueError(f"data: {texts.name} has no word that could be masked")

    # The bootstrap draws rows.
    units = np.array([(row.correct, len(row.logprobs)) for row in scored], dtype=np.float64)
    accuracy = bootstrap_score("accuracy", units, ratio, percent=True, seed=seed)
    token_perplexity = perplexity([row.logprobs for row in scored], seed=seed)
    masked = int(units[:, 1].sum())

    return MaskedAccuracy((accuracy, token_perplexity), count, len(tokens), masked, unknown)


@torch.no_grad()
@quantized_activations()
def score_rows(model: BERT, batch: Batch) -> list[RowScores]:
    """The predictions of the masked tokens of each row."""
    assert batch.target_positions is not None
    is_masked = batch.targets != IGNORE  # (B, M)
    hidden: Tensor = model.hidden(batch.ids, padding_mask=batch.padding_mask)  # (B, T, E)
    row_numbers, _ = is_masked.nonzero(as_tuple=True)  # (N,)
    chosen = hidden[row_numbers, batch.target_positions[is_masked]]  # (N, E)
    logprobs, correct = token_log_probabilities(model, chosen, batch.targets[is_masked])  # (N,)

    counts = is_masked.sum(1).tolist()
    correct_rows = correct.cpu().split(counts)
    logprob_rows = logprobs.cpu().split(counts)

    return [
        RowScores(int(hits.sum()), values.tolist())
        for hits, values in zip(correct_rows, logprob_rows, strict=True)
    ]
