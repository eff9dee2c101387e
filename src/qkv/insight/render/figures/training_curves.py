"""The curves of one or many runs in one picture: losses, learning rate, gradient norm, and what
went wrong when.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from qkv.insight.render.figures.figure_style import COLOURS, INK, PALE, ROUND, head, save
from qkv.insight.render.figures.run_metrics import (
    Horizontal,
    Numbers,
    RunCurves,
    folder_of,
    names,
    read_run,
    short,
)
from qkv.training.logging.metrics import NAME

DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.5)))  # one for each time the colours are used up
BUCKETS = 2000  # no picture has more columns to show
PANELS = {"learning_rate": "learning rate", "gradient_norm": "gradient norm"}


def plot(
    runs: Sequence[Path | str],
    out: Path | str | None = None,
    *,
    x: Horizontal = "step",
    smooth: float = 0.02,
) -> Path:
    """Draw runs, also those still in progress, and return the picture's path.

    `smooth` is the part of a run over which its loss is averaged, around each step. The picture
    goes to RUN/curves.png, of several runs to curves.png here, unless `out` names a .png, .svg or
    .pdf file or a folder.
    """
    if not runs:
        raise ValueError("runs: expected the folder of one run or more")
    if not 0 <= smooth < 1:
        raise ValueError(f"smooth: expected 0 or more and less than 1, not {smooth}")
    if x not in ("step", "tokens", "seconds"):
        raise ValueError(f"x: expected step, tokens or seconds, not {x!r}")

    folders = [folder_of(each) for run in runs for each in with_seeds(Path(run))]
    folders = list({folder.resolve(): folder for folder in folders}.values())
    out = place_of(out, folders)
    read = [read_run(folder, name, x) for folder, name in zip(folders, names(folders), strict=True)]

    return save(lambda: draw(read, x, smooth), out)


def with_seeds(run: Path) -> list[Path]:
    """A run; or those of its seeds, where `qkv finetune --seeds` made several."""
    seeds = (
        [] if (run / NAME).exists() else sorted(each.parent for each in run.glob(f"seed-*/{NAME}"))
    )
    return seeds or [run]


def place_of(out: Path | str | None, folders: Sequence[Path]) -> Path:
    if out is None:
        return (folders[0] if len(folders) == 1 else Path()) / "curves.png"

    out = Path(out)
    if out.is_dir():
        return out / "curves.png"
    if out.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise ValueError(
            f"out: expected the name of a .png, .svg or .pdf file, or a folder, not {out}"
        )

    return out


def smoothed(values: Numbers, part: float) -> Numbers:
    """Averaged around each place with weights that fall to both sides. What is not finite does not
    count.
    """
    half = round(part * len(values) / 2)
    for _ in range(2 if half else 0):  # a mean of means weighs the middle most
        values = moving_mean(values, half)

    return values


def moving_mean(values: Numbers, half: int) -> Numbers:
    finite = (
        np.abs(values) < 1e9
    )  # and what is finite but so large that the running sum forgets all else
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(finite)])
    place = np.arange(len(values))
    reach = np.minimum(half, place)  # a loss falls fast at first: never further ahead than back
    begin, end = place - reach, np.minimum(place + reach + 1, len(values))
    count = counts[end] - counts[begin]

    return np.where(count > 0, (sums[end] - sums[begin]) / np.maximum(count, 1), np.nan)


def thinned(x: Numbers, values: Numbers) -> tuple[Numbers, Numbers]:
    """Of a long run the lowest and the highest of each stretch: the same picture from fewer points."""
    if len(values) <= 2 * BUCKETS:
        return x, values

    kept: list[int] = []

    for part in np.array_split(np.arange(len(values)), BUCKETS):
        finite = part[np.isfinite(values[part])]
        if len(finite):
            kept += sorted(
                {int(finite[values[finite].argmin()]), int(finite[values[finite].argmax()])}
            )

    return x[kept], values[kept]


# From numbers to a picture


def draw(runs: Sequence[RunCurves], x: Horizontal, smooth: float) -> Figure:
    panels = [kind for kind in PANELS if any(np.isfinite(run.columns[kind]).any() for run in runs)]
    panels += dict.fromkeys(run.metric for run in runs if run.metric is not None)
    figure = Figure(
        figsize=(10, 6.6 if panels else 5), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1)
    )
    grid = figure.add_gridspec(
        2 if panels else 1, max(len(panels), 1), height_ratios=[3, 1] if panels else [1]
    )
    main = figure.add_subplot(grid[0, :])
    scale, label = unit(runs, x)
    looks: list[dict[str, Any]] = [
        {
            "color": COLOURS[place % len(COLOURS)],
            "linestyle": DASHES[place // len(COLOURS) % len(DASHES)],
        }
        for place in range(len(runs))
    ]

    for run, look in zip(runs, looks, strict=True):
        trace(main, run.x / scale, run.columns["loss"], smooth, look)
        main.plot(
            run.validation_x / scale, run.validation, **look, linewidth=1.3, marker="o", markersize=6.5,
            markeredgecolor="white", markeredgewidth=1.0, zorder=4,
        )  # fmt: skip
        mark(main, run, scale, look["color"])

    fit(main, [run.columns["loss"] for run in runs] + [run.validation for run in runs])
    show_all(main, [run.validation for run in runs])
    main.set_ylabel("loss")
    legend(main, runs, looks)

    for place, kind in enumerate(panels):
        panel = figure.add_subplot(grid[1, place])
        for run, look in zip(runs, looks, strict=True):
            if kind == run.metric:
                panel.plot(
                    run.validation_x / scale,
                    run.metrics,
                    **look,
                    linewidth=1.3,
                    marker="o",
                    markersize=4,
                )
            elif kind in PANELS:
                blur = smooth if kind == "gradient_norm" else 0
                trace(
                    panel,
                    run.x / scale,
                    run.columns[kind],
                    blur,
                    look,
                    width=1.5,
                    faint=len(runs) == 1,
                )

        if kind in PANELS:
            fit(panel, [run.columns[kind] for run in runs], zero=True)

        panel.set_title(
            PANELS.get(kind, kind.replace("_", " ")), fontsize=11, loc="left", color=INK
        )
        panel.yaxis.set_major_locator(MaxNLocator(4, steps=ROUND))
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        panel.tick_params(labelsize=9)

    right = (
        max(float(np.nanmax(np.concatenate([run.x, run.validation_x]))) for run in runs) / scale
        or 1.0
    )

    for axes, ticks in zip(
        figure.axes, (8, *[5 if len(panels) < 3 else 4] * len(panels)), strict=True
    ):
        axes.set_xlim(-0.01 * right, 1.02 * right)
        axes.xaxis.set_major_locator(MaxNLocator(ticks, integer=x == "step", steps=ROUND))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))

    main.set_xlabel(label)
    told(main, runs)

    return figure


def trace(
    axes: Axes,
    x: Numbers,
    values: Numbers,
    smooth: float,
    look: Mapping[str, Any],
    width: float = 2.2,
    faint: bool = True,
) -> None:
    """Each step faint, the mean around it strong; a curve of one point is a dot."""
    values = np.where(np.isfinite(values), values, np.nan)
    if np.isfinite(values).sum() == 1:
        axes.plot(x, values, color=look["color"], marker="D", markersize=5, linestyle="none")
        return

    if smooth and faint:
        axes.plot(*thinned(x, values), color=look["color"], linewidth=0.8, alpha=0.28, zorder=2)

    axes.plot(
        *thinned(x, smoothed(values, smooth)),
        **look,
        linewidth=width,
        zorder=3,
        solid_capstyle="round",
    )


def mark(axes: Axes, run: RunCurves, scale: float, colour: str) -> None:
    """At the foot of the picture, whatever the losses were."""
    foot = axes.get_xaxis_transform()
    for places, sign, height in ((run.skipped, "x", 0.03), (run.rewound, "<", 0.08)):
        at = places / scale
        look: dict[str, Any] = {
            "color": colour,
            "markersize": 7,
            "markeredgewidth": 1.8,
            "zorder": 5,
        }

        axes.plot(at, np.full(len(at), height), sign, transform=foot, **look)

    for place in run.rewound / scale:
        axes.axvline(place, color=colour, linewidth=1, linestyle=":", alpha=0.7, zorder=1)


def fit(axes: Axes, curves: Sequence[Numbers], zero: bool = False) -> None:
    """All of the curves but their few highest and lowest points, which would press the rest flat."""
    values = np.concatenate(curves)
    values = values[np.isfinite(values)]
    if len(values) == 0:
        return

    low, high = (
        float(each) for each in np.percentile(values, (0.2, 99), method="closest_observation")
    )
    low = 0.0 if zero else low
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    axes.set_ylim(low if zero else low - margin, high + margin)


def show_all(axes: Axes, curves: Sequence[Numbers]) -> None:
    """Every point of these is in the picture, too: of few, each one tells something."""
    values = np.concatenate(curves)
    values = values[np.isfinite(values)]
    low, high = axes.get_ylim()
    if len(values) and values.max() < high + 10 * (
        high - low
    ):  # but for what would press the rest flat
        margin = 0.06 * (max(high, values.max()) - low)
        axes.set_ylim(low, max(high, float(values.max()) + margin))


def legend(axes: Axes, runs: Sequence[RunCurves], looks: Sequence[Mapping[str, Any]]) -> None:
    def entry(label: str, **look: Any) -> Line2D:
        return Line2D([], [], **{"color": PALE, "linewidth": 2.2, **look, "label": label})

    alone = len(runs) == 1
    colour = looks[0]["color"] if alone else PALE
    entries = (
        []
        if alone
        else [entry(name_and_best(run), **look) for run, look in zip(runs, looks, strict=True)]
    )
    if any(len(run.x) for run in runs):
        entries.append(entry("training", color=colour))

    if any(len(run.validation) for run in runs):
        dot: dict[str, Any] = {
            "marker": "o",
            "markersize": 6.5,
            "markeredgecolor": "white",
            "linewidth": 1.3,
        }

        entries.append(entry("validation", color=colour, **dot))

    if any(len(run.skipped) for run in runs):
        entries.append(
            entry("step skipped", color=colour, marker="x", linestyle="none", markeredgewidth=1.8)
        )

    if any(len(run.rewound) for run in runs):
        entries.append(
            entry("went back to a checkpoint", color=colour, marker="<", linestyle=":", linewidth=1)
        )

    axes.legend(handles=entries, loc="best", ncols=1 if len(entries) <= 10 else 2)


def name_and_best(run: RunCurves) -> str:
    name = (
        f"./{run.name}" if run.name.startswith("_") else run.name
    )  # matplotlib hides names that begin with _
    return name if run.best is None else f"{name}  (best {run.best[0]:.4g})"


def told(axes: Axes, runs: Sequence[RunCurves]) -> None:
    if len(runs) > 1:
        title, below = f"{len(runs)} runs compared", "best: the lowest validation loss of each"
    else:
        title, below = runs[0].name, runs[0].told
        if runs[0].best is not None:
            below += f"; best validation loss {runs[0].best[0]:.4g} at step {runs[0].best[1]:,}"

    head(axes, title, below)


def unit(runs: Sequence[RunCurves], x: Horizontal) -> tuple[float, str]:
    if x != "seconds":
        return 1.0, x

    longest = max(float(np.nanmax(run.x)) for run in runs)
    for seconds, name in ((3600.0, "hours"), (60.0, "minutes")):
        if longest >= 2 * seconds:
            return seconds, name

    return 1.0, "seconds"
