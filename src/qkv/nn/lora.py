"""Low-rank adapters (LoRA, Hu et al. 2021): a large matrix stays as it is, and a small change is
learned beside it.

    y = x W^T + b + (alpha / rank) * (dropout(x) A^T) B^T        W is (N, E), A is (rank, E), B is
    (N, rank)

B begins as zeros, so that an adapted model begins as the model it was. When it has learned, W +
(alpha / rank) B A is one matrix again. Query, key and value are rows of one matrix here, as are
gate and up: each part changes its own rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from qkv.nn.attention.multi_head import MultiHeadAttention
from qkv.nn.feed_forward import FeedForward
from qkv.nn.linear.linear import Linear
from qkv.nn.stack_config import AdapterConfig, Projection


class Adapter(nn.Module):
    """What is added to some rows of one matrix: scale * B A."""

    def __init__(
        self, A: Float[Tensor, "r E"], B: Float[Tensor, "R r"], first: int, scale: float
    ) -> None:
        super().__init__()
        self.A, self.B = nn.Parameter(A), nn.Parameter(B)
        self.first, self.last, self.scale = first, first + len(B), scale

    @property
    def rank(self) -> int:
        return len(self.A)

    def meets(self, rows: range) -> bool:
        return self.first < rows.stop and self.last > rows.start

    def padded(self, rows: range) -> Float[Tensor, "N r"]:
        """B as a matrix for all of these rows: zeros in those it does not change."""
        first, last = max(self.first, rows.start), min(self.last, rows.stop)
        return F.pad(
            self.B[first - self.first : last - self.first],
            (0, 0, first - rows.start, rows.stop - last),
        )

    def change(self) -> Float[Tensor, "R E"]:
        """What W is changed by, in float64."""
        return self.scale * (self.B.detach().double() @ self.A.detach().double())


class Adapters(nn.ModuleDict):
    """The adapters of one matrix, by name. All of them together are one narrow product after
    another.
    """

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout

    def parts(self) -> list[tuple[str, Adapter]]:
        return [(name, part) for name, part in self.items() if isinstance(part, Adapter)]

    def forward(
        self, x: Float[Tensor, "*n E"], y: Float[Tensor, "*n R"], rows: range
    ) -> Float[Tensor, "*n R"]:
        """y, the matrix's own product for these rows, and what the adapters add to it."""
        parts = [part for _, part in self.parts() if part.meets(rows)]
        if not parts:
            return y

        if self.training and self.dropout:
            x = F.dropout(x, self.dropout)

        low = F.linear(
            x, torch.cat([part.A for part in parts])
        )  # (*n, r): of all parts, side by side

        return y + F.linear(
            low, torch.cat([part.scale * part.padded(rows) for part in parts], dim=1)
        )  # (*n, R)


class AdapterSite(NamedTuple):
    """Where a projection's rows are."""

    layer: Linear
    rows: range


def adapter_sites(module: nn.Module) -> dict[Projection, AdapterSite]:
    """The projections of an attention or a feed-forward part; other modules have none of their own."""
    if isinstance(module, MultiHeadAttention):
        query, rest = module.heads * module.head_width, module.kv_heads * module.head_width
        key, value = range(query, query + rest), range(query + rest, query + 2 * rest)
        attention: dict[Projection, AdapterSite] = {
            "query": AdapterSite(module.qkv, range(query)),
            "key": AdapterSite(module.qkv, key),
            "value": AdapterSite(module.qkv, value),
            "output": AdapterSite(module.output, range(module.output.out_features)),
        }

        return attention

    if isinstance(module, FeedForward):
        hidden = module.down.in_features
        gated = module.up.out_features > hidden  # swiglu: the gate's rows, then the others
        feed_forward: dict[Projection, AdapterSite] = {
            "up": AdapterSite(module.up, range(hidden, 2 * hidden) if gated else range(hidden)),
            "down": AdapterSite(module.down, range(module.down.out_features)),
        }
        return (
            {"gate": AdapterSite(module.up, range(hidden)), **feed_forward}
            if gated
            else feed_forward
        )

    return {}


def attach(model: nn.Module, config: AdapterConfig, seed: int = 0) -> None:
    """Adapters for the chosen projections of every block, in place. No weight is frozen here."""
    found = [adapter_sites(module) for module in model.modules()]
    check_fresh(model)

    for name in config.projections:
        if not any(name in each for each in found):
            gates = " (only swiglu has a gate)" if name == "gate" else ""
            raise ValueError(f"projections: {type(model).__name__} has no {name} to adapt{gates}")

    generator = torch.Generator().manual_seed(seed)

    for each in found:
        for name, (layer, rows) in each.items():
            if name in config.projections:
                bound = 1 / math.sqrt(
                    layer.in_features
                )  # Kaiming's with a = sqrt(5), as peft and nn.Linear begin
                A = torch.empty(config.rank, layer.in_features).uniform_(
                    -bound, bound, generator=generator
                )
                B = torch.zeros(len(rows), config.rank)
                add(layer, name, A, B, rows.start, config.alpha / config.rank, config.dropout)


def check_fresh(model: nn.Module) -> None:
    if any(True for _ in adapted(model)):
        raise ValueError("model: it has adapters already; merge or detach them first")


def add(
    layer: Linear, name: str, A: Tensor, B: Tensor, first: int, scale: float, dropout: float
) -> None:
    """One more adapter for a layer, with numbers like those of its matrix."""
    if not isinstance(layer.weight, Tensor):
        raise TypeError(
            "model: int8 weights are frozen; adapt the float32 model, and make int8 of it afterwards"
        )

    if layer.adapters is None:
        layer.adapters = Adapters(dropout).train(layer.training)

    layer.adapters[name] = Adapter(A.to(layer.weight), B.to(layer.weight), first, scale).train(
        layer.training
    )


def adapted(model: nn.Module) -> Iterator[tuple[str, Linear, Adapters]]:
    """Layers that have adapters, by their names in the model."""
    for path, module in model.named_modules():
        if isinstance(module, Linear) and module.adapters is not None:
            yield path, module, module.adapters


def adapter_parameters(model: nn.Module) -> list[nn.Parameter]:
    """What is learned when all else is frozen."""
    return [parameter for _, _, adapters in adapted(model) for parameter in adapters.parameters()]


@torch.no_grad()
def merge(model: nn.Module) -> None:
    """W + (alpha / rank) B A in W's place, computed in float64 and rounded once; the adapters are
    gone.
    """
    for _, layer, adapters in list(adapted(model)):
        if not isinstance(layer.weight, Tensor):
            raise TypeError(
                "model: int8 weights are frozen; merge the float32 model, and make int8 of it afterwards"
            )

        merged = layer.weight.double()
        for _, part in adapters.parts():
            merged[part.first : part.last] += part.change()

        layer.weight.copy_(merged)
        remove(layer)


def detach(model: nn.Module) -> None:
    """The adapters are taken away, and the model is what it was before."""
    for _, layer, _ in list(adapted(model)):
        remove(layer)


def remove(layer: Linear) -> None:
    del layer.adapters  # which is a submodule until now
    layer.adapters = None
