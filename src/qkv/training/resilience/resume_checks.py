"""What resuming may change: fewer steps than are done are refused, and a jump of the learning rate
is announced.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from qkv.checkpoint import CHECKPOINTS, steps_in
from qkv.training.resilience.checkpoint_writer import Checkpoints
from qkv.training.run_config import OptimizerConfig, among
from qkv.training.schedule import highest_rate, learning_rate

ENDING = ("cosine", "linear", "stable")
"""Schedules that depend on the number of steps."""


def check_steps(out: Path, steps: int, *, counted_in_epochs: bool) -> int:
    """The step that the run in this folder has reached, which must not be beyond the last of
    `steps`.
    """
    kept = steps_in(out / CHECKPOINTS)
    reached = kept[-1] if kept else 0
    if reached > steps:  # then it is worth reading the checkpoint to see whether it can be used
        newest = Checkpoints(out / CHECKPOINTS, say=lambda text: None).newest()
        reached = newest.step if newest else 0

    if reached <= steps:
        return reached

    asked = (
        f"epochs: they make {steps} steps" if counted_in_epochs else f"steps: {steps} are asked for"
    )
    raise ValueError(
        f"{asked}, but the run in {out} has done {reached}; ask for {reached} or more, begin a new run in another "
        f"folder, or open a checkpoint that is kept, such as {out}@{kept[0]}"
    )


def check_order(out: Path, before: int, now: int) -> None:
    """A run reads its data in one order from its first step to its last."""
    if before != now:
        raise ValueError(
            f"out: the run in {out} was begun by another version of qkv, which reads the data in another order; go on "
            "with that version, or begin a new run in another folder (its model can be opened and fine-tuned as it is)"
        )


def rate_change(
    before: dict[str, Any], optimizer: OptimizerConfig, steps: int, width: int, step: int
) -> str | None:
    """How the learning rate jumps where the run goes on after `step`, and how to avoid it; None if
    it does not.
    """
    old, old_steps = (
        OptimizerConfig(**among(before["optimizer"], OptimizerConfig)),
        int(before["run"]["steps"]),
    )
    if step == 0 or step >= steps:
        return None

    old_highest, highest = (
        highest_rate(old, width, old_steps),
        highest_rate(optimizer, width, steps),
    )
    was = learning_rate(old, min(step, old_steps - 1), old_steps, old_highest)
    rate = learning_rate(optimizer, step, steps, highest)
    if math.isclose(was, rate, rel_tol=0.01):
        return None

    told = f"The learning rate goes from {was:.2e} to {rate:.2e} at step {step + 1}"
    if steps == old_steps or optimizer.schedule not in ENDING:
        return f"{told}."

    told += f": the {optimizer.schedule} schedule now ends at step {steps}, not {old_steps}."
    if rate < was:
        return told

    flags = f"--schedule constant --learning-rate {was:.3g}"
    if optimizer.optimizer == "muon":
        flags += f" --muon-learning-rate {old.muon_learning_rate * was / old_highest:.3g}"

    return (
        f"{told} To go on at the old rate, stop now and add {flags}. A run begun with --schedule constant, or stable "
        "and not yet in its decay, can be extended without a jump."
    )
