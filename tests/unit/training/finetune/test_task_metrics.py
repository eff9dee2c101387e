"""What validation counts and measures, against the metrics' definitions over all answers."""

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
        total = total + count_metrics(
            head, scores[rows], batch(targets[rows], None if numbers is None else numbers[rows])
        )
    return measures(head, total)


def by_definition(said: np.ndarray, true: np.ndarray) -> dict[str, float]:
    """Accuracy, the mean of the F1 of each class, and the correlation of one-hot vectors (Gorodkin
    2004).
    """
    classes = sorted({*said, *true})
    f1 = []
    for each in classes:
        both = int(((said == each) & (true == each)).sum())
        wrong = int(((said == each) ^ (true == each)).sum())
        f1.append(2 * both / (2 * both + wrong))
    x, y = (
        (values[:, None] == np.array(classes)).astype(float) for values in (said, true)
    )  # (n, C)
    x, y = x - x.mean(0), y - y.mean(0)
    spread = math.sqrt((x * x).sum() * (y * y).sum())
    return {
        "accuracy": float((said == true).mean()),
        "macro_f1": float(np.mean(f1)),
        "matthews": float((x * y).sum() / spread) if spread else 0.0,
    }


@pytest.mark.parametrize("seed", range(3))
def test_classes(seed: int) -> None:
    torch.manual_seed(seed)
    scores, targets = (
        torch.randn(61, 1, 4),
        torch.randint(3, (61, 1)),
    )  # the last class is never right
    targets[::7] = IGNORE
    asked = targets[:, 0] != IGNORE
    said, true = scores[asked, 0].argmax(-1).numpy(), targets[asked, 0].numpy()
    assert in_parts(CLASSES, scores, targets) == pytest.approx(by_definition(said, true), abs=1e-12)
    counts = confusion(CLASSES, count_metrics(CLASSES, scores, batch(targets)))
    for row in range(4):
        for column in range(4):
            assert counts[row, column] == ((true == row) & (said == column)).sum()


def test_tags_are_counted_word_by_word() -> None:
    scores, targets = torch.randn(20, 6, 3), torch.randint(3, (20, 6))
    targets[torch.rand(20, 6) < 0.4] = IGNORE
    asked = targets != IGNORE
    expected = by_definition(scores[asked].argmax(-1).numpy(), targets[asked].numpy())
    assert in_parts(TAGS, scores, targets) == pytest.approx(expected, abs=1e-12)


def test_a_class_that_neither_is_there_nor_is_said_has_no_f1() -> None:
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
    said = (true + 0.5 * torch.randn(50, 1)).unsqueeze(1)
    asked = torch.zeros(50, 1, dtype=torch.long)
    found = in_parts(NUMBERS, said, asked, true)
    x, y = (NUMBERS.offset + NUMBERS.scale * each.flatten().numpy() for each in (said, true))
    assert found["pearson"] == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-9)
    assert found["mean_absolute_error"] == pytest.approx(np.abs(x - y).mean(), rel=1e-9)
    for value in (0.0, 0.1, 1e4):
        always = in_parts(NUMBERS, torch.full_like(said, value), asked, true)
        assert always["pearson"] == 0.0, "who always says the same knows nothing"


@pytest.mark.parametrize("size", [1e-150, 1e-7, 1.0, 1e9])
def test_the_correlation_has_no_unit(size: float) -> None:
    x, y = size * np.random.default_rng(0).normal(size=(2, 50))
    sums = [float(each.sum()) for each in (np.ones_like(x), x, y, x * x, y * y, x * y)]
    assert correlation(*sums) == pytest.approx(np.corrcoef(x / size, y / size)[0, 1], abs=1e-12)
    itself = [float(each.sum()) for each in (np.ones_like(x), x, x, x * x, x * x, x * x)]
    assert correlation(*itself) == pytest.approx(1.0)


def test_higher_merit_is_better() -> None:
    assert merit({"loss": 0.5, "accuracy": 0.9}, "accuracy") == 0.9
    assert merit({"loss": 0.5, "accuracy": 0.9}, "loss") == -0.5
    assert merit({"mean_absolute_error": 2.0}, "mean_absolute_error") == -2.0
    assert merit({"pearson": math.nan}, "pearson") == -math.inf
