"""What the lectures draw on the board, computed by the code that trains and serves: `qkv demo`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from rich.console import Console
from torch import Tensor

from qkv.insight.render.terminal_cells import HeatMap
from qkv.lab.preset_table import preset_table
from qkv.nn.attention import Causal, Fixed, Mask, Strided, Window, attend, dot, lookup
from qkv.tables import Table

# What each word means, by hand: how much it is a cat, a mouse, a chase, and how much of any thing
# at all.
MEANING = {
    "cats": (2.0, 0.0, 0.5, 0.5),
    "chase": (0.5, 0.5, 2.0, 0.0),
    "mice": (0.0, 2.0, 0.5, 0.5),
    "kediler": (3.0, 0.0, 0.0, 0.5),
    "fareleri": (0.0, 3.0, 0.0, 0.5),
    "kovalar": (0.0, 0.0, 3.0, 0.0),
    "the": (0.0, 0.0, 0.0, 1.0),
    "quick": (0.0, 1.0, 1.0, 0.0),
    "brown": (1.0, 1.0, 0.0, 1.0),
}
ENGLISH = ("cats", "chase", "mice")
TURKISH = ("kediler", "fareleri", "kovalar")


def vectors(words: Sequence[str]) -> Tensor:
    return torch.tensor([MEANING[word] for word in words])  # (T, 4)


def show(console: Console | None = None) -> None:
    console = console or Console(highlight=False)
    sections = {
        "From a hash table to attention": show_lookup,
        "Self-attention without parameters: softmax(X X^T) X": show_self_attention,
        "Attention between two languages: the word order changes": show_cross_attention,
        "Sparse masks: fewer pairs, the same equation": show_masks,
        "The published models, counted": show_presets,
    }

    for number, (title, section) in enumerate(sections.items(), start=1):
        console.rule(f"[bold]{number}. {title}")
        section(console)
        console.print()


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

    console.print("A table with the keys (1, 0), (0.8, 0.6), (0, 1) and their values 10, 20, 40.")
    console.print("We look up the query (0.9, 0.4); alike is what has a large dot product.")
    table = Table("step", "answer", "its gradient for the query")
    table.columns[1].justify = "right"

    for name, step in steps.items():
        query = torch.tensor([[0.9, 0.4]], requires_grad=True)
        answer = step(query)
        gradient = torch.autograd.grad(answer.sum(), query)[0] if answer.requires_grad else None
        slope = (
            "none: nothing to learn from"
            if gradient is None
            else ", ".join(f"{g:.2f}" for g in gradient[0])
        )
        found = bool(answer.any())  # exact match finds no such key
        table.add_row(name, f"{answer.item():.2f}" if found else "nothing", slope)

    console.print(table)


def show_self_attention(console: Console) -> None:
    console.print("A word is four numbers, by hand: how much cat, mouse, chase and thing it is.")
    console.print("The row's word looks at the column's; its weights sum to 1.")
    X = vectors(ENGLISH)
    masks: dict[str, Mask | None] = {
        "every word sees every word": None,
        "causal: no word sees a later one": Causal(),
    }

    for title, mask in masks.items():
        _, weights = attend(X, X, X, score=dot, mask=mask, need_weights=True)
        assert weights is not None
        console.print(HeatMap(weights, ENGLISH, ENGLISH, title), "")


def show_cross_attention(console: Console) -> None:
    console.print(
        "kediler fareleri kovalar: cats, mice, chase. Each Turkish word asks the English."
    )
    console.print("The verb comes last in Turkish and finds the second English word.")
    _, weights = attend(vectors(TURKISH), vectors(ENGLISH), vectors(ENGLISH), need_weights=True)
    assert weights is not None
    console.print(HeatMap(weights, TURKISH, ENGLISH))


def show_masks(console: Console) -> None:
    """Who may look at whom among 16 words, and that skipping pairs changes nothing."""
    console.print(
        "Row: the word that looks. Column: the word it may see. No word sees a later one."
    )
    masks: dict[str, Mask] = {
        "causal": Causal(),
        "& window 4": Causal() & Window(4),
        "& strided 4": Causal() & Strided(4),
        "& fixed 4": Causal() & Fixed(4),
    }

    ink = "●·" if console.encoding.startswith("utf") else "#."
    table = Table(*masks)
    table.add_row(
        *(
            "\n".join(dots(row, ink) for row in mask.materialise(16, 16)[0, 0])
            for mask in masks.values()
        )
    )

    table.add_section()
    table.add_row(
        *(f"{int(mask.materialise(16, 16).sum())} of 256 pairs" for mask in masks.values())
    )
    console.print(table)

    random = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(
        3, 1, 4, 1024, 32, dtype=torch.float64, generator=random
    ).unbind(0)
    mask = Causal() & Window(64)
    whole, _ = attend(query, key, value, mask=mask, kernel="eager")
    skipping, _ = attend(query, key, value, mask=mask, kernel="blocked")
    difference = (whole - skipping).abs().max().item()
    console.print(
        f"1,024 words, window 64: skipping what the mask rules out changes the result by {difference:.0e}.",
        soft_wrap=True,
    )


def show_presets(console: Console) -> None:
    console.print(preset_table())


def dots(row: Tensor, ink: str) -> str:
    return "".join(ink[0] if allowed else ink[1] for allowed in row.tolist())
