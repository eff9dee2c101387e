"""The lectures' tables, computed by the code that trains and serves: `qkv demo --board-only`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from rich.console import Console
from torch import Tensor

from qkv.insight.render.terminal_cells import HeatMap
from qkv.lab.preset_table import preset_table
from qkv.nn.attention import Causal, Fixed, Mask, Strided, Window, attend, dot, lookup
from qkv.nn.attention.multi_head import MultiHeadAttention
from qkv.tables import Table

MEANINGS = ("cat", "mouse", "chase", "thing")
# Hand-made embeddings: how much a word means each of them.
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
QUICK = ("the", "quick", "brown")
# The weights that lecture 6 prints for Turkish queries and English keys, and before the mask.
SLIDE_ALIGNMENT = ((0.91, 0.04, 0.05), (0.03, 0.10, 0.87), (0.09, 0.88, 0.03))
SLIDE_WEIGHTS = ((0.91, 0.04, 0.05), (0.03, 0.74, 0.23), (0.01, 0.41, 0.58))


def vectors(tokens: Sequence[str]) -> Tensor:
    """The hand-made embeddings of words (T, 4)."""
    return torch.tensor([MEANING[token] for token in tokens])


def show_board(console: Console | None = None) -> None:
    """Print all tables."""
    console = console or Console(highlight=False)
    sections: dict[str, Callable[[Console], None]] = {
        "From a hash table to attention": show_lookup,
        "Self-attention without parameters: softmax(X X^T) X": show_self_attention,
        "Words in rows or in columns: the same numbers": show_columns,
        "The slide's causal mask: softmax of masked scores": show_slide_mask,
        "Attention between two languages: the word order changes": show_cross_attention,
        "Heads as wide as the model, or a part of it": show_head_widths,
        "Sparse masks: fewer pairs, the same equation": show_masks,
        "The published models and their sizes": lambda console: console.print(preset_table()),
    }

    for number, (title, section) in enumerate(sections.items(), start=1):
        console.rule(f"[bold]{number}. {title}")
        section(console)
        console.print()


def show_lookup(console: Console) -> None:
    """One query to one table, looked up in six ways."""
    key = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    value = torch.tensor([[10.0], [20.0], [40.0]])
    steps: dict[str, Callable[[Tensor], Tensor]] = {
        "exact match": lambda q: lookup.exact(q, key, value),
        "nearest match": lambda q: lookup.nearest(q, key, value),
        "mean of the top 2": lambda q: lookup.mean_of_top(q, key, value, 2),
        "inner products of the top 2": lambda q: lookup.inner_products_of_top(q, key, value, 2),
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
    """The weights and the output of self-attention with and without a causal mask."""
    console.print("Each word is a vector of four numbers, made by hand: cat, mouse, chase, thing.")
    console.print("Rows are queries, columns are keys; the weights of a row sum to 1.")
    X = vectors(ENGLISH)
    masks: dict[str, Mask | None] = {
        "no mask: every word attends to every word": None,
        "causal mask: no word attends to a later one": Causal(),
    }

    for title, mask in masks.items():
        output, weights = attend(X, X, X, score=dot, mask=mask, need_weights=True)
        assert weights is not None
        console.print(HeatMap(weights, ENGLISH, ENGLISH, title))
        console.print(vector_table("new rows: weights times X", ENGLISH, output), "")


def vector_table(title: str, words: Sequence[str], rows: Tensor) -> Table:
    """Vectors (T, 4) of words with two decimals."""
    table = Table(title, *MEANINGS)
    for column in table.columns[1:]:
        column.justify = "right"

    for word, row in zip(words, rows.tolist(), strict=True):
        table.add_row(word, *(f"{number:.2f}" for number in row))

    return table


def show_columns(console: Console) -> None:
    """Self-attention with words in columns, as one lecture writes it, beside ours."""
    console.print("Ours: a word is a row of X (N x D), softmax over each row of X X^T.")
    console.print("Some write a word as a column of X (D x N), with softmax over each column.")
    X = vectors(ENGLISH).double()
    rows, _ = attend(X, X, X, score=dot)
    columns = attend_in_columns(X.T, X.T, X.T)

    table = Table("a word", "shape of the output", "its numbers for 'chase'")
    for name, output, chase in (("a row", rows, rows[1]), ("a column", columns, columns[:, 1])):
        numbers = "  ".join(f"{number:.2f}" for number in chase.tolist())
        table.add_row(name, " x ".join(map(str, output.shape)), numbers)

    console.print(table)
    difference = (columns.T - rows).abs().max().item()
    console.print(f"One is the transpose of the other; the largest difference is {difference:.0e}.")


def attend_in_columns(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention of columns: V softmax(K^T Q), softmax over each column of the (S, T) scores."""
    weights = (key.T @ query).softmax(0)  # (S, T)
    return value @ weights  # (X, S) (S, T) -> (X, T)


def slide_head(
    weights: Sequence[Sequence[float]], mask: Mask | None = None
) -> tuple[Tensor, Tensor]:
    """Scores whose softmax is a slide's matrix, and their weights under a mask: (T, S) each."""
    logs = torch.tensor(weights, dtype=torch.float64).log()  # softmax(log p) = p
    captured: list[Tensor] = []

    def store(scores: Tensor) -> Tensor:
        captured.append(scores)
        return scores

    x = torch.zeros(len(logs), 1, dtype=logs.dtype)  # the scores are given, so any vectors do
    _, masked = attend(
        x,
        x,
        x,
        score=lambda query, key: logs.expand(1, 1, -1, -1),
        mask=mask,
        need_weights=True,
        on_scores=store,
    )
    assert masked is not None
    return captured[0][0, 0], masked


def show_slide_mask(console: Console) -> None:
    """The numbers of the lecture's own matrix without and with the causal mask."""
    console.print("Scores are the logarithms of the slide's weights, so softmax gives them back.")
    masks: dict[str, Mask | None] = {
        "the slide's matrix: no mask": None,
        "causal mask: every row is divided by what is left of it": Causal(),
    }

    for title, mask in masks.items():
        _, weights = slide_head(SLIDE_WEIGHTS, mask)
        console.print(HeatMap(weights, QUICK, QUICK, title), "")


def show_cross_attention(console: Console) -> None:
    """The weights of cross-attention from Turkish to English."""
    console.print(
        "kediler fareleri kovalar: cats, mice, chase. Turkish words are queries, English are keys."
    )
    console.print("The verb comes last in Turkish and attends to the second English word.")
    _, slide = slide_head(SLIDE_ALIGNMENT)
    console.print(HeatMap(slide, TURKISH, ENGLISH, "the slide's matrix"), "")

    _, weights = attend(vectors(TURKISH), vectors(ENGLISH), vectors(ENGLISH), need_weights=True)
    assert weights is not None
    console.print(HeatMap(weights, TURKISH, ENGLISH, "by vectors that are set by hand"))


def show_head_widths(console: Console) -> None:
    """Two ways to choose the width of a head: sizes of what is concatenated, and parameters."""
    n, width, heads = 10, 512, 8
    console.print(f"n = {n} tokens, d_model = {width}, H = {heads} heads.")
    table = Table("width of a head", "concatenation", "resized by W^O to", "parameters")
    table.columns[3].justify = "right"

    for name, head_width in (("d_model / H, as here", None), ("d_model, the slide", width)):
        attention = MultiHeadAttention(
            width, heads, head_width=head_width, qkv_bias=False, output_bias=False
        )
        joined = attention.output.in_features
        parameters = sum(parameter.numel() for parameter in attention.parameters())
        table.add_row(
            f"{attention.head_width}: {name}",
            f"{n} x {joined}",
            f"{n} x {attention.output.out_features}",
            f"{parameters:,}",
        )

    console.print(table)
    console.print("The equation is the same; head_width (--head-width) chooses the width.")


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
