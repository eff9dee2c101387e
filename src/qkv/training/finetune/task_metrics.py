"""Metrics of fine-tuning (accuracy, F1, Matthews, Pearson), computed from sums over batches.

Validation counts sums, which add up over batches and machines; every metric is computed from them
at the end.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from qkv.data.batches.batch import IGNORE, Batch
from qkv.models.configs import HeadConfig

LOWER_IS_BETTER = ("mean_absolute_error", "loss")
ROUNDING = 1e-12
"""The fraction of a sum of squares that may be a rounding error."""


def count_metrics(
    head: HeadConfig, scores: Float[Tensor, "B M C"], batch: Batch
) -> Float[Tensor, "K"]:
    """The sums of a batch that the head's metrics are computed from.

    For classes the confusion matrix (C x C, rows are true classes); for choices the number of right
    answers and of all; for numbers the count and the sums of |error|, x, y, x^2, y^2, xy (x
    predicted, y true), in the head's own units: those lie around the data's mean, which keeps the
    digits of sums of squares.
    """
    has_target = (batch.targets != IGNORE).flatten()
    if head.numbers:
        assert batch.numbers is not None
        x = scores.double().flatten()[has_target]
        y = batch.numbers.double().flatten()[has_target]
        terms = (torch.ones_like(x), (x - y).abs(), x, y, x * x, y * y, x * y)
        return torch.stack([term.sum() for term in terms])

    predicted = scores.argmax(-1).flatten()[has_target]
    true = batch.targets.flatten()[has_target]
    if head.task == "choice":
        return torch.stack([(predicted == true).sum(), has_target.sum()]).double()

    classes = len(head.labels)

    return torch.bincount(true * classes + predicted, minlength=classes**2).double()


def measures(head: HeadConfig, counted: Float[Tensor, "K"]) -> dict[str, float]:
    """The metrics by name, from the sums; the first decides by default which weights are best."""
    if head.numbers:
        return of_numbers(head, counted.tolist())

    if head.task == "choice":
        right, count = counted.tolist()
        return {"accuracy": right / max(count, 1)}

    return class_metrics(confusion(head, counted))


def confusion(head: HeadConfig, counted: Float[Tensor, "K"]) -> Float[np.ndarray, "C C"]:
    """The confusion matrix: rows are the true classes, columns the predicted ones."""
    return counted.cpu().numpy().reshape(len(head.labels), len(head.labels))


def class_metrics(counts: Float[np.ndarray, "C C"]) -> dict[str, float]:
    """Accuracy, macro F1 and Matthews correlation of a confusion matrix."""
    right = np.diag(counts)
    true = counts.sum(1)
    predicted = counts.sum(0)
    total = counts.sum()

    # A class that is neither in the data nor predicted has no F1.
    used = true + predicted > 0
    f1 = 2 * right[used] / (true + predicted)[used]

    # Matthews correlation in Gorodkin's form, for any number of classes
    covariance = right.sum() * total - (true * predicted).sum()
    spread_predicted = math.sqrt(float(total**2 - (predicted**2).sum()))
    spread_true = math.sqrt(float(total**2 - (true**2).sum()))
    spread = spread_predicted * spread_true

    metrics = {"accuracy": float(right.sum() / max(total, 1)), "macro_f1": 0.0, "matthews": 0.0}
    if len(f1):
        metrics["macro_f1"] = float(f1.mean())
    if spread:
        metrics["matthews"] = float(covariance / spread)

    return metrics


def of_numbers(head: HeadConfig, sums: list[float]) -> dict[str, float]:
    """Pearson correlation and mean absolute error."""
    n, absolute, *rest = sums
    return {
        "pearson": correlation(n, *rest),
        "mean_absolute_error": head.scale * absolute / max(n, 1),
    }


def correlation(n: float, x: float, y: float, xx: float, yy: float, xy: float) -> float:
    """Pearson correlation from sums over n pairs; 0 if a variable is (numerically) constant."""
    n = max(n, 1)
    spread_x = xx - x * x / n
    spread_y = yy - y * y / n
    if spread_x <= ROUNDING * xx or spread_y <= ROUNDING * yy:
        return 0.0

    return (xy - x * y / n) / (math.sqrt(spread_x) * math.sqrt(spread_y))


def merit(measured: dict[str, float], metric: str) -> float:
    """A metric as a number where higher is better; NaN is the worst."""
    value = measured[metric]
    if math.isnan(value):
        return -math.inf
    if metric in LOWER_IS_BETTER:
        return -value

    return value
