"""How heads came to be: their pattern scores over a training, below its loss."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from qkv.insight.heads.head_history import HeadHistory
from qkv.insight.render.figures.figure_style import COLOURS, PALE, plain_ticks
from qkv.insight.render.figures.head_figures import sheet, write_texts

LossCurve = tuple[Sequence[float], Sequence[float]]
"""Steps, and the loss at each."""
WORTH_MARKING = 0.15  # growth of the score of a head that has learned something
HEADS = 3  # lines for induction; other patterns have one


def history_figure(
    histories: Sequence[HeadHistory], losses: LossCurve | None, title: str
) -> Figure:
    """Two panels one above the other: losses, and the strongest heads of each pattern."""
    rows = 1 + len(histories)
    figure, grid = sheet(8.6, 2.9 * rows + 1.0, [1], rows)
    first = figure.add_subplot(grid[0, 0])
    draw_losses(first, histories[0], losses)

    for number, history in enumerate(histories, start=1):
        axes = figure.add_subplot(grid[number, 0], sharex=first)
        draw_scores(axes, history)
        for panel in (first, axes):
            mark_bump(panel, history)

        axes.set_xlabel("step")

    write_texts(
        figure,
        title,
        "share of a head's attention weight that follows the pattern, of the heads that follow it "
        "most at the end; the grey band: where induction grows most between two checkpoints",
    )

    return figure


def draw_losses(axes: Axes, history: HeadHistory, losses: LossCurve | None) -> None:
    """The loss of the run, and the loss on random tokens and on their repetition."""
    if losses is not None:
        axes.plot(*losses, color=PALE, linewidth=1.2, label="loss of the run")

    if history.repeated is not None:
        names = ("random tokens", "their repetition")
        for column, name in enumerate(names):
            values = history.repeated[:, column].tolist()
            colour = COLOURS[0 if column else 4]
            axes.plot(history.steps, values, "o-", markersize=3, color=colour, label=name)

    axes.set_ylabel("loss, nats")
    if axes.lines:
        axes.legend(fontsize=9)


def draw_scores(axes: Axes, history: HeadHistory) -> None:
    """A line for each of the strongest heads of a pattern; induction is drawn boldest."""
    for number, (pattern, scores) in enumerate(history.scores.items()):
        bold = pattern == "induction"
        colour = COLOURS[0] if bold else COLOURS[1 + number % (len(COLOURS) - 2)]
        heads = history.strongest(pattern, HEADS if bold else 1)
        for rank, (layer, head) in enumerate(heads):
            name = f"{pattern} {layer}.{head}"
            values = scores[:, layer, head].tolist()
            width = 2.6 if bold else 1.3
            axes.plot(
                history.steps,
                values,
                "o-",
                color=colour,
                alpha=1 - 0.3 * rank,
                linewidth=width,
                markersize=3,
                label=name,
            )

    axes.set_ylim(-0.02, 1.02)
    axes.set_ylabel("score" if history.kind == "self" else f"score, {history.kind}")
    plain_ticks(axes.xaxis, 8, integer=True)
    axes.legend(fontsize=8, ncols=2)


def mark_bump(axes: Axes, history: HeadHistory) -> None:
    """A band between the two checkpoints where induction grows most."""
    if "induction" not in history.scores:
        return

    ((layer, head),) = history.strongest("induction", 1)
    scores = history.scores["induction"][:, layer, head]
    steps = history.steepest("induction")
    if steps is not None and float(scores.max() - scores.min()) >= WORTH_MARKING:
        axes.axvspan(*steps, color="#DDDDDD", alpha=0.6, linewidth=0, zorder=0)
