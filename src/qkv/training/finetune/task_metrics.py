"""What validation counts of a model's answers, as sums: they add up over batches and machines, and
every metric is computed from them in the end."""

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
"""Of a sum of squares, what may be an error."""


def count_metrics(
    head: HeadConfig, scores: Float[Tensor, "B M C"], batch: Batch
) -> Float[Tensor, "K"]:
    """Of classes, how often each was called what: (C x C), row by row. Of choices, how many were
    right, of how many. Of numbers, their count and the sums of |error|, x, y, x^2, y^2, xy (x is
    said, y is true), all in the head's own units: around the data's mean, so that sums of squares
    keep their digits."""
    asked = (batch.targets != IGNORE).flatten()
    if head.numbers:
        assert batch.numbers is not None
        x, y = scores.double().flatten()[asked], batch.numbers.double().flatten()[asked]
        return torch.stack(
            [part.sum() for part in (torch.ones_like(x), (x - y).abs(), x, y, x * x, y * y, x * y)]
        )

    said = scores.argmax(-1).flatten()[asked]
    true = batch.targets.flatten()[asked]
    if head.task == "choice":
        return torch.stack([(said == true).sum(), asked.sum()]).double()

    classes = len(head.labels)

    return torch.bincount(true * classes + said, minlength=classes**2).double()


def measures(head: HeadConfig, counted: Float[Tensor, "K"]) -> dict[str, float]:
    """The metrics by name; the first is what a run is judged by unless told otherwise."""
    if head.numbers:
        return of_numbers(head, counted.tolist())

    if head.task == "choice":
        right, asked = counted.tolist()
        return {"accuracy": right / max(asked, 1)}

    return of_classes(confusion(head, counted))


def confusion(head: HeadConfig, counted: Float[Tensor, "K"]) -> Float[np.ndarray, "C C"]:
    """Rows are the true classes, columns what was said."""
    return counted.cpu().numpy().reshape(len(head.labels), len(head.labels))


def of_classes(counts: Float[np.ndarray, "C C"]) -> dict[str, float]:
    right, true, said, all = np.diag(counts), counts.sum(1), counts.sum(0), counts.sum()
    there = true + said > 0  # a class that neither is there nor is said has no F1
    f1 = 2 * right[there] / (true + said)[there]
    # Gorodkin's form of Matthews' correlation, for any number of classes.
    covariance = right.sum() * all - (true * said).sum()
    spread = math.sqrt(float(all**2 - (said**2).sum())) * math.sqrt(float(all**2 - (true**2).sum()))

    return {
        "accuracy": float(right.sum() / max(all, 1)),
        "macro_f1": float(f1.mean()) if len(f1) else 0.0,
        "matthews": float(covariance / spread) if spread else 0.0,
    }


def of_numbers(head: HeadConfig, sums: list[float]) -> dict[str, float]:
    n, absolute, *rest = sums
    return {
        "pearson": correlation(n, *rest),
        "mean_absolute_error": head.scale * absolute / max(n, 1),
    }


def correlation(n: float, x: float, y: float, xx: float, yy: float, xy: float) -> float:
    """Pearson's, from sums over n pairs; 0 where one of both never changes, but for what rounding
    makes of it.
    """
    n = max(n, 1)
    spread_x, spread_y = xx - x * x / n, yy - y * y / n
    if spread_x <= ROUNDING * xx or spread_y <= ROUNDING * yy:
        return 0.0

    return (xy - x * y / n) / (math.sqrt(spread_x) * math.sqrt(spread_y))


def merit(measured: dict[str, float], metric: str) -> float:
    """Higher is better."""
    value = measured[metric]
    if math.isnan(value):
        return -math.inf

    return -value if metric in LOWER_IS_BETTER else value
