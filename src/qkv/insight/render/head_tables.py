"""Tables of heads for the terminal: what they do, which are missed, which grammar they know."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from qkv.insight.heads.head_ablation import Importance
from qkv.insight.heads.head_patterns import HeadPatterns
from qkv.insight.heads.head_syntax import Syntax
from qkv.tables import Table
from qkv.text.printable import printable

SHOWN = 5  # heads that are named for each role
RANKED, HARMFUL = 10, 3  # heads that are missed most, and least
MEANING = {
    "previous": "the token before",
    "first": "the first token",
    "self": "itself",
    "same": "equal tokens",
    "induction": "what followed it before",
    "next": "the token after",
}
WIDTH = 70  # at least, so that there is room for what is said below
CLEAR, HALF = (
    0.8,
    0.5,
)  # a head that gives so much of its weight to its role plays it; plays it in part


def patterns_table(found: Sequence[HeadPatterns]) -> Table:
    """A row for each role: the heads that play it most, layer.head, and how much of their weight
    they give to it.
    """
    made = Table(header_style="bold", caption_justify="left", min_width=WIDTH)
    made.caption = "layer.head, both from 0, and the part of its weight; even: of a head that looks everywhere alike"
    several = len(found) > 1

    for name in (*(["attention"] if several else []), "role", "looks at"):
        made.add_column(name)

    made.add_column("even", justify="right")
    made.add_column("the strongest heads")

    for each in found:
        for role in each.scores:
            heads = Text()
            for layer, head, score in each.strongest(role, SHOWN):
                style = "bold green" if score >= CLEAR else "green" if score >= HALF else ""
                heads.append(
                    f"{layer}.{head}\u00a0{score:.2f}", style=style
                )  # a line ends between two of them
                heads.append("   ")

            names = [each.kind, role] if several else [role]
            made.add_row(*names, MEANING[role], f"{each.even[role]:.2f}", heads)

        made.add_section()

    return made


def importance_table(found: Importance) -> Table:
    """The heads that are missed most, and those that are missed least."""
    made = Table(header_style="bold", caption_justify="left", min_width=WIDTH)
    several, ranked = len(found.change) > 1, found.ranked()
    said = "zeros" if found.how == "zero" else "its mean over the texts"
    if found.measure == "loss":
        of = f"loss, {found.unchanged:.4f} nats with all heads"
    else:
        of = "distance (1 - cosine) of a text's mean vector; the model says no words, so it has no loss"

    made.caption = f"change of the {of}; output replaced by {said}; {found.texts:,} texts; 95% intervals, paired"

    for name in (*(["attention"] if several else []), "layer.head"):
        made.add_column(name)

    for name in ("change", "from", "to"):
        made.add_column(name, justify="right")

    most, least = ranked[:RANKED], ranked[max(RANKED, len(ranked) - HARMFUL) :]

    for some in (most, least):
        for each in some:
            sure = each.low > 0 or each.high < 0
            change = Text(
                f"{each.change:+.4f}", style=("red" if each.change > 0 else "blue") if sure else ""
            )
            ends = ["" if end != end else f"{end:+.4f}" for end in (each.low, each.high)]
            made.add_row(
                *([each.kind] if several else []), f"{each.layer}.{each.head}", change, *ends
            )

        made.add_section()

    return made


def syntax_table(found: Syntax) -> Table:
    """A row for each relation: its best head against the best fixed offset."""
    made = Table(header_style="bold", caption_justify="left", min_width=WIDTH)
    how = (
        "chosen on one half, measured on the other"
        if found.halves
        else "chosen where they are measured"
    )
    made.caption = f"{found.sentences:,} sentences; head and offset {how}; 95% intervals; green: surely above the offset"
    made.caption += "; →: a word looks at what it hangs on, ←: that looks at the word"
    if found.left_out:
        made.caption += f"; {found.left_out:,} longer than the context were left out"

    made.add_column("relation", no_wrap=True)

    for name in ("words", "head", "finds, %", "from", "to", "offset", "finds, %", "gain"):
        made.add_column(name, justify="right")

    for each in found.relations:
        ends = ["" if end != end else f"{100 * end:.1f}" for end in (each.low, each.high)]
        gain = 100 * (each.accuracy - each.baseline)
        arrow = "→" if each.direction == "to its head" else "←"
        style = "green" if each.gain_low > 0 else "red" if each.gain_high < 0 else ""
        made.add_row(
            Text(printable(each.name)), f"{each.words:,}", f"{each.layer}.{each.head} {arrow}",
            Text(f"{100 * each.accuracy:.1f}", style=style), *ends, f"{each.offset:+d}", f"{100 * each.baseline:.1f}",
            Text(f"{gain:+.1f}", style=style),
        )  # fmt: skip

    return made
