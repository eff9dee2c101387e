"""What a model says while it is trained: a few words of its own, translations, or guesses at hidden
words.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from qkv.data.batches.batch import IGNORE, Batch
from qkv.data.batches.chat import ConversationData
from qkv.generation import generate, translate
from qkv.generation.generate import without_dropout
from qkv.models import BERT, GPT, RNN, TaskModel, Transformer
from qkv.models.registry import Model
from qkv.text import Tokenizer
from qkv.text.chat_template import ends_of_turn
from qkv.training.setup.training_task import TrainingTask

EXAMPLES = 2
LENGTH = 48


def maker(task: TrainingTask) -> Callable[[Model], list[str]]:
    """A function that shows what a model says by now, asked about data that it is not trained on."""
    tokenizer, batch = task.tokenizer, next(iter(task.validation.ordered())).part(0, EXAMPLES)

    def says(model: Model) -> list[str]:
        if isinstance(model, GPT):
            if isinstance(task.validation, ConversationData):
                return answering(model, tokenizer, task.validation)

            return writing(model, tokenizer)

        if isinstance(model, BERT):
            return guesses(model, tokenizer, batch)

        return (
            answers(model, tokenizer, batch)
            if isinstance(model, TaskModel)
            else translations(model, tokenizer, batch)
        )

    return says


def writing(model: GPT, tokenizer: Tokenizer) -> list[str]:
    """Texts from their first word on: what follows the end of the text before."""
    begin = tokenizer.end if tokenizer.end is not None else 0
    prompt = torch.full((EXAMPLES, 1), begin, device=device_of(model))
    length = min(LENGTH, model.config.context)
    said = generate(
        model, prompt, length=length, end=tokenizer.end, temperature=0.8, top_k=50, seed=0
    )

    return [shortened(tokenizer.decode(ids)) for ids in said]


def answering(model: GPT, tokenizer: Tokenizer, data: ConversationData) -> list[str]:
    """The last word of a person in a held-out conversation, and what the model says to it."""
    chosen = [data.conversations[number] for number in data.chosen[:EXAMPLES].tolist()]
    prompts = [
        each.ids[: int(each.asked.argmax())].tolist() for each in chosen
    ]  # up to the first answer
    prompts = [prompt for prompt in prompts if len(prompt) + LENGTH <= model.config.context]
    if not prompts:
        return []

    said = generate(model, prompts, length=LENGTH, end=ends_of_turn(tokenizer), temperature=0.0)
    pairs = zip(prompts, said, strict=True)

    return [
        f"{shortened(tokenizer.decode(prompt))}\n-> {shortened(tokenizer.decode(ids))}"
        for prompt, ids in pairs
    ]


def shortened(text: str, lines: int = 8) -> str:
    """Without empty lines, and not too many."""
    return "\n".join([line for line in text.splitlines() if line.strip()][:lines])


def translations(model: Transformer | RNN, tokenizer: Tokenizer, batch: Batch) -> list[str]:
    assert tokenizer.start is not None
    assert tokenizer.end is not None
    batch = batch.to(device_of(model))
    assert batch.source is not None
    length = 2 * batch.source.shape[1] + 8
    start, end = tokenizer.start, tokenizer.end
    said = translate(
        model, batch.source, batch.source_padding_mask, start=start, end=end, length=length
    )
    sources, targets = words(tokenizer, batch.source), words(tokenizer, batch.targets)

    return [
        f"{source} -> {tokenizer.decode(ids)}   (it should be: {target})"
        for source, ids, target in zip(sources, said, targets, strict=True)
    ]


@torch.no_grad()
def guesses(model: BERT, tokenizer: Tokenizer, batch: Batch) -> list[str]:
    """The hidden words of a text, and what stands there in the model's opinion."""
    assert batch.target_positions is not None
    with without_dropout(model):
        hidden = model.hidden(batch.ids[:1].to(device_of(model)))[
            0, batch.target_positions[0].to(device_of(model))
        ]  # (M, E)
        said = model.logits(hidden).argmax(-1).tolist()  # (M,)

    pairs = [
        (true, guess)
        for true, guess in zip(batch.targets[0].tolist(), said, strict=True)
        if true != IGNORE
    ]
    right = sum(true == guess for true, guess in pairs)
    told = ", ".join(
        f"{tokenizer.decode([true])!r} as {tokenizer.decode([guess])!r}"
        for true, guess in pairs[:8]
    )

    return [f"{right} of {len(pairs)} hidden words guessed: {told}"]


@torch.no_grad()
def answers(model: TaskModel, tokenizer: Tokenizer, batch: Batch) -> list[str]:
    """What a fine-tuned model says of texts, and what is true."""
    head = model.config.head
    batch = batch.to(device_of(model))
    assert batch.target_positions is not None

    with without_dropout(model):
        scores = model(
            batch.ids,
            target_positions=batch.target_positions,
            padding_mask=batch.padding_mask,
            segments=batch.segments,
            group=batch.group,
        )  # (B, M, C)

    said, true = scores.argmax(-1).tolist(), batch.targets.tolist()  # (B, M), (B, M)
    shown = []

    for row, ids in enumerate(batch.ids):
        if head.numbers:
            assert batch.numbers is not None
            digits = max(
                2, 2 - math.floor(math.log10(head.scale))
            )  # enough to tell the data's numbers apart
            true_number = float(model.in_units(batch.numbers[row]))
            told = f"{float(scores[row]):.{digits}f}   (it should be: {true_number:.{digits}f})"
        elif head.task == "tag":
            target_positions = [place for place, target in enumerate(true[row]) if target != IGNORE]
            right = sum(said[row][place] == true[row][place] for place in target_positions)
            told = f"{' '.join(head.labels[said[row][place]] for place in target_positions)}   ({right} of {len(target_positions)} right)"
        else:
            names = head.labels or [f"choice {number}" for number in range(batch.group)]
            told = f"{names[said[row][0]]}   (it should be: {names[true[row][0]]})"

        read = ids[: len(ids) // batch.group].tolist()  # of several sequences, the first
        shown.append(f"{' | '.join(between_marks(tokenizer, read, head.delimiter))} -> {told}")

    return shown


def between_marks(tokenizer: Tokenizer, ids: list[int], delimiter: int) -> list[str]:
    """The texts of a sequence, without what stands around them."""
    borders = [place for place, id in enumerate(ids) if id == delimiter]
    texts = [tokenizer.decode(ids[begin:end]) for begin, end in pairwise([0, *borders, len(ids)])]
    return [text.strip() for text in texts if text.strip()]


def words(tokenizer: Tokenizer, rows: Tensor) -> list[str]:
    return [tokenizer.decode(row[row != IGNORE]) for row in rows]


def device_of(model: Model) -> torch.device:
    return next(model.parameters()).device
