"""The walk through a whole model in the terminal: a line for each step of one token."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from qkv.insight.inspect.look_data import LookData
from qkv.insight.render.views import ViewChoice, label
from qkv.insight.render.walk.model_walk_rows import followed_token, walk_rows
from qkv.tables import Table


def show_model(look: LookData, console: Console, choice: ViewChoice) -> None:
    """The length of the residual stream, what each part adds, and the likeliest token."""
    walk, position = followed_token(look, choice)
    token = label(walk.reading.text.tokens[position], 16)
    title = f"The whole model, token {position}: {token}"
    console.print(Text(title, style="bold"))
    below = "Lengths of the stream and of what is added, their cosine, the likeliest token."
    console.print(Text(below, style="dim"))

    table = Table.grid(padding=(0, 2))
    for justify in ("left", "right", "right", "right", "left"):
        table.add_column(justify=justify, no_wrap=True)

    table.add_row("step", "stream", "added", "cosine", "likeliest", style="bold")
    for row in walk_rows(walk, position):
        added = ["", ""]
        if row.part is not None:
            added = [f"{row.added:.3g}", f"{row.cosine:.2f}"]

        table.add_row(row.name, f"{row.stream:.3g}", *added, Text(row.guess))

    if walk.next is not None:
        best = walk.next[position][0]
        guess = Text(label(best.text))
        table.add_row("logit", "", f"{best.logit:.3g}", "", guess)
        table.add_row("softmax", "", f"{best.probability:.1%}", "", guess)

    console.print(table)
