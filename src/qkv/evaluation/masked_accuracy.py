"""How well a BERT guesses hidden words of a text: of the very places that validation asks about in
training.

Of the words that are asked, most are shown as [mask], some as another word and some as they are;
see data/batches/masked.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from qkv.data.batches.batch import IGNORE
from qkv.data.batches.masked import MaskedData, WordPieces
from qkv.data.sources.source import TextSource
from qkv.data.tokens.prepare import prepare_texts
from qkv.evaluation.intervals import Score, of_sums, perplexity, ratio
from qkv.evaluation.likelihood import TOKENS_ON_GPU, token_log_probabilities
from qkv.generation.generate import without_dropout
from qkv.models import BERT
from qkv.text import Tokenizer

RATE = 0.15
TOKENS = 2**12  # of one pass on a CPU, all of whose cores share it


class MaskedAccuracy(NamedTuple):
    scores: tuple[Score, ...]
    """Accuracy, and the perplexity of the hidden words."""
    rows: int
    tokens: int
    """Of the text, marks around rows left out."""
    asked: int
    unknown: int
    """Tokens that stand for words which the vocabulary does not have; they are read, and never
    asked.
    """


@torch.no_grad()
def of_texts(
    model: BERT,
    tokenizer: Tokenizer,
    texts: TextSource,
    *,
    limit: int | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, all: None,
) -> MaskedAccuracy:
    """The text is cut into rows as long as the context, `limit` of them. The seed draws for the
    intervals alone.
    """
    _ = model.mlm_head  # says now that there is none
    words, context = WordPieces.of(tokenizer), model.config.context
    device = next(model.parameters()).device
    rows = max(1, (TOKENS_ON_GPU if device.type == "cuda" else TOKENS) // context)
    tokens = prepare_texts(texts, tokenizer, progress=False)  # a line of progress is there already
    marks = (words.start is not None) + (words.end is not None)  # around the words of a row
    if limit is not None:
        tokens = tokens.within(0, min(len(tokens), limit * max(1, context - marks)))

    data = MaskedData(tokens, context, rows, 0, words, rate=RATE)
    count, done, unknown = -(-len(tokens) // data.size), 0, 0
    right: list[int] = []
    found: list[list[float]] = []  # the log-probabilities of each row's words

    with without_dropout(model):
        for batch in data.ordered():
            if tokenizer.unknown is not None:
                unknown += int((batch.ids == tokenizer.unknown).sum())

            on = batch.to(device)
            assert on.target_positions is not None
            asked = on.targets != IGNORE  # (B, M)
            hidden = model.hidden(on.ids, padding_mask=on.padding_mask)  # (B, T, E)
            numbers, _ = asked.nonzero(as_tuple=True)  # (N,): the row of each place
            chosen = hidden[numbers, on.target_positions[asked]]  # (N, E)
            log_probability, likeliest = token_log_probabilities(
                model, chosen, on.targets[asked]
            )  # (N,)
            counts = asked.sum(1).tolist()
            right += [int(each.sum()) for each in likeliest.cpu().split(counts)]
            found += [each.tolist() for each in log_probability.cpu().split(counts)]
            done += batch.rows
            progress(done, count)

    units = np.array(
        [[hits, len(row)] for hits, row in zip(right, found, strict=True) if row], dtype=np.float64
    )
    if not len(units):
        raise ValueError(f"data: {texts.name} has no word that could be hidden")

    accuracy = of_sums("accuracy", units, ratio, percent=True, seed=seed)
    surprise = perplexity([row for row in found if row], seed=seed)

    return MaskedAccuracy((accuracy, surprise), count, len(tokens), int(units[:, 1].sum()), unknown)
