"""Classification with a fine-tuned model: a class, a number, a choice, or a tag for each word."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.data.batches.framing import Frame, FramedExamples
from qkv.data.batches.labelled import collate
from qkv.data.sources.examples import PAIR_TASKS, Example
from qkv.generation.generate import without_dropout
from qkv.generation.prompts import texts_of
from qkv.models import TaskModel
from qkv.models.configs import HeadConfig
from qkv.nn.linear.frozen_matrix import quantized_activations
from qkv.text.tokenizer import Tokenizer

STRETCH = 32
"""Batches whose examples are sorted by length together, and so are answered together."""


class Answer(NamedTuple):
    """The prediction for one example; fields that the task does not have are None, or empty."""

    label: str | None = None
    """The likeliest class."""
    probability: float | None = None
    """Of the class, or of the choice."""
    scores: dict[str, float] | list[float] = {}  # noqa: RUF012 - it is never changed
    """The probability of each class by its name, or of the choices in their order."""
    number: float | None = None
    choice: int | None = None
    """The likeliest choice, counted from 0."""
    tags: list[tuple[str, str, float]] | None = None
    """Each word, its tag, and the tag's probability; words beyond the context have none."""


Cut = Callable[[int, int], object]
"""Called with the number of texts longer than the context, and of words without a tag."""


def classify(
    model: TaskModel,
    tokenizer: Tokenizer,
    texts: str | Sequence[str | Sequence[str]],
    *,
    rows: int = 32,
) -> Any:
    """Classify texts with a fine-tuned model.

    Args:
        model: A model with a task head.
        tokenizer: Its tokenizer.
        texts: Texts, or pairs of them for a task that compares two; a choice is (context, choice,
            choice, ...); a sentence to tag is its words, or a string with spaces between them.
        rows: Texts at a time.

    Returns:
        One answer for one string, else a list of answers.

    Raises:
        TypeError: If the model has no task head.
        ValueError: If a text does not fit the task.
    """
    check_model(model)
    task = model.config.head.task
    items = [texts] if isinstance(texts, str) else texts
    examples = []
    for number, text in enumerate(items, start=1):
        examples.append(example_of(task, text, f"text {number}"))

    predictions = list(answers(model, tokenizer, examples, rows=rows))

    return predictions[0] if isinstance(texts, str) else predictions


def answers(
    model: TaskModel,
    tokenizer: Tokenizer,
    examples: Iterable[Example],
    *,
    rows: int = 32,
    cut: Cut | None = None,
) -> Iterator[Answer]:
    """Yield an answer to each example, in their order.

    Args:
        model: A model with a task head.
        tokenizer: Its tokenizer.
        examples: Examples of the model's task; their labels are not used.
        rows: Examples at a time, those of similar length together.
        cut: Called if texts are longer than the context.
    """
    check_model(model)
    if rows < 1:
        raise ValueError(f"rows: expected 1 or more, not {rows}")

    remaining = iter(examples)
    while stretch := list(islice(remaining, rows * STRETCH)):
        for example in stretch:
            if not isinstance(example, Example):
                raise TypeError(
                    f"examples: expected Examples, not {example!r:.80}; classify takes texts"
                )

        yield from answer_stretch(model, tokenizer, stretch, rows, cut)


def answer_stretch(
    model: TaskModel, tokenizer: Tokenizer, examples: list[Example], rows: int, cut: Cut | None
) -> list[Answer]:
    """The answers to a stretch of examples, read in the order of their lengths."""
    head = model.config.head
    frame = Frame(**model.config.frame)
    for example in examples:
        check_texts(head.task, example.texts, example.where)

    framed = frame.encode(tokenizer, examples)
    if cut is not None and framed.cut:
        cut(framed.cut, framed.words_cut)

    order = sorted(range(len(examples)), key=lambda index: int(framed.lengths[index]))
    results: dict[int, Answer] = {}
    with torch.no_grad(), quantized_activations(), without_dropout(model):
        for first in range(0, len(order), rows):
            chosen = order[first : first + rows]
            scores = score_examples(model, frame, framed, chosen)
            for index, its_scores in zip(chosen, scores, strict=True):
                targets = len(framed[index].target_positions)
                results[index] = answer(head, examples[index].texts, targets, its_scores)

    return [results[index] for index in range(len(examples))]


def score_examples(
    model: TaskModel, frame: Frame, framed: FramedExamples, chosen: Sequence[int]
) -> Float[Tensor, "B M C"]:
    """The model's scores of some examples, in float64 on the host."""
    batch = collate([framed[index] for index in chosen], frame).to(next(model.parameters()).device)
    assert batch.target_positions is not None
    scores = model(
        batch.ids,
        target_positions=batch.target_positions,
        padding_mask=batch.padding_mask,
        segments=batch.segments,
        group=batch.group,
    )

    if scores.device.type == "mps":  # without float64
        return scores.cpu().double()

    return scores.double().cpu()


def answer(
    head: HeadConfig, texts: Sequence[str], targets: int, scores: Float[Tensor, "M C"]
) -> Answer:
    """The answer to one example.

    Args:
        head: The task.
        texts: The example's texts, or its words.
        targets: Its choices, or its words within the context.
        scores: The model's scores.
    """
    if head.numbers:
        return Answer(number=float(scores))

    probability = scores.softmax(-1)  # (M, C)
    if head.task == "tag":
        values, tags = probability[:targets].max(-1)  # (N,)
        tagged = []
        for word, tag, value in zip(texts[:targets], tags.tolist(), values.tolist(), strict=True):
            tagged.append((word, head.labels[tag], value))

        return Answer(tags=tagged)

    probabilities = probability[0].tolist()
    best = int(scores[0].argmax())
    if head.task == "choice":
        return Answer(choice=best, probability=probabilities[best], scores=probabilities[:targets])

    by_label = dict(zip(head.labels, probabilities, strict=True))

    return Answer(label=head.labels[best], probability=probabilities[best], scores=by_label)


# Arguments


def check_model(model: TaskModel) -> None:
    if not isinstance(model, TaskModel):
        raise TypeError(
            "model: expected one with a task head, as qkv finetune makes it, "
            f"not a bare {type(model).__name__}"
        )


def example_of(task: str, text: str | Sequence[str], where: str) -> Example:
    """A text, or several, as an example of the task."""
    if not isinstance(text, str):
        texts = tuple(part.strip() for part in texts_of(text, where)[0])
    elif task == "tag":
        texts = tuple(text.split())
    else:
        texts = (text.strip(),)

    check_texts(task, texts, where)
    return Example(texts, None, where)


def check_texts(task: str, texts: Sequence[str], where: str) -> None:
    """Raise unless there are as many texts as the task has, and none is empty."""
    if not texts or not all(text.strip() for text in texts):
        raise ValueError(f"{where}: it is empty; expected a text")
    if task == "classify" and len(texts) != 1:
        raise ValueError(f"{where}: this model reads one text at a time, not {len(texts)}")
    if task in PAIR_TASKS and len(texts) != 2:
        raise ValueError(f"{where}: this model reads two texts together; give the second one, too")
    if task == "regress" and len(texts) > 2:
        raise ValueError(f"{where}: this model reads one text or two, not {len(texts)}")
    if task == "choice" and len(texts) < 3:
        raise ValueError(f"{where}: this model chooses; expected a context and two choices or more")
