"""The metrics of fine-tuning against their definitions over all answers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from qkv.data.batches.batch import IGNORE, Batch
from qkv.models import HeadConfig
from qkv.training.finetune.task_metrics import (
    confusion,
    correlation,
    count_metrics,
    measures,
    merit,
)

MARKS = {"delimiter": 1, "extract": 2, "padding": 0}
CLASSES = HeadConfig(task="classify", labels=("a", "b", "c", "d"), **MARKS)
TAGS = HeadConfig(task="tag", labels=("a", "b", "c"), **MARKS)
CHOICES = HeadConfig(task="choice", **MARKS)
NUMBERS = HeadConfig(task="regress", offset=1e4, scale=2.0, **MARKS)


def batch(targets: Tensor, numbers: Tensor | None = None) -> Batch:
    return Batch(torch.zeros(len(targets), 3, dtype=torch.long), targets, numbers=numbers)


def in_parts(
    head: HeadConfig, scores: Tensor, targets: Tensor, numbers: Tensor | None = None
) -> dict[str, float]:
    """The sums of five batches, added up."""
    total = torch.zeros(())
    for rows in torch.arange(len(scores)).chunk(5):
        part_numbers = None
        if numbers is not None:
            part_numbers = numbers[rows]

        total = total + count_metrics(head, scores[rows], batch(targets[rows], part_numbers))

    return measures(head, total)


def by_definition(predicted: np.ndarray, true: np.ndarray) -> dict[str, float]:
    """Accuracy, mean F1 of the classes, and the correlation of one-hot vectors (Gorodkin 2004)."""
    classes = sorted({*predicted, *true})
    f1 = []
    for label in classes:
        right = int(((predicted == label) & (true == label)).sum())
        wrong = int(((predicted == label) ^ (true == label)).sum())
        f1.append(2 * right / (2 * right + wrong))

    x = (predicted[:, None] == np.array(classes)).astype(float)  # (n, C)
    y = (true[:, None] == np.array(classes)).astype(float)
    x = x - x.mean(0)
    y = y - y.mean(0)
    spread = math.sqrt((x * x).sum() * (y * y).sum())
    matthews = 0.0
    if spread:
        matthews = float((x * y).sum() / spread)

    return {
        "accuracy": float((predicted == true).mean()),
        "macro_f1": float(np.mean(f1)),
        "matthews": matthews,
    }


@pytest.mark.parametrize("seed", range(3))
def test_classes(seed: int) -> None:
    torch.manual_seed(seed)
    scores = torch.randn(61, 1, 4)
    targets = torch.randint(3, (61, 1))  # the last class is never right
    targets[::7] = IGNORE
    has_target = targets[:, 0] != IGNORE
    predicted = scores[has_target, 0].argmax(-1).numpy()
    true = targets[has_target, 0].numpy()
    expected = by_definition(predicted, true)
    assert in_parts(CLASSES, scores, targets) == pytest.approx(expected, abs=1e-12)
    counts = confusion(CLASSES, count_metrics(CLASSES, scores, batch(targets)))
    for row in range(4):
        for column in range(4):
            assert counts[row, column] == ((true == row) & (predicted == column)).sum()


def test_tags_are_counted_word_by_word() -> None:
    scores = torch.randn(20, 6, 3)
    targets = torch.randint(3, (20, 6))
    targets[torch.rand(20, 6) < 0.4] = IGNORE
    has_target = targets != IGNORE
    expected = by_definition(scores[has_target].argmax(-1).numpy(), targets[has_target].numpy())
    assert in_parts(TAGS, scores, targets) == pytest.approx(expected, abs=1e-12)


def test_a_class_that_is_neither_true_nor_predicted_has_no_f1() -> None:
    scores = torch.eye(4)[[0, 0, 1, 1]].unsqueeze(1)
    measured = in_parts(CLASSES, scores, torch.tensor([[0], [0], [1], [1]]))
    assert measured == pytest.approx({"accuracy": 1.0, "macro_f1": 1.0, "matthews": 1.0})
    always = in_parts(CLASSES, scores[[0, 0, 0, 0]], torch.tensor([[0], [0], [1], [1]]))
    assert (always["accuracy"], always["matthews"]) == (0.5, 0.0)
    assert always["macro_f1"] == pytest.approx((2 / 3 + 0) / 2)


def test_choices() -> None:
    scores = torch.tensor([[[1.0, 2.0, -torch.inf]], [[0.5, 0.1, 0.2]], [[0.0, 0.0, 3.0]]])
    assert in_parts(CHOICES, scores, torch.tensor([[1], [2], [2]])) == {
        "accuracy": pytest.approx(2 / 3)
    }
    assert in_parts(CHOICES, scores, torch.tensor([[1], [IGNORE], [2]])) == {"accuracy": 1.0}


def test_numbers() -> None:
    true = torch.randn(50, 1, dtype=torch.float64)  # in the head's own units
    predicted = (true + 0.5 * torch.randn(50, 1)).unsqueeze(1)
    targets = torch.zeros(50, 1, dtype=torch.long)
    metrics = in_parts(NUMBERS, predicted, targets, true)
    x = NUMBERS.offset + NUMBERS.scale * predicted.flatten().numpy()
    y = NUMBERS.offset + NUMBERS.scale * true.flatten().numpy()
    assert metrics["pearson"] == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-9)
    assert metrics["mean_absolute_error"] == pytest.approx(np.abs(x - y).mean(), rel=1e-9)
    for value in (0.0, 0.1, 1e4):
        constant = in_parts(NUMBERS, torch.full_like(predicted, value), targets, true)
        assert constant["pearson"] == 0.0


def sums_of(x: np.ndarray, y: np.ndarray) -> list[float]:
    terms = (np.ones_like(x), x, y, x * x, y * y, x * y)
    return [float(term.sum()) for term in terms]


@pytest.mark.parametrize("size", [1e-150, 1e-7, 1.0, 1e9])
def test_the_correlation_has_no_unit(size: float) -> None:
    x, y = size * np.random.default_rng(0).normal(size=(2, 50))
    expected = np.corrcoef(x / size, y / size)[0, 1]
    assert correlation(*sums_of(x, y)) == pytest.approx(expected, abs=1e-12)
    assert correlation(*sums_of(x, x)) == pytest.approx(1.0)


def test_higher_merit_is_better() -> None:
    assert merit({"loss": 0.5, "accuracy": 0.9}, "accuracy") == 0.9
    assert merit({"loss": 0.5, "accuracy": 0.9}, "loss") == -0.5
    assert merit({"mean_absolute_error": 2.0}, "mean_absolute_error") == -2.0
    assert merit({"pearson": math.nan}, "pearson") == -math.inf
