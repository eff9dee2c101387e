"""Examples for fine-tuning: reading, holding out, choosing some, and notes about them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from qkv.data.batches.framing import FramedExamples
from qkv.data.batches.labels import class_names, sample_examples
from qkv.data.batches.order import random_generator
from qkv.data.sources.examples import Example, open_examples
from qkv.data.sources.source import Source
from qkv.training.finetune.finetune_config import FinetuneConfig

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


def read_all(tune: FinetuneConfig, open_named: Callable[[Sequence[str]], Source[Any]]) -> Examples:
    """Everything that the data and the validation data name; nothing is held out yet."""
    source = open_named(tune.data)
    examples = Examples(list(source), [], source.fingerprint())
    if not tune.validation:
        return examples

    validation = open_named(tune.validation)
    sources = examples.sources | validation_fingerprint(validation)
    return Examples(examples.training, list(validation), sources)


def read_examples(tune: FinetuneConfig, seed: int) -> Examples:
    """Read and check all examples; then hold some out, and choose those to train on."""
    columns: dict[str, Any] = {"text": tune.text, "pair": tune.pair, "label": tune.label}
    training, validation, sources, _ = read_all(
        tune, partial(open_examples, task=tune.task, **columns)
    )

    # Numbers or classes
    numbers = has_numbers(tune, training, validation)
    labels: tuple[str, ...] = ()
    by_class: Callable[[Example], object] | None = None
    if tune.task in ("classify", "pair", "similarity") and not numbers:
        labels = class_names(training, validation, tune.task)[0]
        by_class = label_of

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


def label_of(example: Example) -> object:
    return example.label


def validation_fingerprint(source: Source[Any]) -> dict[str, str]:
    """The fingerprint of validation data, under other names than that of training data."""
    return {f"validation {name}": value for name, value in source.fingerprint().items()}


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
    remaining: Counter[object] = Counter()
    if kind is not None:
        remaining = Counter(map(kind, examples))

    # Choose at random
    chosen: set[int] = set()
    for index in random_generator("held out", 0, 0).permutation(len(examples)).tolist():
        if len(chosen) == count:
            break
        if kind is None:
            chosen.add(index)
        elif remaining[kind(examples[index])] > 2:
            chosen.add(index)
            remaining[kind(examples[index])] -= 1

    if not chosen or len(chosen) == len(examples):
        raise ValueError(
            f"data: {len(examples)} examples are too few to hold some out; give --validation"
        )

    # Distribute
    training: list[Item] = []
    held_out: list[Item] = []
    for index, example in enumerate(examples):
        if index in chosen:
            held_out.append(example)
        else:
            training.append(example)

    return training, held_out


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
    training: Sequence[Example],
    validation: Sequence[Example],
    labels: Sequence[str],
    framed: Sequence[FramedExamples],
    context: int,
) -> list[str]:
    """Notes about the examples to print: how many, which classes, what is cut."""
    note = f"{len(training):,} examples to train on, {len(validation):,} to validate on"
    if labels:
        note += f", {len(labels)} classes: {', '.join(labels[:LISTED_LABELS])}"
    if len(labels) > LISTED_LABELS:
        note += f" and {len(labels) - LISTED_LABELS} more"

    notes = [note]
    cut = sum(part.cut for part in framed)
    if cut:
        notes.append(f"{cut:,} examples are longer than {context:,} tokens, and are cut to them")

    words_cut = sum(part.words_cut for part in framed)
    if words_cut:
        notes.append(f"{words_cut:,} words lie beyond that, and are neither learned nor counted")

    return notes
