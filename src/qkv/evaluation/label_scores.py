"""Scores of a fine-tuned model against gold labels: accuracy, correlation, confusion matrix."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from qkv.data.sources.examples import Example, as_number
from qkv.evaluation.intervals import Score, accuracy, bootstrap_score, ratio
from qkv.generation.classify import Answer
from qkv.models.configs import HeadConfig
from qkv.training.finetune.task_metrics import correlation


def check_label(head: HeadConfig, example: Example) -> None:
    """Raise if the model cannot predict an example's label; an unknown tag only counts as wrong."""
    if head.numbers:
        as_number(str(example.label), example.where)
    elif head.labels and head.task != "tag" and example.label not in head.labels:
        known = ", ".join(head.labels)
        raise ValueError(
            f"{example.where}: the label {example.label!r} is not one of the model's: {known}"
        )


def score_answers(
    head: HeadConfig, examples: Sequence[Example], answers: Sequence[Answer]
) -> list[Score]:
    """The scores of answers: accuracy, or for numbers Pearson correlation and mean absolute error.

    The accuracy of tags is per word.
    """
    if head.numbers:
        predicted = np.array([answer.number for answer in answers])
        gold = np.array([as_number(str(item.label), item.where) for item in examples])
        return [pearson(predicted, gold), mean_error(predicted, gold)]

    if head.task == "tag":
        return [tag_accuracy(examples, answers)]

    correct: list[bool] = []
    for example, answer in zip(examples, answers, strict=True):
        prediction = str(answer.choice) if head.task == "choice" else answer.label
        correct.append(example.label == prediction)

    return [accuracy(correct)]


def tag_accuracy(examples: Sequence[Example], answers: Sequence[Answer]) -> Score:
    """The accuracy per word; the bootstrap draws sentences, whose words are correlated."""
    counts: list[tuple[int, int]] = []
    for pairs in tag_pairs(examples, answers):
        hits = sum(gold == predicted for gold, predicted in pairs)
        counts.append((hits, len(pairs)))

    return bootstrap_score("accuracy", np.array(counts, dtype=np.float64), ratio, percent=True)


def confusion_matrix(
    head: HeadConfig, examples: Sequence[Example], answers: Sequence[Answer]
) -> Int[np.ndarray, "C C"]:
    """The confusion matrix: gold classes as rows, predicted ones as columns.

    Gold tags that the model does not have are left out.
    """
    pairs: list[tuple[str, str]] = []
    if head.task == "tag":
        for sentence in tag_pairs(examples, answers):
            pairs += sentence
    else:
        for example, answer in zip(examples, answers, strict=True):
            pairs.append((str(example.label), str(answer.label)))

    ids = {label: id for id, label in enumerate(head.labels)}
    counts = np.zeros((len(ids), len(ids)), dtype=np.int64)

    for gold, predicted in pairs:
        if gold in ids:
            counts[ids[gold], ids[predicted]] += 1

    return counts


def tag_pairs(
    examples: Sequence[Example], answers: Sequence[Answer]
) -> list[list[tuple[str, str]]]:
    """The gold and the predicted tag of each word within the context, by sentence."""
    sentences: list[list[tuple[str, str]]] = []
    for example, answer in zip(examples, answers, strict=True):
        assert isinstance(example.label, tuple)
        predicted = [tag for _, tag, _ in answer.tags or []]
        sentences.append(list(zip(example.label, predicted, strict=False)))

    return sentences


# Numbers


def pearson(predicted: Float[np.ndarray, "n"], gold: Float[np.ndarray, "n"]) -> Score:
    """The Pearson correlation with its bootstrap interval."""
    x = predicted - predicted.mean()  # centred, so that sums of squares keep their precision
    y = gold - gold.mean()
    sums = np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], axis=1)
    return bootstrap_score("pearson", sums, lambda drawn: correlation(*drawn.tolist()))


def mean_error(predicted: Float[np.ndarray, "n"], gold: Float[np.ndarray, "n"]) -> Score:
    """The mean absolute error with its bootstrap interval."""
    units = np.stack([np.abs(predicted - gold), np.ones_like(predicted)], axis=1)
    return bootstrap_score("mean absolute error", units, ratio, higher_is_better=False)
