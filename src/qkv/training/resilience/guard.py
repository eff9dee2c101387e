"""Bad steps: a loss or gradient that is no number, or a loss far above what was usual.

A bad step leaves the weights as they were. The decision is taken on the device, so that the host
need not wait; it hears of it one step later. After several in a row the run goes back and leaves
their data out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

REMEMBERED = 100
ENOUGH = 20  # losses to know what is usual
LATE = 2  # the host knows the losses up to so many steps before


@dataclass
class Guard:
    spike: float
    patience: int
    losses: list[tuple[int, float]] = field(default_factory=list)
    """Step and loss of the last good ones."""
    bad: list[tuple[int, int]] = field(default_factory=list)
    """Step and data position of the bad ones since the last good one."""

    def limit(self, step: int) -> float:
        """The highest loss that passes. It depends on the step alone, not on when the host looked."""
        known = [loss for at, loss in self.losses if at <= step - LATE][-REMEMBERED:]
        if not self.spike or len(known) < ENOUGH:
            return math.inf

        return statistics.median(known) + self.spike

    def judge(self, step: int, loss: Tensor, norm: Tensor) -> Tensor:
        """1 where the step is bad, on the device."""
        return (~(loss.isfinite() & norm.isfinite()) | (loss > self.limit(step))).float()

    def hear(self, step: int, position: int, loss: float, norm: float, bad: bool) -> str | None:
        """Remember a step; the reason why it was bad, or None."""
        if not bad:
            self.losses = [*self.losses[-(REMEMBERED + LATE) :], (step, loss)]
            self.bad = []
            return None

        self.bad.append((step, position))
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        if not math.isfinite(norm):
            return f"the gradient's norm is {norm}"

        return f"the loss is {loss:.2f}, more than {self.limit(step):.2f}"

    @property
    def exhausted(self) -> bool:
        return len(self.bad) >= self.patience

    def state(self) -> dict[str, Any]:
        return {"losses": self.losses, "bad": self.bad}

    def load(self, state: dict[str, Any]) -> None:
        self.losses = [(int(step), float(loss)) for step, loss in state["losses"]]
        self.bad = [(int(step), int(position)) for step, position in state["bad"]]


def position_of(step: int, left_out: Sequence[tuple[int, int]]) -> int:
    """The data's position for a step, when stretches (first position, how many) are left out."""
    position = step
    for first, count in left_out:
        if position >= first:
            position += count

    return position


class LossScale:
    """fp16's range is narrow: the loss is multiplied before the backward pass, the gradients
    divided after it.

    An overflow halves the factor and costs a step; two thousand steps without one double it. All on
    the device.
    """

    def __init__(self, active: bool, device: torch.device) -> None:
        self.active = active
        self.factor = torch.tensor(2.0**16 if active else 1.0, device=device)
        self.since = torch.zeros((), device=device)

    def update(self, overflow: Tensor) -> None:
        if not self.active:
            return

        self.since = torch.where(overflow > 0, 0.0, self.since + 1)
        grown = torch.where(self.since >= 2000, self.factor * 2, self.factor)
        self.since = torch.where(self.since >= 2000, 0.0, self.since)
        self.factor = torch.where(overflow > 0, self.factor / 2, grown)

    def tensors(self) -> dict[str, Tensor]:
        return {"factor": self.factor, "since": self.since} if self.active else {}

    def load(self, tensors: dict[str, Tensor]) -> None:
        if self.active and tensors:
            self.factor, self.since = (
                tensors[name].to(self.factor.device) for name in ("factor", "since")
            )
