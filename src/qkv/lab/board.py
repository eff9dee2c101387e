"""The lectures' tables, computed by the code that trains and serves: `qkv demo --board-only`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from rich.console import Console
from torch import Tensor

from qkv.insight.render.terminal_cells import HeatMap
from qkv.lab.preset_table import preset_table
from qkv.nn.attention import Causal, Fixed, Mask, Strided, Window, attend, dot, lookup
from qkv.tables import Table

# Hand-made embeddings: how much a word means cat, mouse, chase, and a thing in general.
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


def vectors(tokens: Sequence[str]) -> Tensor:
    """The hand-made embeddings of words (T, 4)."""
    return torch.tensor([MEANING[token] for token in tokens])


def show_board(console: Console | None = None) -> None:
    """Print all tables."""
    console = console or Console(highlight=False)
    sections: dict[str, Callable[[Console], None]] = {
        "From a hash table to attention": show_lookup,
        "Self-attention without parameters: softmax(X X^T) X": show_self_attention,
        "Attention between two languages: the word order changes": show_cross_attention,
        "Sparse masks: fewer pairs, the same equation": show_masks,
        "The published models and their sizes": lambda console: console.print(preset_table()),
    }

    for number, (title, section) in enumerate(sections.items(), start=1):
        console.rule(f"[bold]{number}. {title}")
        section(console)
        console.print()


def show_lookup(console: Console) -> None:
    """One query to one table, looked up in five ways."""
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
    console.print("The query is (0.9, 0.4); the similarity of query and key is their dot product.")
    table = Table("step", "result", "its gradient for the query")
    table.columns[1].justify = "right"

    for name, step in steps.items():
        query = torch.tensor([[0.9, 0.4]], requires_grad=True)
        result = step(query)
        shown = "nothing"  # exact match has no such key
        if bool(result.any()):
            shown = f"{result.item():.2f}"

        table.add_row(name, shown, gradient_text(result, query))

    console.print(table)


def gradient_text(result: Tensor, query: Tensor) -> str:
    """The gradient of the result for the query, if there is one."""
    if not result.requires_grad:
        return "none: nothing to learn from"

    (gradient,) = torch.autograd.grad(result.sum(), query)
    return ", ".join(f"{number:.2f}" for number in gradient[0])


def show_self_attention(console: Console) -> None:
    """The weights of self-attention with and without a causal mask."""
    console.print("Each word is a vector of four numbers, made by hand: cat, mouse, chase, thing.")
    console.print("Rows are queries, columns are keys; the weights of a row sum to 1.")
    X = vectors(ENGLISH)
    masks: dict[str, Mask | None] = {
        "no mask: every word attends to every word": None,
        "causal mask: no word attends to a later one": Causal(),
    }

    for title, mask in masks.items():
        _, weights = attend(X, X, X, score=dot, mask=mask, need_weights=True)
        assert weights is not None
        console.print(HeatMap(weights, ENGLISH, ENGLISH, title), "")


def show_cross_attention(console: Console) -> None:
    """The weights of cross-attention from Turkish to English."""
    console.print(
        "kediler fareleri kovalar: cats, mice, chase. Turkish words are queries, English are keys."
    )
    console.print("The verb comes last in Turkish and attends to the second English word.")
    _, weights = attend(vectors(TURKISH), vectors(ENGLISH), vectors(ENGLISH), need_weights=True)
    assert weights is not None
    console.print(HeatMap(weights, TURKISH, ENGLISH))


def show_masks(console: Console) -> None:
    """Masks over 16 tokens; computing only the allowed pairs gives the same result."""
    console.print("Rows are queries, columns are keys. No token attends to a later one.")
    masks: dict[str, Mask] = {
        "causal": Causal(),
        "& window 4": Causal() & Window(4),
        "& strided 4": Causal() & Strided(4),
        "& fixed 4": Causal() & Fixed(4),
    }

    marks = "●·" if console.encoding.startswith("utf") else "#."
    pictures = []
    counts = []
    for mask in masks.values():
        allowed = mask.materialise(16, 16)[0, 0]
        pictures.append("\n".join(dots(row, marks) for row in allowed))
        counts.append(f"{int(allowed.sum())} of 256 pairs")

    table = Table(*masks)
    table.add_row(*pictures)
    table.add_section()
    table.add_row(*counts)
    console.print(table)

    difference = block_sparse_error()
    console.print(
        "1,024 tokens, window 64: skipping the pairs that the mask excludes changes the result by "
        f"{difference:.0e}.",
        soft_wrap=True,
    )


def block_sparse_error() -> float:
    """Largest difference between eager attention and the kernel that skips masked blocks."""
    random = torch.Generator().manual_seed(0)
    inputs = torch.randn(3, 1, 4, 1024, 32, dtype=torch.float64, generator=random)
    query, key, value = inputs.unbind(0)
    mask = Causal() & Window(64)
    whole, _ = attend(query, key, value, mask=mask, kernel="eager")
    skipping, _ = attend(query, key, value, mask=mask, kernel="block_sparse")

    return (whole - skipping).abs().max().item()


def dots(row: Tensor, marks: str) -> str:
    """A row of a mask: the first mark for True, the second for False."""
    return "".join(marks[int(not allowed)] for allowed in row.tolist())
