"""From hash table to attention: which ways of looking up can be learned?"""

from __future__ import annotations

import torch
from torch import nn

from qkv.lab.experiment import Cell, Check, Experiment, Measured, Panel, Size
from qkv.lab.fit import fit
from qkv.nn.attention import lookup

LOOKUPS = {
    "exact": lookup.exact,
    "nearest": lookup.nearest,
    "mean of top 4": lambda q, k, v: lookup.mean_of_top(q, k, v, 4),
    "weighted top 4": lambda q, k, v: lookup.weighted_mean_of_top(q, k, v, 4),
    "softmax": lookup.softmax,
}


class Table(nn.Module):
    """A table whose keys are found through two learned matrices, W_q and W_k."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)


def measure(cell: Cell) -> Measured:
    """Learn W_q and W_k; a hidden matrix maps each key to the query that asks for it."""
    size = cell.size
    table = Table(size.width).to(cell.device)
    random = torch.Generator().manual_seed(cell.seed)
    hidden = torch.randn(size.width, size.width, generator=random) / size.width**0.5

    def batch(step: int) -> tuple[torch.Tensor, ...]:
        draw = torch.Generator().manual_seed(1000 * cell.seed + step)
        keys = torch.randn(size.keys, size.width, generator=draw)
        values = torch.randn(size.keys, 1, generator=draw)
        return keys.to(cell.device), (keys @ hidden).to(cell.device), values.to(cell.device)

    def loss(tensors: tuple[torch.Tensor, ...]) -> torch.Tensor:
        keys, queries, values = tensors
        found = LOOKUPS[cell.arm](table.query(queries), table.key(keys), values)
        # Where a lookup gives no gradient, nothing is learned.
        return (found - values).square().mean() + 0 * table.query.weight.sum()

    losses = fit(table, batch, size.steps, rate=1e-2, loss=loss)
    tenth = max(1, size.steps // 10)
    curve = {}
    for step in range(0, size.steps, tenth):
        part = losses[step : step + tenth]
        curve[step] = sum(part) / len(part)

    first, *_, last = curve.values()
    return {"error": curve, "learned": first - last}


EXPERIMENT = Experiment(
    name="lookup",
    claim="Only a soft lookup, with weights that depend on similarity, can be learned.",
    slides=("003 L92", "003 L96", "003 L103", "003 L123"),
    setup=(
        "A table of random keys and values; a hidden matrix turns each key into its query.",
        "W_q and W_k are learned, so that each query finds its own key.",
        "Five lookups of the lecture: exact, nearest, mean of the top 4, weighted top 4, softmax.",
        "The error is the squared distance between the value found and the right one.",
    ),
    arms=tuple(LOOKUPS),
    measure=measure,
    checks=(
        Check(
            "Softmax learns more than nearest match",
            lambda value: value("softmax", "learned") - value("nearest", "learned"),
            relevant=0.1,
        ),
        Check("Exact match learns nothing", lambda value: value("exact", "learned"), 0.1, "same"),
    ),
    panels=(Panel("error", "step", "squared error of the value"),),
    small=Size(seeds=5, minutes=0.5, steps=300, width=8, keys=16),
    large=Size(seeds=10, minutes=1, steps=1000, width=16, keys=1024),
)
