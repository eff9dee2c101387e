"""Learning rate schedules: warm-up, then cosine, linear, inverse-sqrt, stable or constant."""

from __future__ import annotations

import math

from qkv.training.run_config import OptimizerConfig

USUAL_WARMUP = 100


def learning_rate(config: OptimizerConfig, step: int, steps: int, highest: float) -> float:
    """The learning rate of a step from 0 to steps - 1."""
    warmup = warmup_steps(config, steps)
    if step < warmup:
        return highest * (step + 1) / warmup
    if config.schedule == "inverse-sqrt":
        return highest * math.sqrt(warmup / (step + 1))
    if config.schedule == "constant":
        return highest

    decay_start = warmup
    if config.schedule == "stable":
        decay_start = max(warmup, round(steps * (1 - config.decay)))
    if step < decay_start:
        return highest

    lowest = highest * config.final_rate
    progress = (step - decay_start + 1) / max(1, steps - decay_start)  # 1 at the last step
    if config.schedule == "cosine":
        return lowest + (highest - lowest) * (1 + math.cos(math.pi * progress)) / 2

    return lowest + (highest - lowest) * (1 - progress)


def warmup_steps(config: OptimizerConfig, steps: int, usual: int = USUAL_WARMUP) -> int:
    """Steps of warm-up, 1 or more; by default `usual`, but at most a tenth of all steps."""
    warmup = config.warmup
    if warmup is None:
        warmup = min(usual, steps // 10)

    return max(1, warmup)


def highest_rate(config: OptimizerConfig, width: int, steps: int) -> float:
    """The highest learning rate; by default GPT-2's scaled by the width, or the paper's formula."""
    if config.learning_rate is not None:
        return config.learning_rate
    if config.schedule == "inverse-sqrt":
        return (width * warmup_steps(config, steps)) ** -0.5

    return 6e-4 * math.sqrt(768 / width)
