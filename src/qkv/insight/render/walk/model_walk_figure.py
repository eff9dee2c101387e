"""The walk of one token through a whole model as a figure: its stream, and what is added."""

from __future__ import annotations

from matplotlib.figure import Figure

from qkv.insight.inspect.look_data import LookData
from qkv.insight.render.figures.attention import write_title
from qkv.insight.render.figures.figure_style import COLOURS, PALE, canvas
from qkv.insight.render.views import ViewChoice, label
from qkv.insight.render.walk.model_walk_rows import PART_NAMES, followed_token, walk_rows

ROOT = 0.5  # a square root shows the short vectors of the first layers, too


def draw_model(look: LookData, choice: ViewChoice) -> Figure:
    """Steps downwards: the length of the stream, and of what each part adds to it."""
    walk, position = followed_token(look, choice)
    rows = list(walk_rows(walk, position))
    figure = canvas(11, max(3.2, 0.24 * len(rows) + 1.8))
    stream, added = figure.subplots(1, 2, sharey=True)

    stream.barh(range(len(rows)), [row.stream for row in rows], color=PALE)
    stream.set_title("length of the stream", fontsize=14, loc="left")
    for number, (part, name) in enumerate(PART_NAMES.items()):
        places = [place for place, row in enumerate(rows) if row.part == part]
        if places:
            lengths = [rows[place].added for place in places]
            added.barh(places, lengths, color=COLOURS[number], label=name)

    added.set_title("length of what is added", fontsize=14, loc="left")
    widest = max([1.0, *(row.added for row in rows)])
    for place, row in enumerate(rows):
        if row.guess:
            added.text(1.03 * widest, place, label(row.guess, 14), va="center", fontsize=10)

    if added.get_legend_handles_labels()[0]:
        added.legend(fontsize=11, loc="lower right")

    for axes in (stream, added):
        axes.set_xscale("function", functions=(lambda x: abs(x) ** ROOT, lambda x: x ** (1 / ROOT)))
        axes.set_xlim(left=0)
        axes.tick_params(labelsize=10)
        axes.spines[["top", "right"]].set_visible(False)

    stream.set_yticks(range(len(rows)), [row.name for row in rows])
    stream.invert_yaxis()
    token = label(walk.reading.text.tokens[position], 16)
    write_title(figure, f"The whole model, token {position}: {token}")

    return figure
