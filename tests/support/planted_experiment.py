"""An experiment with a planted effect, as a file of one's own: planted_experiment.py:PLANTED."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from qkv.lab import Cell, Check, Experiment, Panel, Results, Size
from qkv.lab.sweep import FIRST_SEED

SPEC = f"{Path(__file__).resolve()}:PLANTED"
ARMS = ("with", "without")


def measure(cell: Cell) -> dict[str, Any]:
    """Noise that arms of a seed share, noise of their own, and the effect of the arm "with"."""
    size = cell.size
    if size.fault == cell.arm:
        raise KeyError("a planted fault")
    if size.fault == "nan":
        return {"score": float("nan")}
    if size.fault == "killed" and cell.seed == FIRST_SEED + 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if cell.seed > FIRST_SEED:
        time.sleep(float(os.environ.get("PLANTED_WAIT", "0")))

    shared = torch.randn((), generator=torch.Generator().manual_seed(cell.seed)).item()
    noise = torch.randn(3).tolist()  # of the global generator
    own = noise[ARMS.index(cell.arm)]
    effect = size.effect if cell.arm == "with" else 0.0
    curve = {}
    for x in (1, 2, 4):
        curve[x] = 1.5 + 0.1 * shared + effect * x / 4 + 0.01 * own

    kinds = {"noun": shared + own, "a <long> & odd name": shared + noise[2]}
    score = 10 * shared + effect + size.noise * own
    return {"score": score, "curve": curve, "kinds": kinds}


PLANTED = Experiment(
    name="planted",
    claim="The arm <with> is better & more than the arm without.",
    slides=("001 L2", "002 L3"),
    setup=("Numbers that are <made> up.", "Run `qkv lab planted`."),
    arms=ARMS,
    measure=measure,
    checks=(
        Check(
            "With is better",
            lambda value: value("with", "score") - value("without", "score"),
            relevant=0.5,
        ),
    ),
    panels=(
        Panel("curve", "length", "loss", "Over x", log="xy", levels={"chance": 1.0}),
        Panel("score", "", "score", "By arm", kind="dots"),
        Panel("kinds", "kind", "score", "By kind", kind="dots"),
        Panel("curve", "length", "loss", "Cells", kind="heat"),
    ),
    small=Size(seeds=3, minutes=0.1, effect=1.0, noise=0.05, fault=""),
    large=Size(seeds=4, minutes=0.2, effect=1.0, noise=0.05, fault=""),
    remark="It is `planted`.",
    next_steps=("qkv lab planted --seeds 9", "Why <so>?"),
)


def results_of(
    measured: dict[tuple[str, int], Any], checks: tuple[Check, ...] = PLANTED.checks, **changes: Any
) -> Results:
    """Results with these measurements, without running anything."""
    experiment = replace(PLANTED, checks=checks, **changes)
    return Results(experiment, experiment.small, measured, {"size": "small", "command": "qkv lab"})


def planted_results(effect: float = 1.0, seeds: int = 3) -> Results:
    """The results of the planted experiment."""
    size = Size(seeds=seeds, minutes=0, effect=effect, noise=0.05, fault="")
    measured = {}
    for seed in range(seeds):
        for arm in ARMS:
            torch.manual_seed(seed)
            measured[arm, seed] = measure(Cell(arm, seed, size, torch.device("cpu")))

    return results_of(measured)
