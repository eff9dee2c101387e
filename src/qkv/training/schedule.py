"""The learning rate of a step: up while warming up, then down in one of several ways."""

from __future__ import annotations

import math

from qkv.training.run_config import OptimizerConfig

USUAL_WARMUP = 100


def learning_rate(config: OptimizerConfig, step: int, steps: int, highest: float) -> float:
    """Of step 0, 1, ..., steps - 1."""
    warmup = warmup_steps(config, steps)
    if step < warmup:
        return highest * (step + 1) / warmup
    if config.schedule == "inverse-sqrt":
        return highest * math.sqrt(warmup / (step + 1))
    if config.schedule == "constant":
        return highest

    lowest = highest * config.final_rate
    begin = (
        warmup if config.schedule != "stable" else max(warmup, round(steps * (1 - config.decay)))
    )
    if step < begin:
        return highest

    done = (step - begin + 1) / max(1, steps - begin)  # above 0, and 1 at the last step
    if config.schedule == "cosine":
        return lowest + (highest - lowest) * (1 + math.cos(math.pi * done)) / 2

    return lowest + (highest - lowest) * (1 - done)


def warmup_steps(config: OptimizerConfig, steps: int, usual: int = USUAL_WARMUP) -> int:
    """As given; else `usual`, but at most a tenth of all steps. A warm-up of one step is none."""
    return max(1, min(usual, steps // 10) if config.warmup is None else config.warmup)


def highest_rate(config: OptimizerConfig, width: int, steps: int) -> float:
    """As given; else the paper's for inverse-sqrt, and GPT-2's scaled by the width for the others."""
    if config.learning_rate is not None:
        return config.learning_rate
    if config.schedule == "inverse-sqrt":
        return (width * warmup_steps(config, steps)) ** -0.5

    return 6e-4 * math.sqrt(768 / width)
