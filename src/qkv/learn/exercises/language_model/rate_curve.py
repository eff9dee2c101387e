"""Learning rates of exercise 10: the library's schedule, and the curves of mistakes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from qkv.learn.result_kinds import as_number
from qkv.training.run_config import OptimizerConfig
from qkv.training.schedule import learning_rate


class RateCurve(NamedTuple):
    """A schedule of the exercise: its sizes, and curves that a mistake would give."""

    steps: int
    warmup: int
    highest: float
    final: float

    def rates(self, function: Callable[[int], Any]) -> Tensor:
        """The rate of every step."""
        found = []
        for step in range(self.steps):
            found.append(as_number(function(step), f"learning_rate of step {step}"))

        return torch.tensor(found, dtype=torch.float64)

    def scheduled(self, schedule: Literal["cosine", "linear"]) -> Tensor:
        """The library's rates."""
        config = OptimizerConfig(schedule=schedule, warmup=self.warmup, final_rate=self.final)
        return self.rates(lambda step: learning_rate(config, step, self.steps, self.highest))

    def cosine(self, progress: Callable[[int], float], lowest: float | None = None) -> Tensor:
        """Warm-up, then a cosine from the highest rate to the lowest, as progress goes to 1."""
        low = self.final * self.highest if lowest is None else lowest

        def rate(step: int) -> float:
            if step < self.warmup:
                return self.highest * (step + 1) / self.warmup

            wave = math.cos(math.pi * progress(step))
            return low + (self.highest - low) * (1 + wave) / 2

        return self.rates(rate)

    def mistakes(self) -> dict[str, Tensor]:
        """Other curves, by what to tell the student."""
        steps, warmup, highest, final = self
        cosine = self.cosine
        late = self.scheduled("cosine")
        late[:warmup] = highest * torch.arange(warmup, dtype=torch.float64) / warmup

        def right(step: int) -> float:
            return (step - warmup + 1) / (steps - warmup)

        return {
            "learning_rate: step 0 has the rate 0 and changes nothing: the warm-up begins at "
            "highest / warmup": late,
            "learning_rate: the cosine is one step late: the last step should have "
            "final * highest": cosine(lambda step: (step - warmup) / (steps - warmup)),
            "learning_rate: progress ends below 1: its divisor is one too large; the last step "
            "should have final * highest": (
                cosine(lambda step: (step - warmup + 1) / (steps - warmup + 1))
            ),
            "learning_rate: progress is still 0 at step warmup; step warmup - 1 has the highest "
            "rate already": cosine(lambda step: (step - warmup) / (steps - warmup - 1)),
            "learning_rate: the cosine goes over all steps; it begins when the warm-up ends": (
                cosine(lambda step: (step + 1) / steps)
            ),
            "learning_rate: the cosine goes over all steps, and one step late; it begins when the "
            "warm-up ends": cosine(lambda step: step / steps),
            "learning_rate: the rate falls to 0; the lowest is final * highest": cosine(right, 0),
            "learning_rate: final is ignored; it is not always 0.1": cosine(right, 0.1 * highest),
            "learning_rate: the lowest rate is final * highest, not final": cosine(right, final),
            "learning_rate: a straight line, not half a cosine": self.scheduled("linear"),
            "learning_rate: a quarter of a cosine; cos(pi progress) goes from 1 to -1": cosine(
                lambda step: right(step) / 2
            ),
        }
