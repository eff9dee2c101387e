"""How well a fine-tuned model's answers agree with the labels that people gave."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from qkv.data.sources.examples import Example, as_number
from qkv.evaluation.intervals import Score, accuracy, of_sums, ratio
from qkv.generation.classify import Answer
from qkv.models.configs import HeadConfig
from qkv.training.finetune.task_metrics import correlation


def check_label(head: HeadConfig, example: Example) -> None:
    """Whether the model could say it at all. Of tags, an unknown one is a word that is tagged
    wrongly.
    """
    if head.numbers:
        as_number(str(example.label), example.where)
    elif head.labels and head.task != "tag" and example.label not in head.labels:
        known = ", ".join(head.labels)
        raise ValueError(
            f"{example.where}: the label {example.label!r} is none of the model's: {known}"
        )


def scores_of(
    head: HeadConfig, examples: Sequence[Example], found: Sequence[Answer]
) -> list[Score]:
    """Accuracy; of tags, that of a word; of numbers, Pearson's correlation and the mean distance."""
    if head.numbers:
        x = np.array([each.number for each in found])
        y = np.array([as_number(str(each.label), each.where) for each in examples])
        return [pearson(x, y), mean_error(x, y)]

    if head.task == "tag":
        # The words of a sentence are right or wrong together, so sentences are what is drawn for
        # the interval.
        rows = [
            (sum(true == said for true, said in pairs), len(pairs))
            for pairs in tagged(examples, found)
        ]
        return [of_sums("accuracy", np.array(rows, dtype=np.float64), ratio, percent=True)]

    said = [str(each.choice) if head.task == "choice" else each.label for each in found]

    return [accuracy([each.label == label for each, label in zip(examples, said, strict=True)])]


def confusion_of(
    head: HeadConfig, examples: Sequence[Example], found: Sequence[Answer]
) -> Int[np.ndarray, "C C"]:
    """How often each class (row) was said to be each (column); tags that the model does not know
    are left out.
    """
    if head.task == "tag":
        pairs = [pair for each in tagged(examples, found) for pair in each]
    else:
        pairs = [
            (str(each.label), str(said.label)) for each, said in zip(examples, found, strict=True)
        ]

    ids = {label: id for id, label in enumerate(head.labels)}
    counts = np.zeros((len(ids), len(ids)), dtype=np.int64)

    for true, said in pairs:
        if true in ids:
            counts[ids[true], ids[said]] += 1

    return counts


def tagged(examples: Sequence[Example], found: Sequence[Answer]) -> list[list[tuple[str, str]]]:
    """The true tag and the one that was said, of each word that was read."""
    made = []
    for example, answer in zip(examples, found, strict=True):
        assert isinstance(example.label, tuple)
        made.append(
            [
                (true, tag)
                for true, (_, tag, _) in zip(example.label, answer.tags or [], strict=False)
            ]
        )

    return made


# Numbers


def pearson(said: Float[np.ndarray, "n"], true: Float[np.ndarray, "n"]) -> Score:
    x, y = said - said.mean(), true - true.mean()  # so that sums of squares keep their digits
    sums = np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], axis=1)
    return of_sums("pearson", sums, lambda drawn: correlation(*drawn.tolist()))


def mean_error(said: Float[np.ndarray, "n"], true: Float[np.ndarray, "n"]) -> Score:
    units = np.stack([np.abs(said - true), np.ones_like(said)], axis=1)
    return of_sums("mean absolute error", units, ratio, higher_is_better=False)
