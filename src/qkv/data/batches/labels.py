"""Labels of examples: the classes, their ids, class weights, and balanced samples of examples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from qkv.data.batches.batch import IGNORE
from qkv.data.batches.order import check_seed, random_generator
from qkv.data.sources.examples import Example, as_number


def class_names(
    training: Sequence[Example], validation: Sequence[Example], task: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the classes in order, and notes for the user; multiple choice has no classes.

    A class must have at least two training examples, and a class in the validation data must be in
    the training data. A tag that training lacks is only noted, since a sentence has many tags.
    """
    if task == "choice":
        return (), ()

    trained = label_sites(training)
    validated = label_sites(validation)
    if len(trained) < 2:
        only = next(iter(trained), "none")
        raise ValueError(
            f"{training[0].where}: expected two classes to train on or more, found only {only}"
        )

    if task == "tag":
        return in_order(trained), tuple(unlearned_tags(trained, validated))

    for label, sites in trained.items():
        if len(sites) < 2:
            raise ValueError(
                f"{sites[0]}: the class {label!r} has this one example; add another, "
                "or leave it out"
            )

    for label, sites in validated.items():
        if label not in trained:
            raise ValueError(f"{sites[0]}: the label {label!r} is never seen in training")

    return in_order(trained), ()


def unlearned_tags(trained: dict[str, list[str]], validated: dict[str, list[str]]) -> Iterable[str]:
    """Notes on the tags of the validation data that the training data do not have."""
    for tag, sites in validated.items():
        if tag not in trained:
            yield (
                f"{sites[0]}: the tag {tag} is never seen in training, so its words are not counted"
            )


def label_sites(examples: Iterable[Example]) -> dict[str, list[str]]:
    """The first two places where each label occurs."""
    sites: dict[str, list[str]] = defaultdict(list)
    for example in examples:
        for label in example_labels(example):
            if len(sites[label]) < 2:
                sites[label].append(example.where)

    return sites


def example_labels(example: Example) -> tuple[str, ...]:
    """The label of an example, or the tags of its words."""
    if example.label is None:
        raise ValueError(f"{example.where}: there is no label")

    return (example.label,) if isinstance(example.label, str) else example.label


def in_order(labels: Iterable[str]) -> tuple[str, ...]:
    """Labels sorted by number if all are integers, else by name."""
    try:
        return tuple(sorted(labels, key=int))
    except ValueError:
        return tuple(sorted(labels))


def label_targets(
    examples: Sequence[Example], labels: Sequence[str], task: str
) -> Int[np.ndarray, "n"] | list[Int[np.ndarray, "_"]]:
    """The class of each example, the index of its correct choice, or the tags of its words.

    A tag that is not among the labels becomes IGNORE.
    """
    ids = {label: id for id, label in enumerate(labels)}
    if task == "tag":
        return [tag_ids(example, ids) for example in examples]

    targets: list[int] = []
    for example in examples:
        label = example_labels(example)[0]
        if task == "choice":
            targets.append(int(label))
        elif label in ids:
            targets.append(ids[label])
        else:
            raise ValueError(
                f"{example.where}: the label {label!r} is not one of the model's: "
                f"{', '.join(labels)}"
            )

    return np.array(targets, dtype=np.int64)


def tag_ids(example: Example, ids: dict[str, int]) -> Int[np.ndarray, "_"]:
    return np.array([ids.get(tag, IGNORE) for tag in example_labels(example)], dtype=np.int32)


def label_numbers(examples: Sequence[Example]) -> Float[np.ndarray, "n"]:
    """The labels as numbers."""
    numbers = [as_number(example_labels(example)[0], example.where) for example in examples]
    return np.array(numbers, dtype=np.float64)


def mean_and_deviation(numbers: Float[np.ndarray, "n"], where: str) -> tuple[float, float]:
    """Mean and standard deviation of the training labels."""
    if np.ptp(numbers) == 0:
        raise ValueError(f"{where}: all {len(numbers)} numbers to train on are {numbers[0]:g}")

    return float(numbers.mean()), float(numbers.std())


def balanced_weights(targets: Sequence[Any] | np.ndarray, classes: int) -> list[float]:
    """Class weights n / (C n_c), so that all classes count alike; 1 for an absent class."""
    ids = np.concatenate(list(map(np.atleast_1d, targets)))
    counts = np.bincount(ids, minlength=classes)
    return [float(counts.sum() / (classes * count)) if count else 1.0 for count in counts]


def sample_examples(
    examples: Sequence[Example], n: int, seed: int, *, even: bool = True
) -> list[Example]:
    """A random sample of n examples; with `even`, the classes as balanced as possible.

    A smaller sample with the same seed is part of a larger one.
    """
    check_seed(seed)
    if not 1 <= n <= len(examples):
        raise ValueError(f"n: expected 1 to {len(examples)}, the number of examples, not {n}")

    random = random_generator("some examples", seed, 0)
    classes: dict[object, list[int]] = defaultdict(list)

    for number in random.permutation(len(examples)).tolist():
        label = examples[number].label
        is_class = even and isinstance(label, str)
        classes[label if is_class else None].append(number)

    # Take one example of each class per round, in random order within the round.
    numbers = list(chain.from_iterable(classes.values()))
    rounds = np.concatenate([np.arange(len(members)) for members in classes.values()])
    tie_breaks = random.permutation(len(numbers))
    chosen = np.lexsort((tie_breaks, rounds))[:n]

    return [examples[numbers[index]] for index in chosen.tolist()]
