"""Texts as batches of one row with the targets of a model: next tokens, masked tokens or labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from qkv.data.batches.batch import Batch
from qkv.data.batches.framing import Frame
from qkv.data.batches.labelled import LabelledData
from qkv.data.batches.labels import label_numbers, label_targets
from qkv.data.batches.masked import MaskedData, WordPieces
from qkv.data.sources.examples import Example
from qkv.data.tokens.token_arrays import Tokens
from qkv.generation.text import prompt_ids
from qkv.insight.inspect.model_input import frame_tokens
from qkv.models.model import Model
from qkv.text.frame_tokens import translation_ends
from qkv.text.tokenizer import Tokenizer

LONGEST = 256
"""Longest text in tokens; the rest is cut."""


def batches_from_texts(
    model: Model, tokenizer: Tokenizer, texts: Iterable[str], *, longest: int = LONGEST
) -> list[Batch]:
    """A batch for each text that has targets.

    The targets of a GPT are its next tokens, those of a BERT masked tokens (the same ones each
    time). An encoder without a token head reads the text alone.
    """
    batches = []
    for text in texts:
        if text.strip():
            batch = batch_of(model, tokenizer, text, longest)
            if batch.count:
                batches.append(batch)

    return batches


def batch_of(model: Model, tokenizer: Tokenizer, text: str, longest: int = LONGEST) -> Batch:
    """One text as a batch of one row; it may have no targets."""
    if model.has_source or model.task is not None:
        raise TypeError(
            f"model: a text alone is for a GPT or a BERT, not for a {type(model).__name__}"
        )

    longest = min(longest, model.config.context)
    if model.is_causal:
        row = torch.tensor([prompt_ids(tokenizer, text)[: longest + 1]])  # (1, T + 1)
        return Batch(ids=row[:, :-1], targets=row[:, 1:])

    frame = frame_tokens(model, tokenizer)["self"]
    ids = tokenizer.encode(text)[: longest - len(frame.around([]))]
    row = torch.tensor([frame.around(ids)])
    if model.predicts is None:
        return Batch(ids=row, targets=torch.zeros(1, 1, dtype=torch.int64))
    if not ids:
        return Batch(ids=row, targets=torch.zeros(1, 0, dtype=torch.int64))

    tokens = Tokens([np.array(ids, dtype=np.int64)], np.array([len(ids)]), "")
    return next(MaskedData(tokens, row.shape[1], 1, 0, WordPieces.of(tokenizer)).ordered())


def batches_from_pairs(
    tokenizer: Tokenizer, pairs: Iterable[tuple[str, str]], *, longest: int = LONGEST
) -> list[Batch]:
    """A batch for each sentence pair of a translator; the targets are the target tokens and end."""
    start, end = translation_ends(tokenizer)
    batches = []
    for source, target in pairs:
        source_ids = tokenizer.encode(source)[: longest - 1]
        target_ids = tokenizer.encode(target)[: longest - 1]
        batches.append(
            Batch(
                ids=torch.tensor([[start, *target_ids]]),
                targets=torch.tensor([[*target_ids, end]]),
                source=torch.tensor([[*source_ids, end]]),
            )
        )

    return batches


def batches_from_examples(
    model: Model, tokenizer: Tokenizer, examples: Sequence[Example]
) -> list[Batch]:
    """A batch for each labelled example of a task model."""
    head = model.config.head
    frame = Frame(**model.config.frame)
    targets = numbers = None
    if head.numbers:
        numbers = (label_numbers(examples) - head.offset) / head.scale
    else:
        targets = label_targets(examples, head.labels, head.task)

    data = LabelledData(frame.encode(tokenizer, examples), targets, numbers, frame, 1)

    return [data.build(np.array([number])) for number in range(len(examples))]
