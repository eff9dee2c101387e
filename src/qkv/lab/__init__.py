"""Experiments of the lectures, each computed by the code that trains and serves."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qkv.lab.experiment import Cell, Check, Experiment, Panel, Size
    from qkv.lab.experiments import find
    from qkv.lab.lab_results import Results
    from qkv.lab.lab_run import run
    from qkv.lab.paired_intervals import mean_interval
else:
    from qkv.imports import attach

    attach(__name__)

__all__ = [
    "Cell",
    "Check",
    "Experiment",
    "Panel",
    "Results",
    "Size",
    "find",
    "mean_interval",
    "run",
]
