"""The labels of examples: which there are, checked before any training, as the numbers that a model
learns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from qkv.data.batches.batch import IGNORE
from qkv.data.batches.order import check_seed, draws
from qkv.data.sources.examples import Example, as_number


def labels_of(
    training: Sequence[Example], validation: Sequence[Example], task: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The classes by name, sorted, and notes that a person should read. A choice has none: its
    answer is a number.

    A class must have two examples to train on or more, and one that is validated on must be trained
    on. Of tags, which come many to a sentence, an unseen one is only noted.
    """
    if task == "choice":
        return (), ()

    trained, validated = seen(training), seen(validation)
    if len(trained) < 2:
        only = next(iter(trained), "none")
        raise ValueError(
            f"{training[0].where}: expected two classes to train on or more, found only {only}"
        )

    if task == "tag":
        rare = [tag for tag in validated if tag not in trained]
        unlearned = "is never seen in training, so its words are not counted"
        return in_order(trained), tuple(
            f"{validated[tag][0]}: the tag {tag} {unlearned}" for tag in rare
        )

    for label, target_positions in trained.items():
        if len(target_positions) < 2:
            raise ValueError(
                f"{target_positions[0]}: the class {label!r} has this one example; add another, or leave it out"
            )

    for label, target_positions in validated.items():
        if label not in trained:
            raise ValueError(
                f"{target_positions[0]}: the label {label!r} is never seen in training"
            )

    return in_order(trained), ()


def seen(examples: Iterable[Example]) -> dict[str, list[str]]:
    """Where each label is met; of tags, and of all that are met often, the first places are enough."""
    target_positions: dict[str, list[str]] = defaultdict(list)
    for example in examples:
        for label in labels_in(example):
            if len(target_positions[label]) < 2:
                target_positions[label].append(example.where)

    return target_positions


def labels_in(example: Example) -> tuple[str, ...]:
    if example.label is None:
        raise ValueError(f"{example.where}: there is no label")

    return (example.label,) if isinstance(example.label, str) else example.label


def in_order(labels: Iterable[str]) -> tuple[str, ...]:
    """By number if all are whole numbers, else by name."""
    try:
        return tuple(sorted(labels, key=int))
    except ValueError:
        return tuple(sorted(labels))


def targets_of(
    examples: Sequence[Example], labels: Sequence[str], task: str
) -> Int[np.ndarray, "n"] | list[Int[np.ndarray, "_"]]:
    """The class of each example, the number of its right choice, or the tag of each of its words:
    IGNORE for one that is none of the labels."""
    if task == "choice":
        return np.array([int(labels_in(example)[0]) for example in examples], dtype=np.int64)

    ids = {label: id for id, label in enumerate(labels)}
    if task == "tag":
        return [
            np.array([ids.get(tag, IGNORE) for tag in labels_in(each)], dtype=np.int32)
            for each in examples
        ]

    for example in examples:
        for label in labels_in(example):
            if label not in ids:
                raise ValueError(
                    f"{example.where}: the label {label!r} is none of the model's: {', '.join(labels)}"
                )

    return np.array([ids[labels_in(example)[0]] for example in examples], dtype=np.int64)


def numbers_of(examples: Sequence[Example]) -> Float[np.ndarray, "n"]:
    """The labels as numbers."""
    return np.array(
        [as_number(labels_in(example)[0], example.where) for example in examples], dtype=np.float64
    )


def spread_of(numbers: Float[np.ndarray, "n"], where: str) -> tuple[float, float]:
    """Mean and standard deviation of what is trained on."""
    if np.ptp(numbers) == 0:
        raise ValueError(f"{where}: all {len(numbers)} numbers to train on are {numbers[0]:g}")

    return float(numbers.mean()), float(numbers.std())


def balanced(targets: Sequence[Any] | np.ndarray, classes: int) -> list[float]:
    """Weights that make all classes count alike, n / (C n_c); 1 for a class that never comes."""
    counts = np.bincount(
        np.concatenate([np.atleast_1d(each) for each in targets]), minlength=classes
    )
    return [float(counts.sum() / (classes * count)) if count else 1.0 for count in counts]


def some_of(examples: Sequence[Example], n: int, seed: int, *, even: bool = True) -> list[Example]:
    """n examples, the classes as `even` as they can be, or plainly at random. Fewer with the same
    seed are among more."""
    check_seed(seed)
    if not 1 <= n <= len(examples):
        raise ValueError(f"n: expected 1 to {len(examples)}, the number of examples, not {n}")

    random = draws("some examples", seed, 0)
    classes: dict[object, list[int]] = defaultdict(list)

    for number in random.permutation(len(examples)).tolist():
        label = examples[number].label
        classes[label if even and isinstance(label, str) else None].append(number)

    # Round after round one of each class that still has any, in an order of the round's own.
    rounds = [(turn, number) for members in classes.values() for turn, number in enumerate(members)]
    tickets = random.permutation(len(rounds))
    turns = np.array([turn for turn, _ in rounds])
    chosen = np.lexsort((tickets, turns))[:n]

    return [examples[rounds[place][1]] for place in chosen.tolist()]
