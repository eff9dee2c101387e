"""Figures of the lectures that no single model gives: tasks, decoder steps, paths."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from matplotlib.figure import Figure

from qkv.insight.render.diagrams.diagram import Box, Diagram, Kind
from qkv.insight.render.figures.figure_style import COLOURS, INK, PALE

# The slide's own weights: each Turkish word attends to the English ones.
ENGLISH = ("cats", "chase", "mice")
TURKISH = ("kediler", "fareleri", "kovalar")
SLIDE_WEIGHTS = ((0.91, 0.04, 0.05), (0.03, 0.10, 0.87), (0.09, 0.88, 0.03))

TASKS = {
    "classify": (("[start] text [extract]",), "a class"),
    "pair": (("[start] text a [delimiter] text b [extract]",), "a class"),
    "similarity": (
        (
            "[start] text a [delimiter] text b [extract]",
            "[start] text b [delimiter] text a [extract]",
        ),
        "a class or a number",
    ),
    "choice": (
        (
            "[start] context [delimiter] ending 1 [extract]",
            "[start] context [delimiter] ending n [extract]",
        ),
        "one of n",
    ),
    "tag": (("[start] word ... word [extract]",), "a class for each word"),
    "regress": (("[start] text [extract]",), "a number"),
}
"""The rows of tokens that each task makes of an example, and its answer (models/heads.py)."""


def draw_tasks() -> Figure:
    """How the texts of each fine-tuning task become rows of tokens for one pre-trained model.

    Example:
        >>> draw_tasks().get_size_inches().tolist()
        [10.8, 6.7]
    """
    below = "One pre-trained model; a task changes the rows of tokens and the output layer"
    sheet = Diagram(10.8, 6.7, "Fine-tuning tasks", below)
    y = 5.45
    for task, (rows, answer) in TASKS.items():
        middle = y - 0.27 * (len(rows) - 1)
        sheet.text(0.25, middle, task, size=11, weight="bold", ha="left")
        tops = draw_rows(sheet, y, rows)
        head = sheet.box(8.25, middle, "linear", kind="output", wide=0.9, high=0.36)
        end = (head.left[0], middle)
        for box in tops:
            sheet.arrow(box.right, (end[0], end[1]))

        if task == "similarity":
            sheet.text(7.55, middle - 0.33, "sum", size=8, color=PALE)

        sheet.arrow(head.right, (8.98, middle))
        sheet.text(9.05, middle, answer, size=9.5, ha="left")
        y -= 0.54 * len(rows) + 0.22

    return sheet.figure


def draw_rows(sheet: Diagram, y: float, rows: Sequence[str]) -> list[Box]:
    """The rows of one task, each read by the model; returns the boxes of the model."""
    models = []
    for row in rows:
        tokens = sheet.box(3.35, y, row, wide=3.7, high=0.36, size=8.5)
        model = sheet.box(6.25, y, "Transformer", kind="attention", wide=1.4, high=0.36)
        sheet.arrow(tokens.right, model.left)
        models.append(model)
        y -= 0.54

    return models


def draw_decoder_steps() -> Figure:
    """An RNN with attention that says three words: one panel for each step.

    Example:
        >>> draw_decoder_steps().get_size_inches().tolist()
        [12.0, 5.2]
    """
    below = (
        "c_i = sum over j of a_ij h_j; lines are as wide as the weights, with the slide's numbers"
    )
    sheet = Diagram(12.0, 5.2, "A decoder with attention, step by step", below)
    for step, weights in enumerate(SLIDE_WEIGHTS):
        draw_step(sheet, 0.45 + 3.9 * step, step, weights)

    return sheet.figure


def draw_step(sheet: Diagram, left: float, step: int, weights: Sequence[float]) -> None:
    """One step: the weights over the encoder's states, the context vector, the next state."""
    number = step + 1
    sheet.text(left, 4.15, f"step {number}", size=11, weight="bold", ha="left")
    before = sheet.box(left + 0.45, 2.85, f"s_{step}", kind="recurrent", wide=0.75)
    after = sheet.box(left + 2.6, 2.85, f"s_{number}", kind="recurrent", wide=0.75)
    context = sheet.box(left + 1.6, 1.95, f"c_{number}", kind="attention", wide=0.75)
    word = sheet.box(left + 2.6, 3.65, TURKISH[step], kind="output", wide=1.1, high=0.36)
    read = "(start)" if step == 0 else TURKISH[step - 1]
    sheet.text(after.x + 0.1, 2.5, f"reads {read}", size=8.5, color=PALE, ha="left")
    sheet.arrow(before.right, after.left)
    sheet.arrow(before.bottom, (context.left[0], context.y), linestyle="--")
    sheet.text(before.x + 0.12, 2.12, "query", size=8.5, color=PALE, ha="right")
    sheet.arrow(context.top, (after.left[0], after.y - 0.12))
    sheet.arrow(after.top, word.bottom)

    last: Box | None = None
    for j, (english, weight) in enumerate(zip(ENGLISH, weights, strict=True)):
        x = left + 0.5 + 1.1 * j
        state = sheet.box(x, 0.85, f"h_{j + 1}", kind="recurrent", wide=0.75, high=0.36)
        sheet.text(x, 0.5, english, size=9.5)
        sheet.line(state.top, context.bottom, color=COLOURS[1], linewidth=0.4 + 6 * weight)
        align = ("right", "left", "left")[j]
        sheet.text(x + (-0.08, 0.1, 0.02)[j], 1.24, f"{weight:.2f}", size=9, ha=align)
        if last is not None:
            sheet.arrow(last.right, state.left)

        last = state


def draw_paths() -> Figure:
    """The path between the first and the last token: through an RNN, and through attention.

    Example:
        >>> draw_paths().get_size_inches().tolist()
        [11.0, 5.0]
    """
    below = (
        "n tokens of width d; the path of information from the first token to the last in orange"
    )
    sheet = Diagram(11.0, 5.0, "RNN and self-attention", below)
    draw_chain(sheet, 0.7)
    draw_attention_pairs(sheet, 6.1)
    return sheet.figure


def draw_chain(sheet: Diagram, left: float) -> None:
    """Six recurrent states in a row."""
    sheet.text(left - 0.3, 3.75, "RNN", size=12, weight="bold", ha="left")
    states, tokens = draw_layers(sheet, left, "h", "recurrent")
    for token, state in zip(tokens, states, strict=True):
        sheet.arrow(token.top, state.bottom)

    for before, after in pairwise(states):
        sheet.arrow(before.right, after.left, color=COLOURS[1], linewidth=2.4)

    write_costs(sheet, left, "O(n d^2)", "n", "n - 1")


def draw_attention_pairs(sheet: Diagram, left: float) -> None:
    """Six outputs, each of which reads all six inputs."""
    sheet.text(left - 0.3, 3.75, "Self-attention", size=12, weight="bold", ha="left")
    outputs, tokens = draw_layers(sheet, left, "y", "attention")
    for token in tokens:
        for output in outputs:
            sheet.line(token.top, output.bottom, color="#BBBBBB", linewidth=0.8)

    start = tokens[0].top
    sheet.arrow(start, outputs[-1].bottom, color=COLOURS[1], linewidth=2.4)
    write_costs(sheet, left, "O(n^2 d)", "1", "1")


def draw_layers(
    sheet: Diagram, left: float, letter: str, kind: Kind
) -> tuple[list[Box], list[Box]]:
    """Six boxes above six tokens."""
    above = []
    tokens = []
    for number in range(6):
        x = left + 0.8 * number
        name = f"{letter}_{number + 1}"
        above.append(sheet.box(x, 3.1, name, kind=kind, wide=0.52))
        tokens.append(sheet.box(x, 1.75, f"x_{number + 1}", wide=0.52))

    return above, tokens


def write_costs(sheet: Diagram, left: float, operations: str, steps: str, path: str) -> None:
    """What a layer costs."""
    lines = {
        "operations of a layer": operations,
        "steps that wait for each other": steps,
        "longest path between two tokens": path,
    }
    y = 1.1
    for name, value in lines.items():
        sheet.text(left - 0.25, y, name, size=9.5, ha="left", color=PALE)
        sheet.text(left + 4.2, y, value, size=10.5, ha="right", color=INK)
        y -= 0.29
