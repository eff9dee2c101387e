"""From hash table to attention: which ways of looking up can be learned?"""

from __future__ import annotations

import torch
from torch import nn

from qkv.lab.experiment import Cell, Check, Experiment, Measured, Panel, Size
from qkv.lab.fit import fit
from qkv.nn.attention import lookup

HARD = {
    "exact": lookup.exact,
    "nearest": lookup.nearest,
    "mean of top 4": lambda q, k, v: lookup.mean_of_top(q, k, v, 4),
}
SOFT = {
    "inner products": lambda q, k, v: lookup.inner_products_of_top(q, k, v, 4),
    "softmax of top 4": lambda q, k, v: lookup.weighted_mean_of_top(q, k, v, 4),
    "softmax": lookup.softmax,
}


def measure(cell: Cell) -> Measured:
    """Learn W_q and W_k; a hidden matrix maps each key to the query that asks for it."""
    size = cell.size
    query = nn.Linear(size.width, size.width, bias=False)
    key = nn.Linear(size.width, size.width, bias=False)
    layers = nn.ModuleList([query, key]).to(cell.device)
    hidden = torch.randn(size.width, size.width) / size.width**0.5

    def draw(step: int) -> tuple[torch.Tensor, ...]:
        random = torch.Generator().manual_seed(1_000_000 * cell.seed + step)
        keys = torch.randn(size.keys, size.width, generator=random)
        values = torch.randn(size.keys, 1, generator=random)
        return keys.to(cell.device), (keys @ hidden).to(cell.device), values.to(cell.device)

    def loss(tensors: tuple[torch.Tensor, ...]) -> torch.Tensor:
        keys, queries, values = tensors
        found = (HARD | SOFT)[cell.arm](query(queries), key(keys), values)
        # Where a lookup gives no gradient, nothing is learned.
        return (found - values).square().mean() + 0 * (query.weight + key.weight).sum()

    tests = [draw(size.steps + number) for number in range(20)]
    errors: dict[int, float] = {}

    def test(step: int) -> None:
        if step % max(1, size.steps // 10) == 0:
            errors[step] = min(100.0, sum(loss(table).item() for table in tests) / len(tests))

    test(0)
    (gradient,) = torch.autograd.grad(loss(tests[0]), [query.weight])
    fit(layers, draw, size.steps, rate=1e-2, loss=loss, every=test, weight_decay=0.0)
    last = errors[max(errors)]
    return {"error": errors, "first gradient": float(gradient.norm()), "learned": errors[0] - last}


EXPERIMENT = Experiment(
    name="lookup",
    claim="Only a lookup with weights that depend on similarity can be learned.",
    slides=("003 L92", "003 L96", "003 L103", "003 L113", "003 L119", "003 L123"),
    setup=(
        "A table of random keys and values; a hidden matrix turns each key into its query.",
        "W_q and W_k are learned, so that each query finds its own key.",
        "The six lookups of the lecture, from a hash table to attention.",
        "The error is squared, in 20 new tables; a lookup that always says 0 has an error of 1.",
    ),
    arms=tuple(HARD | SOFT),
    measure=measure,
    checks=(
        Check(
            "Exact match, nearest match and the mean of the top 4 learn nothing",
            lambda value: max(abs(value(arm, "learned")) for arm in HARD),
            relevant=0.1,
            expects="same",
        ),
        Check(
            "Inner products, softmax of the top 4 and softmax of all learn",
            lambda value: min(value(arm, "learned") for arm in SOFT),
            relevant=0.3,
        ),
    ),
    panels=(
        Panel("error", "step", "squared error of the value", "New tables"),
        Panel("first gradient", y="norm", title="First gradient of W_q"),
    ),
    small=Size(seeds=5, minutes=0.2, steps=600, width=8, keys=16),
    large=Size(seeds=5, minutes=2, steps=1000, width=16, keys=1024),
    remark="At the small size inner products learn less than softmax; a possible reason is that "
    "their sum has no scale. Softmax weights sum to 1, so the slide's factor 1/l is not needed.",
    next_steps=("qkv demo --board-only", "qkv lab lookup --set keys=64 --set steps=1000"),
)
