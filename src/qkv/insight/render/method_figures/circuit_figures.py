"""Figures of circuits: eigenvalue scores by layer and head, and composition of all pairs."""

from __future__ import annotations

from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure

from qkv.insight.circuits.circuit_scores import CircuitScores
from qkv.insight.circuits.composition_scores import CompositionScores
from qkv.insight.render.figures.figure_style import colour_bar
from qkv.insight.render.figures.head_figures import DIVERGING, RISING, heat, sheet, write_texts


def circuits_figure(
    scores: CircuitScores, compositions: CompositionScores | None, title: str
) -> Figure:
    """Copying and matching of each head above; below, the composition of each pair of heads."""
    rows = 1 if compositions is None else 2
    figure, grid = sheet(13, 4.4 * rows + 0.8, [1] * 6, rows)
    for column, name in enumerate(("copying", "matching")):
        axes = figure.add_subplot(grid[0, 3 * column : 3 * column + 3])
        values = getattr(scores, name).numpy()
        image = heat(axes, values, name, DIVERGING, TwoSlopeNorm(0, -1, 1))
        colour_bar(axes, image, "", 9, shrink=0.8)

    below = "copying and matching: sum(λ) / sum(|λ|) of the eigenvalues of W_OV and W_QK"
    if compositions is not None:
        below += (
            "; composition: what a head writes (down) and a later head reads (across), a ratio of "
            f"Frobenius norms, {compositions.random:.3f} for unrelated heads"
        )
        for column, name in enumerate(("query", "key", "value")):
            values = getattr(compositions, name)
            L, H, _, _ = values.shape
            axes = figure.add_subplot(grid[1, 2 * column : 2 * column + 2])
            ends = (0.0, float(values.max()) or 1.0)
            flat = values.flatten(2).flatten(0, 1).numpy()  # (L H, L H)
            image = heat(axes, flat, f"composition through the {name}", RISING, None, ends)
            axes.set_xlabel("reads: layer")
            axes.set_ylabel("writes: layer")
            step = max(1, L // 6)
            ticks = list(range(0, L, step))
            places = [layer * H for layer in ticks]
            axes.set_xticks(places, list(map(str, ticks)))
            axes.set_yticks(places, list(map(str, ticks)))
            colour_bar(axes, image, "", 9, shrink=0.8)

    write_texts(figure, title, below)

    return figure
