"""Bad steps: a loss spike, or a loss or gradient that is NaN or infinite; and fp16's loss scale.

A bad step leaves the weights unchanged. The device decides, so that the host need not wait; it
reads the decision one step later. After several bad steps in a row the run goes back to a
checkpoint and leaves their data out.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

WINDOW = 100
"""Losses of good steps that the median is taken over."""
ENOUGH = 20
"""Losses that must be known before a step can be a spike."""
DELAY = 2
"""Steps before the current one whose loss the host may not know yet."""


class Diverged(RuntimeError):
    """Training fails again and again, whatever data it reads."""


@dataclass
class Guard:
    """Recognises bad steps from the recent losses."""

    spike: float
    patience: int
    losses: list[tuple[int, float]] = field(default_factory=list)
    """Step and loss of the last good steps."""
    bad: list[tuple[int, int]] = field(default_factory=list)
    """Step and data position of the bad steps since the last good one."""

    def limit(self, step: int) -> float:
        """The loss above which a step is a spike; independent of when the host reads the losses."""
        known = [loss for other, loss in self.losses if other <= step - DELAY][-WINDOW:]
        if not self.spike or len(known) < ENOUGH:
            return math.inf

        return statistics.median(known) + self.spike

    def is_bad(self, step: int, loss: Tensor, norm: Tensor) -> Tensor:
        """1.0 where the step is bad, else 0.0, computed on the device."""
        finite = loss.isfinite() & norm.isfinite()
        return (~finite | (loss > self.limit(step))).float()

    def observe(self, step: int, position: int, loss: float, norm: float, bad: bool) -> str | None:
        """Remember a step; return why it was bad, or None."""
        if not bad:
            self.losses = [*self.losses[-(WINDOW + DELAY) :], (step, loss)]
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
        """Whether there were as many bad steps in a row as `patience` allows."""
        return len(self.bad) >= self.patience

    def state(self) -> dict[str, Any]:
        return {"losses": self.losses, "bad": self.bad}

    def load(self, state: dict[str, Any]) -> None:
        self.losses = [(int(step), float(loss)) for step, loss in state["losses"]]
        self.bad = [(int(step), int(position)) for step, position in state["bad"]]


class LossScale:
    """fp16 mixed precision: the loss is scaled up before backward, the gradients down after it.

    An overflow halves the factor and costs a step; two thousand steps without one double it.
    Everything is computed on the device.
    """

    def __init__(self, active: bool, device: torch.device) -> None:
        self.active = active
        self.factor = torch.tensor(1.0, device=device)
        self.since = torch.zeros((), device=device)
        if active:
            self.factor = torch.tensor(2.0**16, device=device)

    def update(self, overflow: Tensor) -> None:
        """After a step: halve, keep or double the factor."""
        if not self.active:
            return

        self.since = torch.where(overflow > 0, 0.0, self.since + 1)
        grown = torch.where(self.since >= 2000, self.factor * 2, self.factor)
        self.since = torch.where(self.since >= 2000, 0.0, self.since)
        self.factor = torch.where(overflow > 0, self.factor / 2, grown)

    def tensors(self) -> dict[str, Tensor]:
        if not self.active:
            return {}

        return {"factor": self.factor, "since": self.since}

    def load(self, tensors: dict[str, Tensor]) -> None:
        if self.active and tensors:
            device = self.factor.device
            self.factor = tensors["factor"].to(device)
            self.since = tensors["since"].to(device)
