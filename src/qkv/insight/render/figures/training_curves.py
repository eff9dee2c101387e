"""Training curves of one or several runs in one figure: losses, learning rate, gradient norm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from qkv.insight.render.figures.curve_smoothing import smoothed, thinned
from qkv.insight.render.figures.figure_style import (
    COLOURS,
    INK,
    PALE,
    ROUND,
    canvas,
    head,
    plain_ticks,
    save,
)
from qkv.insight.render.figures.run_metrics import (
    Horizontal,
    Numbers,
    RunCurves,
    folder_of,
    names,
    read_run,
    short,
)
from qkv.insight.render.views import ENDINGS
from qkv.training.logging.metrics import METRICS_FILE

DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.5)))  # the next one when all colours are in use
PANELS = {"learning_rate": "learning rate", "gradient_norm": "gradient norm"}
LineStyle = Mapping[str, Any]
# The field of RunCurves, the label and the style of each kind of line and mark.
VALIDATION: LineStyle = {
    "marker": "o",
    "markersize": 6.5,
    "markeredgecolor": "white",
    "linewidth": 1.3,
}
LEGEND: tuple[tuple[str, str, LineStyle], ...] = (
    ("x", "training", {}),
    ("validation", "validation", VALIDATION),
    ("skipped", "step skipped", {"marker": "x", "linestyle": "none", "markeredgewidth": 1.8}),
    ("rewound", "went back to a checkpoint", {"marker": "<", "linestyle": ":", "linewidth": 1}),
)


def plot(
    runs: Sequence[Path | str],
    out: Path | str | None = None,
    *,
    x: Horizontal = "step",
    smooth: float = 0.02,
) -> Path:
    """Draw the curves of runs, also those in progress, and return the figure's path.

    Args:
        runs: The folders of the runs.
        out: A .png, .svg or .pdf file, or a folder. By default RUN/curves.png, or curves.png in
            the working directory for several runs.
        x: What the x axis shows.
        smooth: The fraction of a run over which its loss is averaged around each step.

    Returns:
        The path of the figure.

    Raises:
        ValueError: If a folder is not a run, or a setting is out of range.
    """
    if not runs:
        raise ValueError("runs: expected the folder of one run or more")
    if not 0 <= smooth < 1:
        raise ValueError(f"smooth: expected 0 or more and less than 1, not {smooth}")
    if x not in ("step", "tokens", "seconds"):
        raise ValueError(f"x: expected step, tokens or seconds, not {x!r}")

    folders = run_folders(runs)
    out = figure_path(out, folders)
    curves = []
    for folder, name in zip(folders, names(folders), strict=True):
        curves.append(read_run(folder, name, x))

    return save(lambda: draw(curves, x, smooth), out)


def run_folders(runs: Sequence[Path | str]) -> list[Path]:
    """The folders of the runs without repetitions, with those of several seeds expanded."""
    folders: dict[Path, Path] = {}
    for run in runs:
        for path in with_seeds(Path(run)):
            folder = folder_of(path)
            folders[folder.resolve()] = folder

    return list(folders.values())


def with_seeds(run: Path) -> list[Path]:
    """The run itself, or the runs of its seeds after `qkv finetune --seeds`."""
    if (run / METRICS_FILE).exists():
        return [run]

    metrics = sorted(run.glob(f"seed-*/{METRICS_FILE}"))
    return [path.parent for path in metrics] or [run]


def figure_path(out: Path | str | None, folders: Sequence[Path]) -> Path:
    """The path of the figure: `out`, a file in the folder `out`, or the default."""
    if out is None and len(folders) == 1:
        return folders[0] / "curves.png"
    if out is None:
        return Path("curves.png")

    out = Path(out)
    if out.is_dir():
        return out / "curves.png"
    if out.suffix.lower() not in ENDINGS:
        raise ValueError(
            f"out: expected the name of a .png, .svg or .pdf file, or a folder, not {out}"
        )

    return out


# Drawing


def draw(runs: Sequence[RunCurves], x: Horizontal, smooth: float) -> Figure:
    """Losses in a large panel; learning rate, gradient norm and metrics in small ones below."""
    kinds = panel_kinds(runs)
    heights = [3, 1] if kinds else [1]
    figure = canvas(10.0, 6.6 if kinds else 5.0)
    grid = figure.add_gridspec(len(heights), max(len(kinds), 1), height_ratios=heights)
    scale, label = unit(runs, x)
    styles = line_styles(len(runs))

    main = figure.add_subplot(grid[0, :])
    draw_losses(main, runs, styles, scale, smooth)
    for index, kind in enumerate(kinds):
        panel = figure.add_subplot(grid[1, index])
        draw_small_panel(panel, kind, runs, styles, scale, smooth)

    share_x_axis(figure, runs, scale, integer=x == "step")
    main.set_xlabel(label)
    draw_title(main, runs)

    return figure


def panel_kinds(runs: Sequence[RunCurves]) -> list[str]:
    """The small panels that have something to show: columns of PANELS, then validation metrics."""
    kinds = []
    for kind in PANELS:
        if len(finite_values(columns_of(runs, kind))):
            kinds.append(kind)

    for run in runs:
        if run.metric is not None and run.metric not in kinds:
            kinds.append(run.metric)

    return kinds


def line_styles(count: int) -> list[LineStyle]:
    """A colour and a dash pattern for each run."""
    styles: list[LineStyle] = []
    for index in range(count):
        dashes = DASHES[index // len(COLOURS) % len(DASHES)]
        styles.append({"color": COLOURS[index % len(COLOURS)], "linestyle": dashes})

    return styles


def draw_losses(
    axes: Axes, runs: Sequence[RunCurves], styles: Sequence[LineStyle], scale: float, smooth: float
) -> None:
    """Training and validation losses of all runs, with marks for skipped and rewound steps."""
    for run, style in zip(runs, styles, strict=True):
        draw_curve(axes, run.x / scale, run.columns["loss"], smooth, style)
        axes.plot(run.validation_x / scale, run.validation, **style, **VALIDATION, zorder=4)
        mark_events(axes, run, scale, style["color"])

    validation = [run.validation for run in runs]
    fit_y_axis(axes, columns_of(runs, "loss") + validation)
    extend_y_axis(axes, validation)
    axes.set_ylabel("loss")
    draw_legend(axes, runs, styles)


def draw_small_panel(
    axes: Axes,
    kind: str,
    runs: Sequence[RunCurves],
    styles: Sequence[LineStyle],
    scale: float,
    smooth: float,
) -> None:
    """One column of PANELS along training, or one metric at each validation."""
    for run, style in zip(runs, styles, strict=True):
        if kind == run.metric:
            x = run.validation_x / scale
            axes.plot(x, run.metrics, **style, linewidth=1.3, marker="o", markersize=4)
        elif kind in PANELS:
            window = smooth * (kind == "gradient_norm")  # a learning rate is smooth already
            x = run.x / scale
            faint = len(runs) == 1
            draw_curve(axes, x, run.columns[kind], window, style, width=1.5, faint=faint)

    if kind in PANELS:
        fit_y_axis(axes, columns_of(runs, kind), zero=True)

    title = PANELS.get(kind, kind.replace("_", " "))
    axes.set_title(title, fontsize=11, loc="left", color=INK)
    plain_ticks(axes.yaxis, 4)
    axes.tick_params(labelsize=9)


def share_x_axis(figure: Figure, runs: Sequence[RunCurves], scale: float, integer: bool) -> None:
    """Give all panels the same range of x, and fewer ticks to the small ones."""
    longest = 0.0
    for run in runs:
        longest = max(longest, float(np.nanmax(np.concatenate([run.x, run.validation_x]))))

    right = longest / scale or 1.0
    ticks = [8, 5, 5]
    if len(figure.axes) > len(ticks):
        ticks = [8] + [4] * (len(figure.axes) - 1)

    for axes, count in zip(figure.axes, ticks, strict=False):
        axes.set_xlim(-0.01 * right, 1.02 * right)
        axes.xaxis.set_major_locator(MaxNLocator(count, integer=integer, steps=ROUND))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))


def draw_curve(
    axes: Axes,
    x: Numbers,
    values: Numbers,
    smooth: float,
    style: LineStyle,
    width: float = 2.2,
    faint: bool = True,
) -> None:
    """Draw the smoothed curve over a faint line of each step; a single point becomes a dot."""
    values = np.where(np.isfinite(values), values, np.nan)
    colour = style["color"]
    if np.isfinite(values).sum() == 1:
        axes.plot(x, values, color=colour, marker="D", markersize=5, linestyle="none")
        return

    if smooth and faint:
        axes.plot(*thinned(x, values), color=colour, linewidth=0.8, alpha=0.28, zorder=2)

    mean = smoothed(values, smooth)
    axes.plot(*thinned(x, mean), **style, linewidth=width, zorder=3, solid_capstyle="round")


def mark_events(axes: Axes, run: RunCurves, scale: float, colour: str) -> None:
    """Mark skipped and rewound steps at the bottom of the panel, whatever the losses are."""
    bottom = axes.get_xaxis_transform()
    style: dict[str, Any] = {"color": colour, "markersize": 7, "markeredgewidth": 1.8, "zorder": 5}
    for steps, marker, height in ((run.skipped, "x", 0.03), (run.rewound, "<", 0.08)):
        axes.plot(steps / scale, np.full(len(steps), height), marker, transform=bottom, **style)

    for x in run.rewound / scale:
        axes.axvline(x, color=colour, linewidth=1, linestyle=":", alpha=0.7, zorder=1)


def columns_of(runs: Sequence[RunCurves], kind: str) -> list[Numbers]:
    return [run.columns[kind] for run in runs]


def finite_values(curves: Sequence[Numbers]) -> Numbers:
    values = np.concatenate(curves)
    return values[np.isfinite(values)]


def fit_y_axis(axes: Axes, curves: Sequence[Numbers], zero: bool = False) -> None:
    """Fit the y axis to the curves without their few extremes, which would flatten the rest."""
    values = finite_values(curves)
    if len(values) == 0:
        return

    low, high = np.percentile(values, (0.2, 99), method="closest_observation").tolist()
    if zero:
        low = 0.0

    margin = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    if not zero:
        low -= margin

    axes.set_ylim(low, high + margin)


def extend_y_axis(axes: Axes, curves: Sequence[Numbers]) -> None:
    """Extend the y axis to all points of these curves unless that would flatten the rest."""
    values = finite_values(curves)
    if len(values) == 0:
        return

    low, high = axes.get_ylim()
    highest = float(values.max())
    if highest < high + 10 * (high - low):
        margin = 0.06 * (max(high, highest) - low)
        axes.set_ylim(low, max(high, highest + margin))


def draw_legend(axes: Axes, runs: Sequence[RunCurves], styles: Sequence[LineStyle]) -> None:
    """An entry for each of several runs, and one for each kind of line and mark."""

    def entry(label: str, **style: Any) -> Line2D:
        return Line2D([], [], **{"color": PALE, "linewidth": 2.2, **style, "label": label})

    entries = []
    colour = styles[0]["color"]
    if len(runs) > 1:
        colour = PALE
        for run, style in zip(runs, styles, strict=True):
            entries.append(entry(name_and_best(run), **style))

    for field, label, style in LEGEND:
        if any(len(getattr(run, field)) for run in runs):
            entries.append(entry(label, color=colour, **style))

    columns = 1
    if len(entries) > 10:
        columns = 2

    axes.legend(handles=entries, loc="best", ncols=columns)


def name_and_best(run: RunCurves) -> str:
    name = run.name
    if name.startswith("_"):  # matplotlib hides labels that begin with _
        name = f"./{name}"
    if run.best is None:
        return name

    return f"{name}  (best {run.best[0]:.4g})"


def draw_title(axes: Axes, runs: Sequence[RunCurves]) -> None:
    if len(runs) > 1:
        head(axes, f"{len(runs)} runs compared", "best: the lowest validation loss of each run")
        return

    (run,) = runs
    below = run.summary
    if run.best is not None:
        loss, step = run.best
        below += f"; best validation loss {loss:.4g} at step {step:,}"

    head(axes, run.name, below)


def unit(runs: Sequence[RunCurves], x: Horizontal) -> tuple[float, str]:
    """The divisor of x and the label of the x axis; long times are shown in hours or minutes."""
    if x != "seconds":
        return 1.0, x

    longest = max(float(np.nanmax(run.x)) for run in runs)
    for seconds, name in ((3600.0, "hours"), (60.0, "minutes")):
        if longest >= 2 * seconds:
            return seconds, name

    return 1.0, "seconds"
