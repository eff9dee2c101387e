"""Weight shares: to which tokens the weight of each head goes, summarised while a model runs.

The weights of all heads may be too large to keep. These few numbers of each head are enough to
name it, to find a telling one, and to tell how much the first token and special tokens take.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkv.insight.inspect.model_input import Side

CLEAR = 0.2
"""A query clearly looks at a key if it gives it this weight or more."""


class WeightShares(NamedTuple):
    """Where the weight of each head goes in one text."""

    scores: dict[str, Float[Tensor, "L H"]]
    """By pattern: the mean weight of the queries that can follow it."""
    uniform: dict[str, float]
    """The score of a head that attends equally to all visible tokens."""
    queries: dict[str, int]
    """The number of queries that can follow a pattern."""
    token: Int[Tensor, "L H"]
    """The position of the key that is looked at most, neither first nor special; -1 for none."""
    on_token: Float[Tensor, "L H"]
    """The mean weight that the later tokens give to that key."""
    clear: Float[Tensor, "L H"]
    """The share of the later tokens that clearly look at that key."""
    strongest: Float[Tensor, "L H"]
    """The mean of the largest weight of a query on a key that is not first, special or itself."""
    left_out: Float[Tensor, "L H"]
    """The mean weight on the first token and on special tokens."""
    mean: Float[Tensor, "T S"]
    """The mean of all heads of all layers."""
    measured: tuple[str, ...] = ()
    """The patterns whose scores are of many texts, measured by `qkv heads`."""


def sinks(kind: str, columns: Side) -> list[int]:
    """The keys that can be left out: special tokens, and in self-attention the first token."""
    positions = set(columns.special)
    if kind != "cross" and columns.ids:
        positions.add(0)

    return sorted(positions)


class ShareSums:
    """Summarises the weights of one kind of attention, layer by layer.

    Args:
        kind: The kind of attention.
        rows: The queries (T).
        columns: The keys (S).
    """

    def __init__(self, kind: str, rows: Side, columns: Side) -> None:
        self.kind = kind
        self.rows = rows
        self.columns = columns
        self.causal: bool | None = None
        self.masks: dict[str, Bool[Tensor, "T S"]] = {}
        self.layers: list[dict[str, Float[Tensor, "H"]]] = []
        self.scores: dict[str, list[Float[Tensor, "H"]]] = {}
        self.total: Float[Tensor, "T S"] | None = None
        self.heads = 0

    def add(self, weights: Float[Tensor, "H T S"]) -> None:
        """Add the next layer, one head at a time, which saves memory."""
        if self.causal is None:
            self.prepare(weights)

        rows: list[dict[str, float]] = []
        scores: dict[str, list[float]] = {name: [] for name in self.masks}
        for head in weights:
            rows.append(self.summary(head))
            for name, mask in self.masks.items():
                queries = mask.any(1).sum().clamp(min=1)
                scores[name].append(float(head[mask].sum() / queries))

        self.layers.append({name: torch.tensor([row[name] for row in rows]) for name in rows[0]})
        for name, values in scores.items():
            self.scores.setdefault(name, []).append(torch.tensor(values))

        summed = weights.sum(0)
        self.total = summed if self.total is None else self.total + summed
        self.heads += len(weights)

    def prepare(self, weights: Float[Tensor, "H T S"]) -> None:
        """Find out what a query may see, and where each pattern says that the weight goes."""
        T, S = weights.shape[1:]
        device = weights.device
        query = torch.arange(S - T, S, device=device).unsqueeze(1)
        key = torch.arange(S, device=device)
        self.causal = self.kind in ("self", "decoder") and not bool(weights[0].triu(1).any())
        self.seen = torch.ones(T, S, dtype=torch.bool, device=device)
        if self.causal:
            self.seen = key <= query

        special = torch.zeros(S, dtype=torch.bool, device=device)
        special[list(self.columns.special)] = True
        self.sink = special.clone()
        self.sink[sinks(self.kind, self.columns)] = True

        after_first = query >= 1
        if special.any():
            self.masks["special"] = special & after_first

        own = torch.zeros_like(self.seen)
        if self.kind != "cross":
            own = key == query
            self.masks |= {
                "previous": key == query - 1,
                "first": (key == 0) & after_first,
                "self": own & after_first,
                "next": key == query + 1,
                **equal_masks(self.columns, query, key),
            }

        self.masks = {name: mask & self.seen for name, mask in self.masks.items()}
        self.later = self.seen & (key < query if self.causal else ~own)
        self.content = self.later & ~self.sink

    def summary(self, head: Float[Tensor, "T S"]) -> dict[str, float]:
        """The numbers of one head besides its patterns."""
        counted = self.content.any(1)
        strongest = head.new_zeros(())
        if counted.any():
            strongest = head.where(self.content, 0).amax(1)[counted].mean()

        # Keys that half of the queries or more can look at
        looking = self.later.sum(0)
        means = head.where(self.later, 0).sum(0) / looking.clamp(min=1)
        means[self.sink | (looking < max(3, len(head) / 2))] = -1
        token = int(means.argmax())
        if means[token] < 0:
            token = -1

        on_token = clear = head.new_zeros(())
        if token >= 0:
            on_token = means[token]
            clear = (head[self.later[:, token], token] >= CLEAR).float().mean()

        after_first = slice(1, None) if self.kind != "cross" and len(head) > 1 else slice(None)
        left_out = head[after_first][:, self.sink].sum(1).mean()

        return {
            "token": token,
            "on_token": float(on_token),
            "clear": float(clear),
            "strongest": float(strongest),
            "left_out": float(left_out),
        }

    def result(self) -> WeightShares | None:
        """The numbers of all heads, or None if there was no layer."""
        if self.total is None:
            return None

        scores = {}
        uniform = {}
        queries = {}
        for name, mask in self.masks.items():
            followed = mask.any(1)
            if not followed.any():
                continue

            scores[name] = torch.stack(self.scores[name])
            uniform[name] = float((mask.sum(1) / self.seen.sum(1))[followed].mean())
            queries[name] = int(followed.sum())

        def stacked(name: str) -> Tensor:
            return torch.stack([layer[name] for layer in self.layers])

        return WeightShares(
            scores,
            uniform,
            queries,
            token=stacked("token").long(),
            on_token=stacked("on_token"),
            clear=stacked("clear"),
            strongest=stacked("strongest"),
            left_out=stacked("left_out"),
            mean=(self.total / self.heads).cpu(),
        )


def equal_masks(
    columns: Side, query: Int[Tensor, "T 1"], key: Int[Tensor, "S"]
) -> dict[str, Bool[Tensor, "T S"]]:
    """Other copies of the query's token, and the tokens that followed an earlier copy."""
    ids = torch.tensor(columns.ids, device=key.device)
    equal = ids[query] == ids
    same = equal & (key != query)

    followed = torch.zeros_like(same)
    followed[:, 1:] = equal[:, :-1]
    induction = followed & (key <= query)

    return {"same": same, "induction": induction & (key != query)}
