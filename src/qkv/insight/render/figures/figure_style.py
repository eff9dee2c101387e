"""How all pictures look, and how they get to their file."""

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

COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
)  # Okabe and Ito's, safe for all
ENDINGS = (".png", ".svg", ".pdf")
ROUND = [1, 2, 2.5, 5, 10]  # distances of ticks
INK, PALE = "#222222", "#777777"
STYLE: Any = {
    "font.size": 11, "text.color": INK, "axes.labelcolor": INK, "xtick.color": PALE, "ytick.color": PALE,
    "axes.edgecolor": "#BBBBBB", "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "grid.color": "#E6E6E6", "grid.linewidth": 0.8, "axes.axisbelow": True,
    "legend.framealpha": 0.85, "legend.edgecolor": "none", "svg.fonttype": "none",
    "text.parse_math": False,
}  # fmt: skip

# The first has the letters of Europe, Arabic and Hebrew; the others, where a machine has them,
# those of Asia.
FONTS = (
    "DejaVu Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "PingFang SC", "Hiragino Sans",
    "Microsoft YaHei", "Malgun Gothic", "Noto Sans Devanagari", "Nirmala UI", "Arial Unicode MS", "Noto Emoji",
)  # fmt: skip


def check_ending(out: Path, name: str = "plot") -> None:
    if out.suffix.lower() not in ENDINGS:
        raise ValueError(f"{name}: expected the name of a .png, .svg or .pdf file, not {out}")


def save(draw: Callable[[], Figure], out: Path) -> Path:
    """Draw in the house's style; the file is there whole or not at all."""
    known = {font.name for font in font_manager.fontManager.ttflist}
    fonts = [name for name in FONTS if name in known]

    with matplotlib.rc_context({**STYLE, "font.family": fonts}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # a box stands for it
        picture = BytesIO()
        draw().savefig(picture, format=out.suffix[1:].lower(), dpi=160)

    content = picture.getvalue()

    with storage.staging(out.parent, len(content), out.name) as made:
        (made / out.name).write_bytes(content)
        storage.flush(made / out.name)
        storage.move(made / out.name, out)

    return out


def head(axes: Axes, title: str, below: str) -> None:
    """What it is, and in a paler line the sum of it."""
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
