"""Style of all figures (colours, fonts, matplotlib settings), and writing a figure to a file."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from qkv import storage

# Okabe and Ito's palette, which colour-blind readers can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
ENDINGS = (".png", ".svg", ".pdf")
ROUND = [1, 2, 2.5, 5, 10]  # steps between ticks
INK = "#222222"
PALE = "#777777"
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


def check_ending(out: Path, name: str = "plot") -> None:
    """Raise an error that starts with `name` if `out` is not a figure's file name."""
    if out.suffix.lower() not in ENDINGS:
        raise ValueError(f"{name}: expected the name of a .png, .svg or .pdf file, not {out}")


def save(draw: Callable[[], Figure], out: Path) -> Path:
    """Draw a figure in the common style and write it atomically."""
    installed = {font.name for font in font_manager.fontManager.ttflist}
    fonts = [name for name in FONTS if name in installed]

    with matplotlib.rc_context({**STYLE, "font.family": fonts}), warnings.catch_warnings():
        # A box is drawn for a missing glyph.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        buffer = BytesIO()
        draw().savefig(buffer, format=out.suffix[1:].lower(), dpi=160)

    content = buffer.getvalue()

    with storage.staging(out.parent, len(content), out.name) as staging:
        (staging / out.name).write_bytes(content)
        storage.flush(staging / out.name)
        storage.move(staging / out.name, out)

    return out


def head(axes: Axes, title: str, below: str) -> None:
    """Write a title and, in a paler line below it, a summary."""
    axes.set_title(title, fontsize=16, fontweight="bold", loc="left", pad=26)
    axes.annotate(
        below,
        (0, 1),
        xytext=(0, 8),
        xycoords="axes fraction",
        textcoords="offset points",
        fontsize=11,
        color=PALE,
    )
