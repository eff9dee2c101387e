"""Training curves of a run as arrays: losses, learning rate and events read from its metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from qkv.training.logging.metrics import METRICS_FILE, read_metrics

Horizontal = Literal["step", "tokens", "seconds"]
"""What the x axis shows."""
Numbers = Float[np.ndarray, "_"]
Row = Mapping[str, Any]
COLUMNS = ("loss", "learning_rate", "gradient_norm")


@dataclass(frozen=True)
class RunCurves:
    """The curves of one run along the chosen x axis."""

    name: str
    steps: Numbers
    x: Numbers
    columns: Mapping[str, Numbers]
    """Per training step: loss, learning_rate, gradient_norm."""
    validation_steps: Numbers
    validation_x: Numbers
    validation: Numbers
    metric: str | None
    """The first validation metric besides the loss, such as accuracy."""
    metrics: Numbers
    skipped: Numbers
    """The x coordinates of skipped steps."""
    rewound: Numbers
    """The x coordinates where training went back to a checkpoint."""
    summary: str
    """Steps, tokens, time and FLOPs of the run as a phrase."""

    @property
    def best(self) -> tuple[float, int] | None:
        """The lowest validation loss and its step, or None if no validation loss is finite."""
        finite = np.isfinite(self.validation)
        if not finite.any():
            return None

        index = int(np.nanargmin(np.where(finite, self.validation, np.nan)))
        return float(self.validation[index]), int(self.validation_steps[index])


def folder_of(run: Path) -> Path:
    """The folder of a run, which may be named by its metrics file."""
    if run.name == METRICS_FILE and run.is_file():
        return run.parent
    if not run.exists():
        raise ValueError(f"{run}: there is no such folder")
    if not (run / METRICS_FILE).is_file():
        raise ValueError(
            f"{run}: not a run, it has no {METRICS_FILE}; "
            "name the folder that `qkv train --out` wrote"
        )

    return run


def names(folders: Sequence[Path]) -> list[str]:
    """The shortest path endings that tell the folders apart."""
    paths = [folder.resolve() for folder in folders]
    for count in range(1, max(len(path.parts) for path in paths) + 1):
        endings = ["/".join(path.parts[-count:]) for path in paths]
        if len(set(endings)) == len(endings):
            return endings

    return list(map(str, paths))


def read_run(folder: Path, name: str, x: Horizontal) -> RunCurves:
    """Read the metrics of a run, finished or in progress, for a figure with this x axis."""
    rows = read_metrics(folder)
    training, validation = latest_rows(rows)
    if not training and not validation:
        raise ValueError(
            f"{folder / METRICS_FILE}: no losses yet; "
            "try again when the run has taken its first step"
        )

    steps = column(training, "step")
    across = column(training, x)
    known = np.isfinite(across)
    if x != "step" and not known.any():
        raise ValueError(f"x: no row of {folder / METRICS_FILE} has {x}; use step as the x axis")

    def to_x(at: Numbers) -> Numbers:
        """Convert steps to x: rows of validation and events have only their step."""
        if x == "step":
            return at

        return np.interp(at, steps[known], across[known])

    validation_steps = column(validation, "step")
    metric = first_metric(validation)

    return RunCurves(
        name=name,
        steps=steps,
        x=across,
        columns={kind: column(training, kind) for kind in COLUMNS},
        validation_steps=validation_steps,
        validation_x=to_x(validation_steps),
        validation=column(validation, "validation_loss"),
        metric=metric,
        metrics=column(validation, metric or "none"),
        skipped=to_x(event_steps(rows, "skipped")),
        rewound=to_x(event_steps(rows, "rewound")),
        summary=summarise(rows, training),
    )


def latest_rows(rows: Iterable[Row]) -> tuple[list[Row], list[Row]]:
    """Training and validation rows by step; a step that was taken twice has its last row.

    A skipped step keeps its row without a loss: the figure marks it instead.
    """
    training: dict[int, Row] = {}
    validation: dict[int, Row] = {}
    for row in rows:
        step = row["step"]
        if row.get("event") == "skipped" and step in training:
            training[step] = {**training[step], "loss": None}
        elif "event" not in row and "loss" in row:
            training[step] = row
        elif "event" not in row and "validation_loss" in row:
            validation[step] = row

    return in_order(training), in_order(validation)


def in_order(rows: Mapping[int, Row]) -> list[Row]:
    return [rows[step] for step in sorted(rows)]


def first_metric(validation: Iterable[Row]) -> str | None:
    """The first metric besides the loss that validation measured."""
    known = ("step", "validation_loss")
    return next((name for row in validation for name in row if name not in known), None)


def event_steps(rows: Iterable[Row], kind: str) -> Numbers:
    steps = [row["step"] for row in rows if row.get("event") == kind]
    return np.unique(np.array(steps, dtype=np.float64))


def column(rows: Iterable[Row], name: str) -> Numbers:
    """One value per row; NaN where a row lacks it."""
    return np.array([row.get(name) for row in rows], dtype=np.float64)


def summarise(rows: Sequence[Row], training: Sequence[Row]) -> str:
    """How far the run has come: steps, tokens, time and, when it is finished, FLOPs."""
    finished: Row = {}
    for row in rows:
        if row.get("event") == "finished":
            finished = row

    step = max(row["step"] for row in rows)
    steps = f"{step:,} steps"
    if step == 1:
        steps = "1 step"
    if not finished:
        steps += " so far"

    parts = [steps]
    last: Row = {}
    if training:
        last = training[-1]
    if last.get("tokens") is not None:
        parts.append(f"{short(last['tokens'])} tokens")
    if last.get("seconds") is not None:
        parts.append(f"{timedelta(seconds=round(last['seconds']))}")
    if finished.get("flops") is not None:
        parts.append(f"{finished['flops']:.1e} FLOPs".replace("e+", "e"))

    return ", ".join(parts)


def short(value: float) -> str:
    """A number for a tick: 1,500 or 2.5M."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}"

    if value == round(value):
        return f"{value:,.0f}"

    return f"{value:g}"
