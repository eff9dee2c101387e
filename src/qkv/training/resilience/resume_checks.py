"""Checks on resuming: not fewer steps than done, the same order of data, learning rate jumps."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from qkv.checkpoint import CHECKPOINTS, steps_in
from qkv.training.resilience.checkpoint_writer import Checkpoints
from qkv.training.run_config import OptimizerConfig, pick_fields
from qkv.training.schedule import highest_rate, learning_rate

ENDING = ("cosine", "linear", "stable")
"""Schedules that depend on the number of steps."""


def check_steps(out: Path, steps: int, *, counted_in_epochs: bool) -> int:
    """The step that the run in this folder has reached, which must not exceed `steps`."""
    saved = steps_in(out / CHECKPOINTS)
    reached = max(saved, default=0)
    if reached > steps:  # before refusing, see whether that checkpoint is intact
        newest = Checkpoints(out / CHECKPOINTS, log=lambda text: None).newest()
        reached = newest.step if newest else 0

    if reached <= steps:
        return reached

    requested = f"steps: {steps} are asked for"
    if counted_in_epochs:
        requested = f"epochs: they make {steps} steps"

    raise ValueError(
        f"{requested}, but the run in {out} has done {reached}; ask for {reached} or more, begin a "
        f"new run in another folder, or open a checkpoint that is kept, such as {out}@{saved[0]}"
    )


def check_order(out: Path, before: int, now: int) -> None:
    """A run must read its data in one order from the first step to the last."""
    if before != now:
        raise ValueError(
            f"out: the run in {out} was begun by another version of qkv, which reads the data in "
            "another order; continue with that version, or begin a new run in another folder "
            "(its model can be opened and fine-tuned as it is)"
        )


def rate_change(
    before: dict[str, Any], optimizer: OptimizerConfig, steps: int, width: int, step: int
) -> str | None:
    """How the learning rate jumps on resuming after `step` and how to avoid it, or None."""
    if step == 0 or step >= steps:
        return None

    # The rate of the next step, before and now
    old = OptimizerConfig(**pick_fields(before["optimizer"], OptimizerConfig))
    old_steps = int(before["run"]["steps"])
    old_highest = highest_rate(old, width, old_steps)
    old_rate = learning_rate(old, min(step, old_steps - 1), old_steps, old_highest)
    rate = learning_rate(optimizer, step, steps, highest_rate(optimizer, width, steps))
    if math.isclose(old_rate, rate, rel_tol=0.01):
        return None

    message = f"The learning rate goes from {old_rate:.2e} to {rate:.2e} at step {step + 1}"
    if steps == old_steps or optimizer.schedule not in ENDING:
        return f"{message}."

    message += f": the {optimizer.schedule} schedule now ends at step {steps}, not {old_steps}."
    if rate < old_rate:
        return message

    flags = f"--schedule constant --learning-rate {old_rate:.3g}"
    if optimizer.optimizer == "muon":
        flags += f" --muon-learning-rate {old.muon_learning_rate * old_rate / old_highest:.3g}"

    return (
        f"{message} To continue at the old rate, stop now and add {flags}. A run begun with "
        "--schedule constant, or stable and not yet in its decay, can be extended without a jump."
    )
