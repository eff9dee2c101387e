"""Examples for fine-tuning: reading, holding out, choosing some, and notes about them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from qkv.data.batches.framing import FramedExamples
from qkv.data.batches.labels import class_names, sample_examples
from qkv.data.batches.order import random_generator
from qkv.data.sources.examples import Example, open_examples
from qkv.data.sources.source import Source
from qkv.training.finetune.finetune_config import FinetuneConfig
from qkv.training.setup.training_task import sizes_note

MOST_HELD_OUT = 2_000
LISTED_LABELS = 8
Item = TypeVar("Item")


class Examples(NamedTuple):
    """The examples, or conversations, of a fine-tuning."""

    training: list[Any]
    validation: list[Any]
    sources: dict[str, str]
    """Fingerprints of the files."""
    numbers: bool = False
    """Whether the labels are numbers, not classes."""


def open_data(
    tune: FinetuneConfig, open_named: Callable[[Sequence[str]], Source[Any]]
) -> tuple[Source[Any], Source[Any] | None, dict[str, str]]:
    """The data, the validation data if they are named, and the fingerprints of their files."""
    source = open_named(tune.data)
    sources = source.fingerprint()
    if not tune.validation:
        return source, None, sources

    validation = open_named(tune.validation)
    for name, value in validation.fingerprint().items():
        sources[f"validation {name}"] = value

    return source, validation, sources


def read_examples(tune: FinetuneConfig, seed: int) -> Examples:
    """Read and check all examples; then hold some out, and choose those to train on."""
    columns: dict[str, Any] = {"text": tune.text, "pair": tune.pair, "label": tune.label}
    source, named, sources = open_data(tune, partial(open_examples, task=tune.task, **columns))
    training = list(source)
    validation = list(named or ())

    # Numbers or classes
    numbers = has_numbers(tune, training, validation)
    labels: tuple[str, ...] = ()
    by_class: Callable[[Example], object] | None = None
    if tune.task in ("classify", "pair", "similarity") and not numbers:
        labels = class_names(training, validation, tune.task)[0]
        by_class = attrgetter("label")

    if not tune.validation:
        training, validation = split(training, tune.held_out, by_class)

    if tune.examples is not None:
        check_enough(tune.examples, len(training))
        least = 2 * len(labels)  # a class is not learned from one example
        if tune.examples < least:
            raise ValueError(
                f"examples: {tune.examples} are too few for {len(labels)} classes; "
                f"expected {least} or more"
            )

        training = sample_examples(training, tune.examples, seed, even=not numbers)

    return Examples(training, validation, sources, numbers)


def check_enough(requested: int, available: int) -> None:
    if requested > available:
        raise ValueError(f"examples: there are {available:,} to train on, not {requested:,}")


def split(
    examples: list[Item], fraction: float, kind: Callable[[Item], object] | None = None
) -> tuple[list[Item], list[Item]]:
    """Examples to train on and examples held out, both in order, independent of the run's seed.

    At least two of each `kind` stay to be trained on.
    """
    count = min(MOST_HELD_OUT, max(1, round(fraction * len(examples))))
    order = random_generator("held out", 0, 0).permutation(len(examples)).tolist()
    chosen: set[int] = set()
    if kind is None:
        chosen = set(order[:count])
    else:
        remaining = Counter(map(kind, examples))
        for index in order:
            if len(chosen) < count and remaining[kind(examples[index])] > 2:
                chosen.add(index)
                remaining[kind(examples[index])] -= 1

    if not chosen or len(chosen) == len(examples):
        raise ValueError(
            f"data: {len(examples)} examples are too few to hold some out; give --validation"
        )

    training = [example for index, example in enumerate(examples) if index not in chosen]
    return training, [examples[index] for index in sorted(chosen)]


def has_numbers(
    tune: FinetuneConfig, training: Sequence[Example], validation: Sequence[Example]
) -> bool:
    """Whether the labels are numbers; in similarity by default if one of them has a fraction."""
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


def example_notes(
    training: FramedExamples, validation: FramedExamples, labels: Sequence[str], context: int
) -> list[str]:
    """Notes about the examples to print: how many, which classes, what is cut."""
    note = sizes_note(training, validation, "examples")
    if labels:
        note += f", {len(labels)} classes: {', '.join(labels[:LISTED_LABELS])}"
    if len(labels) > LISTED_LABELS:
        note += f" and {len(labels) - LISTED_LABELS} more"

    notes = [note]
    cut = training.cut + validation.cut
    if cut:
        notes.append(f"{cut:,} examples are longer than {context:,} tokens, and are cut to them")

    words_cut = training.words_cut + validation.words_cut
    if words_cut:
        notes.append(f"{words_cut:,} words lie beyond that, and are neither learned nor counted")

    return notes
