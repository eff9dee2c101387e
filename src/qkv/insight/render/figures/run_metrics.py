"""A run as numbers along an axis: what its metrics say, read for a picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from qkv.training.logging.metrics import NAME, read_metrics

Horizontal = Literal["step", "tokens", "seconds"]
Numbers = Float[np.ndarray, "_"]


@dataclass(frozen=True)
class RunCurves:
    """What is drawn of one run, along the horizontal axis that was chosen."""

    name: str
    steps: Numbers
    x: Numbers
    columns: Mapping[str, Numbers]
    """Of the training steps: loss, learning_rate, gradient_norm."""
    validation_steps: Numbers
    validation_x: Numbers
    validation: Numbers
    metric: str | None
    """What validation measured first besides the loss, such as accuracy."""
    metrics: Numbers
    skipped: Numbers
    rewound: Numbers
    told: str
    """How far it came, in words."""

    @property
    def best(self) -> tuple[float, int] | None:
        """The lowest validation loss, and its step."""
        if not np.isfinite(self.validation).any():
            return None

        place = int(np.nanargmin(np.where(np.isfinite(self.validation), self.validation, np.nan)))
        return float(self.validation[place]), int(self.validation_steps[place])


def folder_of(run: Path) -> Path:
    if run.name == NAME and run.is_file():
        return run.parent
    if not run.exists():
        raise ValueError(f"{run}: there is no such folder")
    if not (run / NAME).is_file():
        raise ValueError(
            f"{run}: not a run, it has no {NAME}; name the folder that `qkv train --out` was given"
        )

    return run


def names(folders: Sequence[Path]) -> list[str]:
    """The last parts of their paths, as few as tell them apart."""
    parts = [folder.resolve().parts for folder in folders]
    for count in range(1, max(map(len, parts)) + 1):
        short = ["/".join(each[-count:]) for each in parts]
        if len(set(short)) == len(short):
            return short

    return ["/".join(each) for each in parts]


def read_run(folder: Path, name: str, x: Horizontal) -> RunCurves:
    rows = read_metrics(folder)
    training: dict[int, dict[str, Any]] = {}
    validation: dict[int, dict[str, Any]] = {}

    for row in rows:  # of a step that was taken twice the last time counts
        if row.get("event") == "skipped" and row["step"] in training:
            training[row["step"]] = {
                **training[row["step"]],
                "loss": None,
            }  # it has a mark; the model never learned it
        elif "event" not in row and "loss" in row:
            training[row["step"]] = row
        elif "event" not in row and "validation_loss" in row:
            validation[row["step"]] = row

    if not training and not validation:
        raise ValueError(
            f"{folder / NAME}: no losses yet; try again when the run has taken its first step"
        )

    ordered = [training[step] for step in sorted(training)]
    steps, across = column(ordered, "step"), column(ordered, x)
    known = np.isfinite(across)
    if x != "step" and not known.any():
        raise ValueError(f"x: no row of {folder / NAME} has {x}; draw this run along its steps")

    def along(places: Iterable[float]) -> Numbers:
        """Rows of validation and events have their step alone."""
        at = np.array(sorted(places), dtype=np.float64)
        return at if x == "step" else np.interp(at, steps[known], across[known])

    def events(kind: str) -> Numbers:
        return along({row["step"] for row in rows if row.get("event") == kind})

    measured = [validation[step] for step in sorted(validation)]
    metric = next(
        (name for row in measured for name in row if name not in ("step", "validation_loss")), None
    )

    return RunCurves(
        name=name,
        steps=steps,
        x=across,
        columns={
            kind: column(ordered, kind) for kind in ("loss", "learning_rate", "gradient_norm")
        },
        validation_steps=column(measured, "step"),
        validation_x=along(validation),
        validation=column(measured, "validation_loss"),
        metric=metric,
        metrics=column(measured, metric or "none"),
        skipped=events("skipped"),
        rewound=events("rewound"),
        told=tell(rows, ordered),
    )


def column(rows: Iterable[Mapping[str, Any]], name: str) -> Numbers:
    return np.array(
        [np.nan if row.get(name) is None else row[name] for row in rows], dtype=np.float64
    )


def tell(rows: Sequence[Mapping[str, Any]], training: Sequence[Mapping[str, Any]]) -> str:
    finished = next((row for row in reversed(rows) if row.get("event") == "finished"), None)
    last = training[-1] if training else {}
    step = max(row["step"] for row in rows)
    told = [f"{step:,} step{'s' * (step != 1)}" + ("" if finished else " so far")]
    if last.get("tokens") is not None:
        told.append(f"{short(last['tokens'])} tokens")

    if last.get("seconds") is not None:
        told.append(f"{timedelta(seconds=round(last['seconds']))}")

    if finished and finished.get("flops") is not None:
        told.append(f"{finished['flops']:.1e} FLOPs".replace("e+", "e"))

    return ", ".join(told)


def short(value: float) -> str:
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}"

    return f"{value:,.0f}" if value == round(value) else f"{value:g}"
