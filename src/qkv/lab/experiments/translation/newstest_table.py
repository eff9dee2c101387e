"""Table 2 of "Attention is all you need", as the lecture shows it: BLEU and training cost."""

from __future__ import annotations

from matplotlib.axes import Axes

from qkv.insight.render.figures.figure_style import COLOURS
from qkv.lab.lab_results import Results

# Model: BLEU and FLOPs of English-German, then of English-French; None where the slide has none.
TABLE_2: dict[str, tuple[float | None, float | None, float | None, float | None]] = {
    "ByteNet": (23.75, None, None, None),
    "Deep-Att + PosUnk": (None, None, 39.2, 1.0e20),
    "GNMT + RL": (24.6, 2.3e19, 39.92, 1.4e20),
    "ConvS2S": (25.16, 9.6e18, 40.46, 1.5e20),
    "MoE": (26.03, 2.0e19, 40.56, 1.2e20),
    "Deep-Att ensemble": (None, None, 40.4, 8.0e20),
    "GNMT ensemble": (26.30, 1.8e20, 41.16, 1.1e21),
    "ConvS2S ensemble": (26.36, 7.7e19, 41.29, 1.2e21),
    "Transformer base": (27.3, 3.3e18, 38.1, None),
    "Transformer big": (28.4, 2.3e19, 41.8, None),
}


# Labels stand at the height of their point, except for these: points up or down.
RAISED = {"ConvS2S ensemble": 2, "GNMT ensemble": -9, "Deep-Att ensemble": -14}
TO_THE_LEFT = ("Deep-Att + PosUnk", "MoE")
LEFT_EDGE = 1e18
"""Where models without a training cost stand."""
RIGHT_EDGE = 1.5e22
"""Beyond the last point, so that its label fits."""


def draw_table(axes: Axes, results: Results) -> None:
    """The lecture's own table; models without a training cost stand at the left edge, hollow."""
    for side, language in enumerate(("English-German", "English-French")):
        colour = COLOURS[side]
        axes.plot([], [], "o", color=colour, label=language)
        for name, row in TABLE_2.items():
            bleu, flops = row[2 * side : 2 * side + 2]
            if bleu is None:
                continue

            marker = "*" if name.startswith("Transformer") else "o"
            fill = colour if flops else "none"
            place = (flops or LEFT_EDGE, bleu)
            axes.plot(*place, marker, color=colour, markerfacecolor=fill, markersize=9)
            write_label(axes, name if flops else f"{name} (no FLOPs)", place)

    axes.set_xscale("log")
    axes.set_xlim(LEFT_EDGE / 1.5, RIGHT_EDGE)
    axes.legend(loc="center right")


def write_label(axes: Axes, name: str, place: tuple[float, float]) -> None:
    """The name of a model beside its point."""
    up = RAISED.get(name, -3)
    if name in TO_THE_LEFT:
        axes.annotate(name, place, (-8, up), textcoords="offset points", fontsize=8, ha="right")
    else:
        axes.annotate(name, place, (8, up), textcoords="offset points", fontsize=8)
