"""What the lectures draw on the board, computed by the code that trains and serves: `qkv demo`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from qkv.models import PRESETS, count_parameters
from qkv.nn.attention import Causal, Fixed, Mask, Strided, Window, attend, dot, lookup

# What each word means, by hand: how much it is a cat, a mouse, a chase, and how much of any thing at all.
MEANING = {
    "cats": (2.0, 0.0, 0.5, 0.5),
    "chase": (0.5, 0.5, 2.0, 0.0),
    "mice": (0.0, 2.0, 0.5, 0.5),
    "kediler": (3.0, 0.0, 0.0, 0.5),
    "fareleri": (0.0, 3.0, 0.0, 0.5),
    "kovalar": (0.0, 0.0, 3.0, 0.0),
}
ENGLISH = ("cats", "chase", "mice")
TURKISH = ("kediler", "fareleri", "kovalar")


def vectors(words: Sequence[str]) -> Tensor:
    return torch.tensor([MEANING[word] for word in words])  # (T, 4)


def show(console: Console | None = None) -> None:
    console = console or Console()
    console.rule("[bold]1. From a hash table to attention")
    show_lookup(console)
    console.rule("[bold]2. Self-attention without parameters: softmax(X Xᵀ) X")
    show_self_attention(console)
    console.rule("[bold]3. Attention between two languages: the word order changes")
    show_cross_attention(console)
    console.rule("[bold]4. Sparse masks: fewer pairs, the same equation")
    show_masks(console)
    console.rule("[bold]5. The published models, counted")
    console.print(preset_table())


def show_lookup(console: Console) -> None:
    """The same question to the same table, in five ways."""
    key = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    value = torch.tensor([[10.0], [20.0], [40.0]])
    steps: dict[str, Callable[[Tensor], Tensor]] = {
        "exact match": lambda q: lookup.exact(q, key, value),
        "nearest match": lambda q: lookup.nearest(q, key, value),
        "mean of the top 2": lambda q: lookup.mean_of_top(q, key, value, 2),
        "weighted mean of the top 2": lambda q: lookup.weighted_mean_of_top(q, key, value, 2),
        "softmax over all: attention": lambda q: lookup.softmax(q, key, value),
    }
    table = Table(
        "step", "answer", "its gradient for the query", caption="keys (1, 0) (0.8, 0.6) (0, 1), values 10 20 40"
    )
    table.title = "looking up the query (0.9, 0.4)"
    for name, step in steps.items():
        query = torch.tensor([[0.9, 0.4]], requires_grad=True)
        answer = step(query)
        gradient = torch.autograd.grad(answer.sum(), query)[0] if answer.requires_grad else None
        slope = "none: nothing to learn from" if gradient is None else ", ".join(f"{g:.2f}" for g in gradient[0])
        table.add_row(name, f"{answer.item():.2f}", slope)
    console.print(table)


def show_self_attention(console: Console) -> None:
    X = vectors(ENGLISH)
    masks: dict[str, Mask | None] = {"every word sees every word": None, "causal: no word sees a later one": Causal()}
    for title, mask in masks.items():
        _, weights = attend(X, X, X, score=dot, mask=mask, need_weights=True)
        assert weights is not None
        console.print(matrix(title, ENGLISH, ENGLISH, weights))


def show_cross_attention(console: Console) -> None:
    _, weights = attend(vectors(TURKISH), vectors(ENGLISH), vectors(ENGLISH), need_weights=True)
    assert weights is not None
    console.print(matrix("kediler fareleri kovalar asks cats chase mice", TURKISH, ENGLISH, weights))


def show_masks(console: Console) -> None:
    """Who may look at whom among 16 words, and that skipping pairs changes nothing."""
    masks: dict[str, Mask] = {
        "causal": Causal(),
        "window 4": Causal() & Window(4),
        "strided 4": Causal() & Strided(4),
        "fixed 4": Causal() & Fixed(4),
    }
    table = Table(*masks)
    table.add_row(*("\n".join(dots(row) for row in mask.materialise(16, 16)[0, 0]) for mask in masks.values()))
    table.add_section()
    table.add_row(*(f"{int(mask.materialise(16, 16).sum())} of 256 pairs" for mask in masks.values()))
    console.print(table)

    query, key, value = torch.randn(3, 1, 4, 1024, 32, dtype=torch.float64).unbind(0)
    mask = Causal() & Window(64)
    whole, _ = attend(query, key, value, mask=mask, kernel="eager")
    skipping, _ = attend(query, key, value, mask=mask, kernel="blocked")
    difference = (whole - skipping).abs().max().item()
    console.print(
        f"1,024 words, window 64: skipping what the mask rules out changes the result by at most {difference:.0e}\n"
    )


def dots(row: Tensor) -> str:
    return "".join("●" if allowed else "·" for allowed in row.tolist())


def matrix(title: str, rows: Sequence[str], columns: Sequence[str], weights: Tensor) -> Table:
    """Attention as a table: who looks (down) at whom (across); the brighter, the more."""
    table = Table("", *columns, title=title)
    for name, row in zip(rows, weights.tolist(), strict=True):
        table.add_row(name, *(cell(weight) for weight in row))
    return table


def cell(weight: float) -> Text:
    shade = round(40 + 200 * weight)
    ink = "black" if weight > 0.45 else "white"
    return Text(f" {weight:.2f} ", style=f"{ink} on rgb({shade // 2},{shade // 2 + 20},{shade})")


def preset_table() -> Table:
    table = Table("preset", "parameters", "published", "source")
    for column in table.columns[1:3]:
        column.justify = "right"
    for name, preset in PRESETS.items():
        published = "" if preset.published is None else f"{preset.published:,.0f} M"
        table.add_row(name, f"{count_parameters(preset.config) / 1e6:,.1f} M", published, preset.source)
    return table
