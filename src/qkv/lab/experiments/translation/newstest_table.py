"""Table 2 of "Attention is all you need", as the lecture shows it: BLEU and training cost."""

from __future__ import annotations

from matplotlib.axes import Axes

from qkv.insight.render.figures.figure_style import COLOURS
from qkv.lab.lab_results import Results

# Model: BLEU and FLOPs of English-German, then of English-French; None where the slide has none.
TABLE_2: dict[str, tuple[float | None, float | None, float | None, float | None]] = {
    "ByteNet": (23.75, None, None, None),
    "Deep-Att": (None, None, 39.2, 1.0e20),
    "GNMT": (24.6, 2.3e19, 39.92, 1.4e20),
    "ConvS2S": (25.16, 9.6e18, 40.46, 1.5e20),
    "MoE": (26.03, 2.0e19, 40.56, 1.2e20),
    "Deep-Att ens.": (None, None, 40.4, 8.0e20),
    "GNMT ens.": (26.30, 1.8e20, 41.16, 1.1e21),
    "ConvS2S ens.": (26.36, 7.7e19, 41.29, 1.2e21),
    "Transformer base": (27.3, 3.3e18, 38.1, None),
    "Transformer big": (28.4, 2.3e19, 41.8, None),
}


def draw_table(axes: Axes, results: Results) -> None:
    """The lecture's own table; points without a cost stand at the left edge."""
    for side, language in enumerate(("English-German", "English-French")):
        for name, row in TABLE_2.items():
            bleu, flops = row[2 * side : 2 * side + 2]
            if bleu is None:
                continue

            marker = "*" if name.startswith("Transformer") else "o"
            place = flops or 1e18
            fill = COLOURS[side] if flops else "none"
            axes.plot(place, bleu, marker, color=COLOURS[side], markerfacecolor=fill, markersize=9)
            label = name if flops else f"{name} (no FLOPs)"
            axes.annotate(label, (place, bleu), (5, 4), textcoords="offset points", fontsize=7)

        axes.plot([], [], "o", color=COLOURS[side], label=language)
