"""The examples of a fine-tuning: read, checked, held out, chosen; and what a person should know of
them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from qkv.data.batches.framing import FramedExamples
from qkv.data.batches.labels import labels_of, some_of
from qkv.data.batches.order import draws
from qkv.data.sources.examples import Example, open_examples
from qkv.data.sources.source import Source
from qkv.training.finetune.finetune_config import FinetuneConfig

MOST_HELD_OUT = 2_000
Item = TypeVar("Item")


class Read(NamedTuple):
    training: list[Example]
    validation: list[Example]
    numbers: bool
    """Whether the answer is a number."""
    sources: dict[str, str]
    """What they were read from."""


def read_examples(tune: FinetuneConfig, seed: int) -> Read:
    """What is wrong with the data is said of all of it, before a part is chosen."""
    columns: dict[str, Any] = {"text": tune.text, "pair": tune.pair, "label": tune.label}
    source = open_examples(tune.data, tune.task, **columns)
    training, sources = list(source), source.fingerprint()
    validation: list[Example] = []
    if tune.validation:
        held_out = open_examples(tune.validation, tune.task, **columns)
        validation, sources = list(held_out), sources | of_validation(held_out)

    numbers = says_numbers(tune, training, validation)
    classes = tune.task in ("classify", "pair", "similarity") and not numbers
    labels = labels_of(training, validation, tune.task)[0] if classes else ()
    if not tune.validation:
        training, validation = split(
            training, tune.held_out, (lambda each: each.label) if classes else None
        )

    if tune.examples is not None:
        check_enough(tune.examples, len(training))
        if tune.examples < (least := 2 * len(labels)):  # a class is not learned from one
            few = f"{tune.examples} are too few for {len(labels)} classes"
            raise ValueError(f"examples: {few}; expected {least} or more")

        training = some_of(training, tune.examples, seed, even=not numbers)

    return Read(training, validation, numbers, sources)


def of_validation(source: Source[Any]) -> dict[str, str]:
    """Its fingerprint, told from that of what is trained on."""
    return {f"validation {name}": value for name, value in source.fingerprint().items()}


def check_enough(asked: int, there: int) -> None:
    if asked > there:
        raise ValueError(f"examples: there are {there:,} to train on, not {asked:,}")


def split(
    examples: list[Item], fraction: float, kind: Callable[[Item], object] | None = None
) -> tuple[list[Item], list[Item]]:
    """Those to train on and those held out, both in their order, the same whatever the run's seed.
    Of each `kind` two at least stay to be trained on."""
    count = min(MOST_HELD_OUT, max(1, round(fraction * len(examples))))
    left = Counter(map(kind, examples)) if kind else Counter()
    chosen: set[int] = set()

    for number in draws("held out", 0, 0).permutation(len(examples)).tolist():
        own = kind(examples[number]) if kind else None
        if len(chosen) < count and (kind is None or left[own] > 2):
            chosen.add(number)
            left[own] -= 1

    if not chosen or len(chosen) == len(examples):
        raise ValueError(
            f"data: {len(examples)} examples are too few to hold some out; give --validation"
        )

    parts: tuple[list[Item], list[Item]] = ([], [])

    for number, example in enumerate(examples):
        parts[number in chosen].append(example)

    return parts


def says_numbers(
    tune: FinetuneConfig, training: Sequence[Example], validation: Sequence[Example]
) -> bool:
    """Whether the answer is a number: of a similarity, if a person says so or if one of the labels
    has a fraction.
    """
    if tune.task != "similarity" or tune.numbers is not None:
        return tune.task == "regress" or bool(tune.numbers)

    return any(map(has_fraction, [*training, *validation])) and all(map(is_number, training))


def is_number(example: Example) -> bool:
    try:
        return math.isfinite(float(str(example.label)))
    except ValueError:
        return False


def has_fraction(example: Example) -> bool:
    label = str(example.label)
    return is_number(example) and ("." in label or not float(label).is_integer())


def told(
    training: Sequence[Example],
    validation: Sequence[Example],
    labels: Sequence[str],
    framed: Sequence[FramedExamples],
    context: int,
) -> list[str]:
    """What a person should know of the data."""
    named = ", ".join(labels[:8]) + (f" and {len(labels) - 8} more" if len(labels) > 8 else "")
    classes = f", {len(labels)} classes: {named}" if labels else ""
    notes = [f"{len(training):,} examples to train on, {len(validation):,} to validate on{classes}"]
    if cut := sum(each.cut for each in framed):
        notes.append(f"{cut:,} examples are longer than {context:,} tokens, and are cut to them")

    if words := sum(each.words_cut for each in framed):
        notes.append(f"{words:,} words lie beyond that, and are neither learned nor counted")

    return notes
