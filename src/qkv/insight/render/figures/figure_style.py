"""Style of all figures (colours, fonts, matplotlib settings), and writing a figure to a file."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.text import Annotation
from matplotlib.ticker import FuncFormatter, MaxNLocator

from qkv import storage
from qkv.insight.render.views import check_ending

# Okabe and Ito's palette, which colour-blind readers can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
ROUND = [1, 2, 2.5, 5, 10]  # steps between ticks
INK = "#222222"
PALE = "#777777"
TILTED: Any = {"rotation": 45, "ha": "right", "va": "top", "rotation_mode": "anchor"}
"""Tick labels that are wider than the distance between two ticks."""
STYLE: Any = {
    "font.size": 11,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": PALE,
    "ytick.color": PALE,
    "axes.edgecolor": "#BBBBBB",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "legend.framealpha": 0.85,
    "legend.edgecolor": "none",
    "svg.fonttype": "none",
    "text.parse_math": False,
}

# The first covers the scripts of Europe, Arabic and Hebrew; the others, where installed, Asia's.
FONTS = (
    "DejaVu Sans",
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans SC",
    "PingFang SC",
    "Hiragino Sans",
    "Microsoft YaHei",
    "Malgun Gothic",
    "Noto Sans Devanagari",
    "Nirmala UI",
    "Arial Unicode MS",
    "Noto Emoji",
)


def save(draw: Callable[[], Figure], out: Path, name: str = "plot") -> Path:
    """Draw a figure in the common style and write it atomically; `name` as in `check_ending`."""
    check_ending(out, name)
    content = render(draw, out.suffix[1:].lower())
    with storage.replacing(out, len(content)) as staged:
        staged.write_bytes(content)

    return out


def render(draw: Callable[[], Figure], ending: str, dpi: float = 160) -> bytes:
    """Draw a figure in the common style: the content of a png, svg or pdf file."""
    installed = {font.name for font in font_manager.fontManager.ttflist}
    fonts = [name for name in FONTS if name in installed]

    with matplotlib.rc_context({**STYLE, "font.family": fonts}), warnings.catch_warnings():
        # A box is drawn for a missing glyph.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        buffer = BytesIO()
        draw().savefig(buffer, format=ending, dpi=dpi)

    return buffer.getvalue()


def canvas(wide: float, high: float, **spacing: Any) -> Figure:
    """An empty figure of this size in inches; `spacing` is that of a ConstrainedLayoutEngine."""
    layout = ConstrainedLayoutEngine(**{"w_pad": 0.12, "h_pad": 0.1, "wspace": 0.03, **spacing})
    return Figure(figsize=(wide, high), layout=layout)


def head(axes: Axes, title: str, below: str) -> None:
    """Write a title and, in a paler line below it, a summary."""
    axes.set_title(title, fontsize=16, fontweight="bold", loc="left", pad=26)
    annotate(axes, below, (0, 1), (0, 8), xycoords="axes fraction", va="baseline", fontsize=11)


def annotate(
    axes: Axes, text: str, at: Any, shift: tuple[float, float] = (0, 0), **style: Any
) -> Annotation:
    """Write a small pale text beside a point, shifted by this many points (1/72 inch)."""
    style = {"va": "center", "fontsize": 9, "color": PALE, **style}
    return axes.annotate(text, at, xytext=shift, textcoords="offset points", **style)


def hide_frame(axes: Axes) -> None:
    """Remove grid, frame and tick marks, for heat maps."""
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)


def write_cells(axes: Axes, texts: Sequence[Sequence[str]], dark: Any, font: float) -> None:
    """Write a text into each cell of a heat map, in white where `dark` is True."""
    for row, cells in enumerate(texts):
        for column, text in enumerate(cells):
            colour = "white" if dark[row, column] else INK
            if text:
                axes.text(column, row, text, ha="center", va="center", fontsize=font, color=colour)


def colour_bar(
    axes: Axes,
    image: AxesImage,
    label: str = "",
    font: float = 12,
    *,
    shrink: float = 0.6,
    ticks: Sequence[float] | None = None,
    form: str = "{:g}",
) -> None:
    """A colour bar beside the axes; `form` formats the ticks, if there are any."""
    bar = axes.figure.colorbar(image, ax=axes, ticks=ticks, shrink=shrink, aspect=30, pad=0.02)
    if ticks is not None:
        bar.ax.set_yticklabels(list(map(form.format, ticks)))

    bar.ax.tick_params(labelsize=font - 1, length=0)
    bar.set_label(label, fontsize=font)
    bar.outline.set_visible(False)


def plain_ticks(axis: Axis, count: int, **options: Any) -> None:
    """At most `count` ticks at round numbers; the options are those of a MaxNLocator."""
    axis.set_major_locator(MaxNLocator(count, steps=ROUND, **options))
    plain_numbers(axis)


def plain_numbers(axis: Axis) -> None:
    """Tick labels without a common factor or offset."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def draw_interval(axes: Axes, x: float, low: float, high: float, colour: str) -> None:
    """A confidence interval as a vertical line."""
    axes.plot([x, x], [low, high], color=colour, linewidth=1.8, alpha=0.7, solid_capstyle="round")


def draw_baseline(axes: Axes, value: float, align: str = "left") -> None:
    """The score of random guessing as a dashed line, named at its left or right end."""
    axes.axhline(value, color=PALE, linewidth=1, linestyle="--", zorder=1)
    x = 0.01 if align == "left" else 0.99
    style: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "ha": align, "va": "bottom"}
    annotate(axes, "random guessing", (x, value), **style)
