"""Tables of circuits for the terminal: heads, pairs of heads, pairs of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qkv.insight.circuits.circuit_scores import CircuitScores
from qkv.insight.circuits.composition_scores import Composition
from qkv.insight.circuits.token_circuits import TokenPair
from qkv.insight.render.head_tables import head_table, numbers
from qkv.tables import Table
from qkv.text.printable import printable

MEANINGS = {
    "copying": "hands on what it attends to (1), or its opposite (-1)",
    "matching": "attends to what is like the query (1), or unlike it (-1)",
}


def eigenvalue_table(scores: CircuitScores, count: int) -> Table:
    """The heads with the largest eigenvalue scores."""
    table = head_table(False, "circuit", "the head ...", "strongest heads")
    table.caption = "layer.head, both from 0, and sum(λ) / sum(|λ|) of W_OV or W_QK"
    for name, meaning in MEANINGS.items():
        heads = []
        for layer, head, score in scores.strongest(name, count):
            heads.append(f"{layer}.{head}\u00a0{score:+.2f}")  # a line ends between two heads

        table.add_row(name, meaning, "   ".join(heads))

    return table


def composition_table(found: dict[str, Sequence[Composition]], random: float) -> Table:
    """The strongest pairs of heads through queries, keys and values."""
    table = head_table(False, "through", "writes", "reads", numbers("score"))
    table.caption = f"layer.head, both from 0; unrelated heads have about {random:.3f}"
    for name, pairs in found.items():
        for pair in pairs:
            writer = f"{pair.writer[0]}.{pair.writer[1]}"
            reader = f"{pair.reader[0]}.{pair.reader[1]}"
            table.add_row(name, writer, reader, f"{pair.score:.3f}")

        table.add_section()

    return table


def token_table(
    qk: Sequence[TokenPair], ov: Sequence[TokenPair], name: Callable[[int], str]
) -> Table:
    """The strongest pairs of tokens of both circuits, side by side."""
    headers = ("query", "looks at", numbers("score"), "attending to", "raises", numbers("by"))
    table = head_table(False, *headers)
    table.caption = (
        "QK (left) and OV (right) of embedded tokens alone; the logits are before the scale of the "
        "final norm"
    )
    for row in range(max(len(qk), len(ov))):
        cells = []
        for pairs in (qk, ov):
            if row < len(pairs):
                pair = pairs[row]
                texts = [printable(name(token)) for token in (pair.first, pair.second)]
                cells += [*texts, f"{pair.value:+.2f}"]
            else:
                cells += ["", "", ""]

        table.add_row(*cells)

    return table
