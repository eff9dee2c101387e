"""Training, validation and test examples for probes, from files or held out, and their labels."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from qkv.data.sources.examples import Example, as_number, open_examples
from qkv.insight.probing.linear_probe import UNKNOWN

Parts = Sequence[Sequence[Example]]
"""Training, validation and test examples."""
HELD_OUT = 0.1
"""Share of the texts for validation, and again for testing, if no files are given for these."""


def split(files: Mapping[str, Sequence[str]], most: int | None, **columns: Any) -> Parts:
    """Training, validation and test examples; without files a fixed tenth is held out for each.

    Args:
        files: The files of target, validation and test.
        most: The largest number of training examples.
        columns: The task and the columns, as in `open_examples`.
    """
    if most is not None and most < 1:
        raise ValueError(f"examples: expected 1 or more, not {most}")

    sources = {}
    for use, paths in files.items():
        if paths:
            sources[use] = open_examples(paths, **columns)

    check_apart({use: [part.name for part in source.parts] for use, source in sources.items()})
    examples = {use: list(source) for use, source in sources.items()}

    # Hold out parts of the training examples
    training = examples["target"]
    order = np.random.default_rng(0).permutation(len(training)).tolist()
    count = max(1, round(HELD_OUT * len(training)))
    for use in ("validation", "test"):
        if use not in examples:
            examples[use] = [training[index] for index in order[:count]]
            order = order[count:]

    if not order:
        raise ValueError(
            f"{files['target'][0]}: {len(training)} texts are too few to hold some out; give "
            "validation and test"
        )

    kept = [training[index] for index in sorted(order[:most])]
    return [kept, examples["validation"], examples["test"]]


def check_apart(files: Mapping[str, Sequence[str]]) -> None:
    """Raise if a file is used twice: test texts must be unknown from training and validation."""
    uses: dict[tuple[int, int] | str, str] = {}
    for use, names in files.items():
        for name in names:
            key: tuple[int, int] | str = name  # of a dataset on the hub, or standard input
            if os.path.exists(name):
                stat = os.stat(name)
                key = (stat.st_dev, stat.st_ino)

            first = uses.setdefault(key, use)
            if first != use:
                raise ValueError(
                    f"{use}: {name} is a file of {first}, too; expected texts that are in one of "
                    "them"
                )


# Labels


def are_fractions(labels: set[str]) -> bool:
    """Whether all labels are numbers, and at least one is not an integer."""
    try:
        numbers = [as_number(label, "label") for label in labels]
    except ValueError:
        return False

    return not all(number.is_integer() for number in numbers)


def class_numbers(
    name: str, values: Sequence[Sequence[str]]
) -> tuple[tuple[str, ...], list[Int[np.ndarray, "_"]]]:
    """The sorted classes of the training part, and the class numbers of all parts.

    A class that does not occur in the training part is UNKNOWN: every prediction for it is wrong.
    """
    labels = tuple(sorted(set(values[0])))
    if not labels:
        raise ValueError(f"{name}: there is nothing to train on")
    if len(labels) < 2:
        raise ValueError(f"{name}: every target is {labels[0]!r}; expected two classes or more")

    number = {label: index for index, label in enumerate(labels)}
    targets = []
    for part in values:
        targets.append(np.array([number.get(label, UNKNOWN) for label in part], dtype=np.int64))

    return labels, targets
