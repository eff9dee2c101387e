"""Samples during training: generated text, translations, predicted masks, or task predictions."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.data.batches.batch import IGNORE, Batch
from qkv.data.batches.chat import ConversationData
from qkv.generation import generate, translate
from qkv.generation.generate import without_dropout
from qkv.models import BERT, GPT, RNN, TaskModel, Transformer
from qkv.models.model import Model
from qkv.text import Tokenizer
from qkv.text.chat_template import end_of_turn_ids
from qkv.text.frame_tokens import translation_ends
from qkv.training.finetune.task_objective import TaskScorer
from qkv.training.setup.training_task import TrainingTask

EXAMPLES = 2
LENGTH = 48
SHOWN_TOKENS = 8


def sample_maker(task: TrainingTask) -> Callable[[Model], list[str]]:
    """A function that shows what a model predicts for examples of the validation data."""
    tokenizer = task.tokenizer
    batch = next(iter(task.validation.ordered())).part(0, EXAMPLES)

    def make_samples(model: Any) -> list[str]:
        if model.task is not None:
            return sample_predictions(model, tokenizer, batch)
        if model.has_source:
            return sample_translations(model, tokenizer, batch)
        if model.predicts != "next":
            return sample_masks(model, tokenizer, batch)
        if isinstance(task.validation, ConversationData):
            return sample_replies(model, tokenizer, task.validation)

        return sample_texts(model, tokenizer)

    return make_samples


def sample_texts(model: Model, tokenizer: Tokenizer) -> list[str]:
    """Generate texts from their first token on, i.e. after an end-of-text token."""
    begin = tokenizer.end or 0
    prompt = torch.full((EXAMPLES, 1), begin, device=device_of(model))
    length = min(LENGTH, model.config.context)
    generated = generate(
        model, prompt, length=length, end=tokenizer.end, temperature=0.8, top_k=50, seed=0
    )

    return [shortened(tokenizer.decode(ids)) for ids in generated]


def sample_replies(model: GPT, tokenizer: Tokenizer, data: ConversationData) -> list[str]:
    """Generate replies to the first user messages of held-out conversations."""
    prompts = []
    for number in data.chosen[:EXAMPLES].tolist():
        conversation = data.conversations[number]
        first_reply = int(conversation.is_target.argmax())
        if first_reply + LENGTH <= model.config.context:
            prompts.append(conversation.ids[:first_reply].tolist())

    if not prompts:
        return []

    ends = end_of_turn_ids(tokenizer)
    replies = generate(model, prompts, length=LENGTH, end=ends, temperature=0.0)
    samples = []
    for prompt, ids in zip(prompts, replies, strict=True):
        question = shortened(tokenizer.decode(prompt))
        samples.append(f"{question}\n-> {shortened(tokenizer.decode(ids))}")

    return samples


def shortened(text: str, lines: int = 8) -> str:
    """The first lines of a text, without empty ones."""
    return "\n".join([line for line in text.splitlines() if line.strip()][:lines])


def sample_translations(model: Transformer | RNN, tokenizer: Tokenizer, batch: Batch) -> list[str]:
    """Translate the sources of a batch, and show the references."""
    start, end = translation_ends(tokenizer)
    batch = batch.to(device_of(model))
    assert batch.source is not None
    generated = translate(
        model,
        batch.source,
        batch.source_padding_mask,
        start=start,
        end=end,
        length=2 * batch.source.shape[1] + 8,
    )
    sources = decode_rows(tokenizer, batch.source)
    references = decode_rows(tokenizer, batch.targets)

    samples = []
    for source, ids, reference in zip(sources, generated, references, strict=True):
        samples.append(f"{source} -> {tokenizer.decode(ids)}   (reference: {reference})")

    return samples


@torch.no_grad()
def sample_masks(model: BERT, tokenizer: Tokenizer, batch: Batch) -> list[str]:
    """The masked tokens of a text, and the model's predictions for them."""
    assert batch.target_positions is not None
    device = device_of(model)
    positions = batch.target_positions[0].to(device)
    with without_dropout(model):
        hidden = model.hidden(batch.ids[:1].to(device))[0, positions]  # (M, E)
        predicted = model.logits(hidden).argmax(-1).tolist()  # (M,)

    correct = 0
    pairs = []
    for true, guess in zip(batch.targets[0].tolist(), predicted, strict=True):
        if true != IGNORE:
            correct += true == guess
            pairs.append(f"{tokenizer.decode([true])!r} as {tokenizer.decode([guess])!r}")

    shown = ", ".join(pairs[:SHOWN_TOKENS])
    return [f"{correct} of {len(pairs)} masked tokens predicted correctly: {shown}"]


@torch.no_grad()
def sample_predictions(model: TaskModel, tokenizer: Tokenizer, batch: Batch) -> list[str]:
    """The predictions of a task model, and the references."""
    batch = batch.to(device_of(model))
    with without_dropout(model):
        scores, _ = TaskScorer(model)(batch)  # (B, M, C)

    samples = []
    for row, ids in enumerate(batch.ids):
        first_sequence = ids[: len(ids) // batch.group].tolist()
        texts = split_texts(tokenizer, first_sequence, model.config.head.delimiter)
        samples.append(f"{' | '.join(texts)} -> {prediction_text(model, batch, scores, row)}")

    return samples


def prediction_text(
    model: TaskModel, batch: Batch, scores: Float[Tensor, "B M C"] | Tensor, row: int
) -> str:
    """The prediction for one row with its reference: a number, tags or a class."""
    head = model.config.head
    if head.numbers:
        assert batch.numbers is not None
        # Enough digits to tell the numbers of the data apart
        digits = max(2, 2 - math.floor(math.log10(head.scale)))
        reference = float(model.in_units(batch.numbers[row]))
        predicted_number = float(model.in_units(scores[row]))
        return f"{predicted_number:.{digits}f}   (reference: {reference:.{digits}f})"

    predicted = scores[row].argmax(-1).tolist()  # (M,)
    targets = batch.targets[row].tolist()
    if head.task == "tag":
        tags = []
        correct = 0
        for tag, target in zip(predicted, targets, strict=True):
            if target != IGNORE:
                tags.append(head.labels[tag])
                correct += tag == target

        return f"{' '.join(tags)}   ({correct} of {len(tags)} right)"

    names = head.labels or [f"choice {number}" for number in range(batch.group)]
    return f"{names[predicted[0]]}   (reference: {names[targets[0]]})"


def split_texts(tokenizer: Tokenizer, ids: list[int], delimiter: int) -> list[str]:
    """The texts of a sequence, split at the delimiter, without special tokens."""
    borders = [position for position, id in enumerate(ids) if id == delimiter]
    texts = []
    for begin, end in pairwise([0, *borders, len(ids)]):
        text = tokenizer.decode(ids[begin:end]).strip()
        if text:
            texts.append(text)

    return texts


def decode_rows(tokenizer: Tokenizer, rows: Tensor) -> list[str]:
    """The text of each row, without ignored positions."""
    return [tokenizer.decode(row[row != IGNORE]) for row in rows]


def device_of(model: Model) -> torch.device:
    """The device of the model's parameters."""
    return next(model.parameters()).device
