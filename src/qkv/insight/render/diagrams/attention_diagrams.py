"""Diagrams of scaled dot-product attention and of multi-head attention, as the lectures draw them.

The shapes are letters; the sizes of a model are in the diagram of its architecture.
"""

from __future__ import annotations

from matplotlib.figure import Figure

from qkv.insight.render.diagrams.diagram import Box, Diagram, Kind
from qkv.insight.render.figures.figure_style import PALE

LETTERS = "B sequences, H heads, T queries, S keys, D numbers in a head, E in a token"


def draw_attention() -> Figure:
    """Scaled dot-product attention: softmax(Q K^T / sqrt(D)) V, step by step.

    Example:
        >>> draw_attention().get_size_inches().tolist()
        [6.4, 6.6]
    """
    sheet = Diagram(6.4, 6.6, "Scaled dot-product attention", LETTERS)
    query = data_box(sheet, 1.2, "query Q", "(B, H, T, D)")
    key = data_box(sheet, 2.7, "key K", "(B, H, S, D)")
    value = data_box(sheet, 4.4, "value V", "(B, H, S, D)")

    product = step_box(sheet, 1.5, "Q K^T", "dot products: every query, every key")
    scale = step_box(sheet, 2.35, "times 1 / sqrt(D)", "keeps the inputs of softmax small")
    mask = step_box(sheet, 3.2, "mask (optional)", "minus infinity where attention is forbidden")
    softmax = step_box(sheet, 4.05, "softmax", "over the keys: every row sums to 1")
    total = sheet.box(
        3.17, 4.9, "weights V", "a weighted sum of values", kind="attention", wide=3.7
    )

    sheet.arrow(query.top, (1.2, product.bottom[1]))
    sheet.arrow(key.top, (2.7, product.bottom[1]))
    for low, high, shape in (
        (product, scale, ""),
        (scale, mask, ""),
        (mask, softmax, "scores (B, H, T, S)"),
        (softmax, total, "weights (B, H, T, S)"),
    ):
        sheet.arrow(low.top, (low.x, high.bottom[1]))
        sheet.text(low.x + 0.1, low.top[1] + 0.21, shape, size=8, color=PALE, ha="left")

    sheet.arrow(value.top, (4.4, total.bottom[1]))
    sheet.arrow(total.top, (total.x, 5.5))
    sheet.text(total.x, 5.62, "output (B, H, T, D)", size=9)

    return sheet.figure


def data_box(sheet: Diagram, x: float, title: str, shape: str) -> Box:
    """An input at the bottom."""
    return sheet.box(x, 0.6, title, shape, wide=1.3, high=0.46)


def step_box(sheet: Diagram, y: float, title: str, detail: str) -> Box:
    """A step on scores; `eager` in nn/attention/attend.py has one line for each."""
    return sheet.box(1.95, y, title, detail, kind="operation", wide=2.9, high=0.44)


def draw_multi_head() -> Figure:
    """Multi-head attention: Concat(head_1 ... head_H) W^O.

    Example:
        >>> draw_multi_head().get_size_inches().tolist()
        [7.0, 6.0]
    """
    sheet = Diagram(7.0, 6.0, "Multi-head attention", LETTERS)
    middle = 3.3
    columns = {"query": 1.3, "key": 3.3, "value": 5.3}
    heads = sheet.box(
        middle,
        2.6,
        "scaled dot-product attention",
        "H heads, each for itself",
        kind="attention",
        wide=5.4,
        high=0.5,
        copies=3,
    )
    for name, x in columns.items():
        source = sheet.box(x, 0.6, input_title(name), input_shape(name), wide=1.6, high=0.46)
        detail = "(B, H, T, D)" if name == "query" else "(B, H, S, D)"
        linear = linear_box(sheet, x, f"linear: {name}", detail)
        sheet.arrow(source.top, linear.bottom)
        sheet.arrow((x, linear.top[1] + 0.14), (x, heads.bottom[1]))

    concat = sheet.box(middle, 3.6, "concatenate heads", "(B, T, H D)", kind="operation", wide=2.6)
    output = sheet.box(
        middle, 4.35, "linear: output", "W^O: H D x E", kind="feed_forward", wide=2.6
    )
    sheet.arrow((middle, heads.top[1] + 0.14), concat.bottom)
    sheet.text(middle + 0.1, 3.19, "(B, H, T, D)", size=8, color=PALE, ha="left")
    sheet.arrow(concat.top, output.bottom)
    sheet.arrow(output.top, (middle, 4.9))
    sheet.text(middle, 5.02, "output (B, T, E)", size=9)

    return sheet.figure


def linear_box(sheet: Diagram, x: float, title: str, detail: str) -> Box:
    """A projection with one matrix per head."""
    kind: Kind = "feed_forward"
    return sheet.box(x, 1.55, title, detail, kind=kind, wide=1.5, high=0.46, copies=3)


def input_title(name: str) -> str:
    """What is projected: in self-attention all three are the same vectors."""
    return "x" if name == "query" else "x, or the source"


def input_shape(name: str) -> str:
    return "(B, T, E)" if name == "query" else "(B, S, E)"
