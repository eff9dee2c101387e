"""Tables of attention heads for the terminal: patterns, ablation and syntax."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from qkv.insight.heads.head_ablation import Head, HeadImportance
from qkv.insight.heads.head_history import HeadHistory
from qkv.insight.heads.head_patterns import HeadPatterns, meaning_of
from qkv.insight.heads.head_syntax import RelationScore, SyntaxResult
from qkv.tables import Column, Table
from qkv.text.printable import printable

SHOWN = 5  # heads that are named for each pattern
RANKED = 10  # heads with the largest change
HARMFUL = 3  # heads with the smallest change
HISTORY_STEPS = 6  # checkpoints that have a column
WIDTH = 70  # at least, so that the caption has room
CLEAR = 0.8  # least share of the weight of a head that clearly follows a pattern ...
HALF = 0.5  # ... and of one that follows it in part


def head_table(several: bool, *columns: str | Column) -> Table:
    """An empty table; with several kinds of attention their column comes first."""
    first = ["attention"] * several
    return Table(*first, *columns, header_style="bold", caption_justify="left", min_width=WIDTH)


def numbers(name: str) -> Column:
    return Column(name, justify="right")


# Patterns


def patterns_table(patterns: Sequence[HeadPatterns]) -> Table:
    """A row for each pattern: the strongest heads as layer.head, and the share of their weight."""
    several = len(patterns) > 1
    table = head_table(several, "pattern", "attends to", numbers("uniform"), "strongest heads")
    table.caption = (
        "layer.head, both from 0, and the share of its weight; "
        "uniform: the score of a head that attends equally everywhere"
    )
    for kind in patterns:
        for name in kind.scores:
            cells = (name, meaning_of(name), f"{kind.uniform[name]:.2f}")
            table.add_row(*[kind.kind] * several, *cells, strongest_heads(kind, name))

        table.add_section()

    return table


def strongest_heads(patterns: HeadPatterns, name: str) -> Text:
    """The strongest heads of a pattern with their scores; clear ones are green."""
    heads = Text()
    for layer, head, score in patterns.strongest(name, SHOWN):
        style = ""
        if score >= CLEAR:
            style = "bold green"
        elif score >= HALF:
            style = "green"

        # A no-break space: a line ends between two heads.
        heads.append(f"{layer}.{head}\u00a0{score:.2f}", style=style)
        heads.append("   ")

    return heads


# Patterns over a training


def history_table(histories: Sequence[HeadHistory]) -> Table:
    """A row for each pattern: the score, at some steps, of the head that follows it at the end."""
    several = len(histories) > 1
    steps = histories[0].steps
    chosen = evenly(len(steps), HISTORY_STEPS)
    headers = [numbers(f"step {steps[number]:,}") for number in chosen]
    table = head_table(several, "pattern", "head", *headers)
    table.caption = (
        "the head (layer.head) with the largest score at the last checkpoint, and the share of its "
        f"weight at {len(chosen)} of {len(steps)} checkpoints"
    )

    for history in histories:
        for pattern, scores in history.scores.items():
            ((layer, head),) = history.strongest(pattern, 1)
            cells = [f"{scores[number, layer, head]:.2f}" for number in chosen]
            table.add_row(*[history.kind] * several, pattern, f"{layer}.{head}", *cells)

        table.add_section()

    if histories[0].repeated is not None:
        for column, name in enumerate(("loss on random tokens", "... on their repetition")):
            cells = [f"{histories[0].repeated[number, column]:.2f}" for number in chosen]
            table.add_row(*[""] * several, name, "", *cells)

    return table


def evenly(count: int, most: int) -> list[int]:
    """At most `most` of `count` numbers from 0, with the first and the last, evenly spaced."""
    if count <= most:
        return list(range(count))

    return [round(number * (count - 1) / (most - 1)) for number in range(most)]


# Ablation


def importance_table(importance: HeadImportance) -> Table:
    """The heads whose ablation changes the loss most, and those with the smallest change."""
    several = len(importance.change) > 1
    change = numbers(f"change in {importance.measure}")
    table = head_table(several, "layer.head", change, numbers("95% interval"))
    table.caption = f"{importance.summary}; paired intervals"

    ranked = importance.ranked()
    most = ranked[:RANKED]
    least = ranked[max(RANKED, len(ranked) - HARMFUL) :]
    for heads in (most, least):
        for head in heads:
            cells = (change_cell(head), interval(head.low, head.high, "+.4f"))
            table.add_row(*[head.kind] * several, f"{head.layer}.{head.head}", *cells)

        table.add_section()

    return table


def change_cell(head: Head) -> Text:
    """The change in colour where its interval excludes 0: red if larger, blue if smaller."""
    style = ""
    if head.low > 0 or head.high < 0:
        style = "red" if head.change > 0 else "blue"

    return Text(f"{head.change:+.4f}", style=style)


def interval(low: float, high: float, form: str) -> Text:
    """An interval in brackets; nothing if its ends are NaN."""
    if low != low or high != high:
        return Text("")

    return Text(f"[{low:{form}}, {high:{form}}]")


# Syntax


def syntax_table(syntax: SyntaxResult) -> Table:
    """A row for each relation: its best head compared with the best fixed offset."""
    names = ("words", "head", "accuracy, %", "95% interval", "offset", "accuracy, %", "gain")
    table = head_table(False, Column("relation", no_wrap=True), *map(numbers, names))
    table.caption = (
        f"{syntax.summary}; green: significantly above the offset; "
        "→: a word attends to its syntactic head, ←: the syntactic head attends to the word"
    )
    for relation in syntax.relations:
        table.add_row(*relation_cells(relation))

    return table


def relation_cells(relation: RelationScore) -> list[str | Text]:
    style = ""
    if relation.gain_low > 0:
        style = "green"
    elif relation.gain_high < 0:
        style = "red"

    gain = 100 * (relation.accuracy - relation.baseline)
    return [
        Text(printable(relation.name)),
        f"{relation.words:,}",
        relation.named_head,
        Text(f"{100 * relation.accuracy:.1f}", style=style),
        interval(100 * relation.low, 100 * relation.high, ".1f"),
        f"{relation.offset:+d}",
        f"{100 * relation.baseline:.1f}",
        Text(f"{gain:+.1f}", style=style),
    ]
