"""What a fine-tuned model says of texts: a class, a number, a choice, or a tag for each word."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, overload

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.data.batches.framing import Frame, FramedExamples
from qkv.data.batches.labelled import join
from qkv.data.sources.examples import TWO_TEXTS, Example
from qkv.generation.generate import without_dropout
from qkv.generation.prompts import texts_of
from qkv.models import TaskModel
from qkv.models.configs import HeadConfig
from qkv.text.tokenizer import Tokenizer

STRETCH = 32
"""Batches whose examples are sorted by length together; nothing is answered before a stretch has
been read.
"""


class Answer(NamedTuple):
    """Fields that the task does not have are None, or empty."""

    label: str | None = None
    """The likeliest class."""
    probability: float | None = None
    """Of the class, or of the choice."""
    scores: dict[str, float] | list[float] = {}  # noqa: RUF012 - nobody changes it
    """The probability of each class by its name, or of the choices in their order: two may have the
    same text.
    """
    number: float | None = None
    choice: int | None = None
    """The likeliest choice, counted from 0."""
    tags: list[tuple[str, str, float]] | None = None
    """Each word, its tag, and how likely that is; words beyond the context have none."""


Cut = Callable[[int, int], object]
"""Hears how many texts were longer than the context, and how many words therefore have no tag."""


@overload
def classify(  # type: ignore[overload-overlap]  # a string is also a sequence of strings, and comes first
    model: TaskModel, tokenizer: Tokenizer, texts: str, *, rows: int = 32
) -> Answer: ...
@overload
def classify(
    model: TaskModel, tokenizer: Tokenizer, texts: Sequence[str | Sequence[str]], *, rows: int = 32
) -> list[Answer]: ...
def classify(
    model: TaskModel,
    tokenizer: Tokenizer,
    texts: str | Sequence[str | Sequence[str]],
    *,
    rows: int = 32,
) -> Answer | list[Answer]:
    """`classify(model, tokenizer, ["a text", "another"])`, or pairs: `[("a text", "another"),
    ...]`. One string gives one answer.

    A choice is asked as (context, choice, choice, ...); a sentence to be tagged is its words, or a
    string with spaces between them.
    """
    check_model(model)
    task = model.config.head.task
    given = [texts] if isinstance(texts, str) else texts
    examples = [
        example_of(task, text, f"text {number}") for number, text in enumerate(given, start=1)
    ]
    found = list(answers(model, tokenizer, examples, rows=rows))

    return found[0] if isinstance(texts, str) else found


def answers(
    model: TaskModel,
    tokenizer: Tokenizer,
    examples: Iterable[Example],
    *,
    rows: int = 32,
    cut: Cut | None = None,
) -> Iterator[Answer]:
    """An answer to each example, in their order, `rows` of them read at a time, those of similar
    length together.
    """
    check_model(model)
    if rows < 1:
        raise ValueError(f"rows: expected 1 or more, not {rows}")

    coming = iter(examples)

    while some := list(islice(coming, rows * STRETCH)):
        for each in some:
            if not isinstance(each, Example):
                raise TypeError(
                    f"examples: expected Examples, not {each!r:.80}; classify takes texts"
                )

        yield from answered(model, tokenizer, some, rows, cut)


def answered(
    model: TaskModel, tokenizer: Tokenizer, examples: list[Example], rows: int, cut: Cut | None
) -> list[Answer]:
    """All of a stretch."""
    head, frame = model.config.head, Frame(**model.config.frame)
    for example in examples:
        check_texts(head.task, example.texts, example.where)

    framed = frame.encode(tokenizer, examples)
    if cut is not None and framed.cut:
        cut(framed.cut, framed.words_cut)

    order = sorted(range(len(examples)), key=lambda place: int(framed.lengths[place]))
    found: dict[int, Answer] = {}

    with torch.no_grad(), without_dropout(model):
        for first in range(0, len(order), rows):
            chosen = order[first : first + rows]
            for place, scores in zip(chosen, read(model, frame, framed, chosen), strict=True):
                found[place] = answer(
                    head, examples[place].texts, len(framed[place].target_positions), scores
                )

    return [found[place] for place in range(len(examples))]


def read(
    model: TaskModel, frame: Frame, framed: FramedExamples, chosen: Sequence[int]
) -> Float[Tensor, "B M C"]:
    """The scores of some examples, on the host."""
    batch = join([framed[place] for place in chosen], frame).to(next(model.parameters()).device)
    assert batch.target_positions is not None
    scores = model(
        batch.ids,
        target_positions=batch.target_positions,
        padding_mask=batch.padding_mask,
        segments=batch.segments,
        group=batch.group,
    )

    return scores.double().cpu() if scores.device.type != "mps" else scores.cpu().double()


def answer(
    head: HeadConfig, texts: Sequence[str], asked: int, scores: Float[Tensor, "M C"]
) -> Answer:
    """From scores to what a person reads. `asked` are the choices of this example, or its words
    that were read.
    """
    if head.numbers:
        return Answer(number=float(scores))

    probability = scores.softmax(-1)  # (M, C)
    if head.task == "tag":
        likeliest, tags = probability[:asked].max(-1)  # (N,)
        found = zip(texts[:asked], tags.tolist(), likeliest.tolist(), strict=True)
        return Answer(tags=[(word, head.labels[tag], each) for word, tag, each in found])

    of_each = probability[0].tolist()
    best = int(scores[0].argmax())
    if head.task == "choice":
        return Answer(choice=best, probability=of_each[best], scores=of_each[:asked])

    scores_of = dict(zip(head.labels, of_each, strict=True))

    return Answer(label=head.labels[best], probability=of_each[best], scores=scores_of)


# What is asked


def check_model(model: TaskModel) -> None:
    if not isinstance(model, TaskModel):
        raise TypeError(
            f"model: expected one that qkv finetune put a head on, not a bare {type(model).__name__}"
        )


def example_of(task: str, text: str | Sequence[str], where: str) -> Example:
    """What a person gives, as the task reads it."""
    if isinstance(text, str):
        texts = tuple(text.split()) if task == "tag" else (text.strip(),)
    else:
        texts = tuple(each.strip() for each in texts_of(text, where)[0])

    check_texts(task, texts, where)
    return Example(texts, None, where)


def check_texts(task: str, texts: Sequence[str], where: str) -> None:
    """As many as the task has, and none of them empty."""
    if not texts or not all(text.strip() for text in texts):
        raise ValueError(f"{where}: it is empty; expected a text")
    if task == "classify" and len(texts) != 1:
        raise ValueError(f"{where}: this model reads one text at a time, not {len(texts)}")
    if task in TWO_TEXTS and len(texts) != 2:
        raise ValueError(f"{where}: this model reads two texts together; give the second one, too")
    if task == "regress" and len(texts) > 2:
        raise ValueError(f"{where}: this model reads one text or two, not {len(texts)}")
    if task == "choice" and len(texts) < 3:
        raise ValueError(f"{where}: this model chooses; expected a context and two choices or more")
