"""The effect of a check with its interval, beside zero and the smallest effect that matters."""

from __future__ import annotations

import math

from matplotlib.figure import Figure

from qkv.insight.render.figures.figure_style import COLOURS, PALE, canvas
from qkv.lab.paired_intervals import Finding, number_text

VERDICT_COLOURS = {"holds": COLOURS[2], "does not hold": COLOURS[1], "cannot be told": COLOURS[0]}


def draw_effect(finding: Finding) -> Figure:
    """One line: the effect and its interval, over the region in which the claim holds."""
    figure = canvas(6.6, 1.15, h_pad=0.04)
    axes = figure.subplots()
    mean, low, high, _ = finding.effect
    ends = [mean]
    if math.isfinite(low) and math.isfinite(high):
        ends += [low, high]

    # The region that the claim needs
    relevant = finding.relevant
    left, right = limits([*ends, 0.0, relevant], finding.expects, relevant)
    region = (0.0, right)
    if finding.expects == "same":
        region = (-relevant, relevant)
    elif finding.expects == "not worse":
        region = (left, relevant)

    axes.axvspan(*region, color=COLOURS[2], alpha=0.1, linewidth=0)
    axes.axvline(0, color=PALE, linewidth=1.2)
    axes.axvline(relevant, color=COLOURS[2], linewidth=1.2, linestyle="--")
    if finding.expects == "same":
        axes.axvline(-relevant, color=COLOURS[2], linewidth=1.2, linestyle="--")

    # The effect
    colour = VERDICT_COLOURS[finding.verdict]
    if len(ends) > 1:
        axes.plot([low, high], [0, 0], color=colour, linewidth=3, solid_capstyle="butt")
        axes.plot([low, high], [0, 0], "|", color=colour, markersize=12, markeredgewidth=2.2)

    axes.plot([mean], [0], "D", color=colour, markersize=8)
    axes.set_xlim(left, right)
    axes.set_ylim(-1, 1)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False)
    ticks = tick_places(finding, left, right)
    axes.set_xticks(ticks, [number_text(tick, 3) for tick in ticks])
    return figure


def limits(values: list[float], expects: str, relevant: float) -> tuple[float, float]:
    """The ends of the axis, with a margin."""
    if expects == "same":
        values = [*values, -relevant]

    margin = 0.08 * ((max(values) - min(values)) or 1.0)
    return min(values) - margin, max(values) + margin


def tick_places(finding: Finding, left: float, right: float) -> list[float]:
    """Zero, the relevant effect, the mean and the ends of its interval, where there is room."""
    wanted = [0.0, finding.effect.mean, finding.relevant, finding.effect.low, finding.effect.high]
    if finding.expects == "same":
        wanted.insert(1, -finding.relevant)

    kept: list[float] = []
    for value in wanted:
        distances = [abs(value - other) for other in kept]
        if math.isfinite(value) and min(distances, default=math.inf) > 0.08 * (right - left):
            kept.append(value)

    return kept
