"""Scores of several models in one picture, each with its interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from qkv.insight.render.figures.figure_style import COLOURS, INK, PALE, ROUND, check_ending, save

MARKS = "osD^vP*X"
ACROSS = 3  # panels beside each other
FEW = 6  # dots in a panel that have room for their numbers


def plot(found: Mapping[str, Any], out: Path) -> Path:
    """Draw what `qkv evaluate --out` writes: a panel for each score, a dot with its interval for
    each model.
    """
    check_ending(out)
    return save(lambda: draw(found["results"]), out)


def draw(results: Sequence[Mapping[str, Any]]) -> Figure:
    models = list(dict.fromkeys(result["model"] for result in results))
    panels: dict[tuple[str, str], list[tuple[Mapping[str, Any], Mapping[str, Any]]]] = {}
    for result in results:
        for score in result["scores"]:
            panels.setdefault((result["task"], score["name"]), []).append((result, score))

    columns = min(ACROSS, len(panels))
    rows = -(-len(panels) // columns)
    size = (max(5.0, 3.6 * columns), 3.2 * rows + 0.9)
    figure = Figure(
        figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1, wspace=0.04, hspace=0.06)
    )
    looks: dict[str, dict[str, Any]] = {
        model: {"color": COLOURS[place % len(COLOURS)], "marker": MARKS[place % len(MARKS)]}
        for place, model in enumerate(models)
    }

    for place, ((task, name), scored) in enumerate(panels.items()):
        panel(figure.add_subplot(rows, columns, place + 1), task, name, scored, looks)

    entries = [
        Line2D([], [], linestyle="none", markersize=8, label=model, **look)
        for model, look in looks.items()
    ]
    below = Line2D([], [], color=PALE, linewidth=1.6, label="95% interval")
    figure.legend(
        handles=[*entries, below],
        loc="outside lower center",
        ncols=min(4, len(entries) + 1),
        frameon=False,
    )

    return figure


def panel(
    axes: Axes,
    task: str,
    name: str,
    scored: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]],
    looks: Mapping[str, Mapping[str, Any]],
) -> None:
    """One score: to the right the number of examples, if there are several, and the models beside
    each other.
    """
    shots = sorted({result["shots"] for result, _ in scored})
    models = [model for model in looks if any(result["model"] == model for result, _ in scored)]
    scale = 100.0 if scored[0][1]["percent"] else 1.0

    for number, model in enumerate(models):
        shift = 0.7 * ((number + 0.5) / len(models) - 0.5)
        own = sorted(
            ((r, s) for r, s in scored if r["model"] == model), key=lambda pair: pair[0]["shots"]
        )
        x = [shots.index(result["shots"]) + shift for result, _ in own]
        y = [scale * score["value"] for _, score in own]
        low, high = ([scale * end(score, each) for _, score in own] for each in ("low", "high"))
        look = looks[model]
        for at, bottom, top in zip(x, low, high, strict=True):
            axes.plot(
                [at, at],
                [bottom, top],
                color=look["color"],
                linewidth=1.8,
                alpha=0.75,
                solid_capstyle="round",
            )

        axes.plot(
            x,
            y,
            linewidth=0.9,
            linestyle=":",
            markersize=8,
            markeredgecolor="white",
            zorder=3,
            **look,
        )

        for at, value in zip(x, y, strict=True) if len(scored) <= FEW else ():
            axes.annotate(
                said(value),
                (at, value),
                xytext=(8, 0),
                textcoords="offset points",
                fontsize=9,
                va="center",
            )

    chance = next(
        (result["chance"] for result, _ in scored if result.get("chance") is not None), None
    )
    if chance is not None:
        axes.axhline(scale * chance, color=PALE, linewidth=1, linestyle="--", zorder=1)
        axes.annotate(
            "guessing", (0.01, scale * chance), xycoords=("axes fraction", "data"), va="bottom", fontsize=9, color=PALE,
        )  # fmt: skip

    axes.set_title(task, fontsize=12, fontweight="bold", loc="left", color=INK)
    better = "" if scored[0][1]["higher_is_better"] else " (lower is better)"
    axes.set_ylabel(f"{name}{', %' if scale > 1 else ''}{better}")
    axes.set_xlim(-0.6, len(shots) - 0.4)
    axes.set_xticks(range(len(shots)), [str(each) for each in shots] if len(shots) > 1 else [""])
    rows = scored[0][0]["rows"]
    one = "1 row" if rows == 1 else f"{rows:,} rows"
    axes.set_xlabel("examples before the question" if len(shots) > 1 else one)
    axes.grid(axis="x", visible=False)
    axes.margins(y=0.12)
    lows, highs = ([end(score, each) for _, score in scored] for each in ("low", "high"))
    unbounded = not scored[0][1][
        "higher_is_better"
    ]  # perplexity and bits; accuracy, BLEU and chrF end at 100
    if unbounded and min(lows) > 0 and max(highs) > 10 * min(lows):
        axes.set_yscale("log")  # one of them is off by far; the others would lie flat
    else:
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=ROUND))

    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def end(score: Mapping[str, Any], name: str) -> float:
    """Of the interval; without one it is the dot alone."""
    return float(score["value"] if score[name] is None else score[name])


def said(value: float) -> str:
    return (
        f"{value:.2g}"
        if value >= 1e5
        else f"{value:,.0f}"
        if value >= 1000
        else f"{value:#.3g}".rstrip(".")
    )
