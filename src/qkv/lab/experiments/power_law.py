"""A power law through measured losses: its exponent, and its line in a panel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from qkv.lab.lab_results import Results


def fitted_exponent(sizes: Sequence[float], losses: Sequence[float]) -> float:
    """The exponent of the power law through these losses: the slope between their logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(losses), 1)[0])


def draw_power_law(axes: Axes, results: Results) -> None:
    """The loss of each seed over the parameters as dots, and the law fitted to the means."""
    sizes: list[float] = []
    means: list[float] = []
    for arm in results.experiment.arms:
        losses = results.values(arm, "loss")
        sizes.append(results.values(arm, "parameters")[0])
        means.append(results.interval(arm, "loss").mean)
        axes.plot([sizes[-1]] * len(losses), losses, "o", alpha=0.5, color="#888888")

    slope = fitted_exponent(sizes, means)
    level = np.mean(np.log(means) - slope * np.log(sizes))
    law = np.exp(level) * np.asarray(sizes) ** slope
    axes.plot(sizes, law, label=f"loss ~ parameters^{slope:.3f}")
