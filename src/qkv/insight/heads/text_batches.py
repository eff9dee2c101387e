"""What a model is asked of a text, as a batch of one row: its next words, its hidden words, its
label.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from qkv.data.batches.batch import Batch
from qkv.data.batches.framing import Frame
from qkv.data.batches.labelled import LabelledData
from qkv.data.batches.labels import numbers_of, targets_of
from qkv.data.batches.masked import MaskedData, WordPieces
from qkv.data.sources.examples import Example
from qkv.data.tokens.token_arrays import Tokens
from qkv.generation.text import prompt_ids
from qkv.insight.inspect.logit_lens import predicts_tokens
from qkv.models import BERT, GPT, TaskModel
from qkv.models.registry import Model
from qkv.text.tokenizer import Tokenizer

LONGEST = 256
"""Tokens of a text that are read; what comes after is left out."""


def batches_of(
    model: Model, tokenizer: Tokenizer, texts: Iterable[str], *, longest: int = LONGEST
) -> list[Batch]:
    """A batch for each text that has something to ask: next words of a GPT, hidden words of a BERT,
    the same ones every time; of an encoder that says nothing, the text itself."""
    return [
        batch
        for text in texts
        if text.strip() and (batch := batch_of(model, tokenizer, text, longest)).count
    ]


def batch_of(model: Model, tokenizer: Tokenizer, text: str, longest: int = LONGEST) -> Batch:
    longest = min(longest, model.config.context) if isinstance(model, GPT | BERT) else longest
    if isinstance(model, GPT):
        row = torch.tensor([prompt_ids(tokenizer, text)[: longest + 1]])  # (1, T + 1)
        return Batch(ids=row[:, :-1], targets=row[:, 1:])

    if not isinstance(model, BERT):
        raise TypeError(
            f"model: a text alone is for a GPT or a BERT, not for a {type(model).__name__}"
        )

    before, after = ([] if id is None else [id] for id in (tokenizer.start, tokenizer.end))
    room = longest - len(before) - len(after)
    ids = tokenizer.encode(text)[:room]
    if not predicts_tokens(model) or not ids:
        row = torch.tensor([[*before, *ids, *after]])
        return Batch(
            ids=row, targets=torch.zeros(1, int(not predicts_tokens(model)), dtype=torch.int64)
        )

    tokens = Tokens([np.array(ids, dtype=np.int64)], np.array([len(ids)]), "")
    size = len(before) + len(ids) + len(after)

    return next(MaskedData(tokens, size, 1, 0, WordPieces.of(tokenizer)).ordered())


def batches_of_pairs(
    tokenizer: Tokenizer, pairs: Iterable[tuple[str, str]], *, longest: int = LONGEST
) -> list[Batch]:
    """For a translator: the target's words and its end, each after the true ones before it."""
    start, end = tokenizer.start, tokenizer.end
    if start is None or end is None:
        raise ValueError(
            "tokenizer: a translator needs a start and an end token, and this one lacks them"
        )

    made = []

    for source, target in pairs:
        read, words = (tokenizer.encode(side)[: longest - 1] for side in (source, target))
        ids, targets, sources = (
            torch.tensor([row]) for row in ([start, *words], [*words, end], [*read, end])
        )
        made.append(Batch(ids=ids, targets=targets, source=sources))

    return made


def batches_of_examples(
    model: TaskModel, tokenizer: Tokenizer, examples: Sequence[Example]
) -> list[Batch]:
    """For a fine-tuned model: the labels that people gave."""
    head, frame = model.config.head, Frame(**model.config.frame)
    targets = numbers = None
    if head.numbers:
        numbers = (numbers_of(examples) - head.offset) / head.scale
    else:
        targets = targets_of(examples, head.labels, head.task)

    data = LabelledData(frame.encode(tokenizer, examples), targets, numbers, frame, 1)

    return [data.chosen(np.array([number])) for number in range(len(examples))]
