"""Low-rank adapters (LoRA, Hu et al. 2021): a matrix is frozen, and a small change is learned.

    y = x W^T + b + (alpha / rank) * (dropout(x) A^T) B^T

W is (N, E), A is (rank, E) and B is (N, rank). B begins as zeros, so an adapted model begins with
the same outputs. After training, W + (alpha / rank) B A is one matrix again. Query, key and value
are rows of one matrix here, as are gate and up: each adapter changes the rows of its projection.
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
    """The change of some rows of one matrix: scale * B A."""

    def __init__(
        self, A: Float[Tensor, "r E"], B: Float[Tensor, "R r"], first: int, scale: float
    ) -> None:
        super().__init__()
        self.A = nn.Parameter(A)
        self.B = nn.Parameter(B)
        self.first = first
        self.last = first + len(B)
        self.scale = scale

    @property
    def rank(self) -> int:
        return len(self.A)

    def meets(self, rows: range) -> bool:
        """True if it changes any of these rows."""
        return self.first < rows.stop and self.last > rows.start

    def padded(self, rows: range) -> Float[Tensor, "N r"]:
        """B as a matrix for all of these rows, with zeros in those it does not change."""
        first = max(self.first, rows.start)
        last = min(self.last, rows.stop)
        part = self.B[first - self.first : last - self.first]
        return F.pad(part, (0, 0, first - rows.start, rows.stop - last))

    def change(self) -> Float[Tensor, "R E"]:
        """The change of W, in float64."""
        return self.scale * (self.B.detach().double() @ self.A.detach().double())


class Adapters(nn.ModuleDict):
    """The adapters of one matrix by projection, computed together as two narrow products."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout

    def parts(self) -> list[tuple[str, Adapter]]:
        """The adapters and their names."""
        return [(name, part) for name, part in self.items() if isinstance(part, Adapter)]

    def forward(
        self, x: Float[Tensor, "*n E"], y: Float[Tensor, "*n R"], rows: range
    ) -> Float[Tensor, "*n R"]:
        """Add the adapters' changes to y, the product of x and these rows of the matrix."""
        parts = [part for _, part in self.parts() if part.meets(rows)]
        if not parts:
            return y

        if self.training and self.dropout:
            x = F.dropout(x, self.dropout)

        down = torch.cat([part.A for part in parts])  # (r, E), r of all parts together
        up = torch.cat([part.scale * part.padded(rows) for part in parts], dim=1)  # (R, r)

        return y + F.linear(F.linear(x, down), up)


class AdapterSite(NamedTuple):
    """A projection: the rows of a layer's matrix."""

    layer: Linear
    rows: range


def adapter_sites(module: nn.Module) -> dict[Projection, AdapterSite]:
    """The projections of an attention or a feed-forward layer; empty for any other module."""
    if isinstance(module, MultiHeadAttention):
        return attention_sites(module)
    if isinstance(module, FeedForward):
        return feed_forward_sites(module)

    return {}


def attention_sites(attention: MultiHeadAttention) -> dict[Projection, AdapterSite]:
    key = attention.heads * attention.head_width  # the first row of the keys
    value = key + attention.kv_heads * attention.head_width
    qkv = attention.qkv
    output = attention.output
    return {
        "query": AdapterSite(qkv, range(key)),
        "key": AdapterSite(qkv, range(key, value)),
        "value": AdapterSite(qkv, range(value, qkv.out_features)),
        "output": AdapterSite(output, range(output.out_features)),
    }


def feed_forward_sites(feed_forward: FeedForward) -> dict[Projection, AdapterSite]:
    up = feed_forward.up
    down = feed_forward.down
    hidden = down.in_features
    sites: dict[Projection, AdapterSite] = {}
    first = 0
    if up.out_features > hidden:  # swiglu: the gate's rows come before those of up
        sites["gate"] = AdapterSite(up, range(hidden))
        first = hidden

    sites["up"] = AdapterSite(up, range(first, first + hidden))
    sites["down"] = AdapterSite(down, range(down.out_features))
    return sites


def attach_adapters(model: nn.Module, config: AdapterConfig, seed: int = 0) -> None:
    """Add adapters to the chosen projections of every block, in place. No weight is frozen here.

    Args:
        model: A model without adapters.
        config: Rank, scale, dropout and projections.
        seed: Of the initial A; B begins as zeros.

    Raises:
        ValueError: If the model has adapters, or lacks a projection.
        TypeError: If a matrix is int8 or int4.

    Example:
        >>> model = MultiHeadAttention(8, 2)
        >>> attach_adapters(model, AdapterConfig(rank=4, projections=("query", "value")))
        >>> sum(parameter.numel() for parameter in adapter_parameters(model))
        128
    """
    sites = list(map(adapter_sites, model.modules()))
    check_fresh(model)

    for name in config.projections:
        if not any(name in projections for projections in sites):
            gates = " (only swiglu has a gate)" if name == "gate" else ""
            raise ValueError(f"projections: {type(model).__name__} has no {name} to adapt{gates}")

    generator = torch.Generator().manual_seed(seed)
    scale = config.alpha / config.rank
    for projections in sites:
        for name, (layer, rows) in projections.items():
            if name not in config.projections:
                continue

            # Kaiming's initialisation with a = sqrt(5), as in peft and nn.Linear.
            bound = 1 / math.sqrt(layer.in_features)
            A = torch.empty(config.rank, layer.in_features)
            A.uniform_(-bound, bound, generator=generator)
            B = torch.zeros(len(rows), config.rank)
            add(layer, name, A, B, rows.start, scale, config.dropout)


def check_fresh(model: nn.Module) -> None:
    """Raise if the model has adapters."""
    for _ in adapted(model):
        raise ValueError("model: it has adapters already; merge or detach them first")


def add(
    layer: Linear, name: str, A: Tensor, B: Tensor, first: int, scale: float, dropout: float
) -> None:
    """Add one adapter to a layer, in the dtype and on the device of its matrix."""
    if not isinstance(layer.weight, Tensor):
        raise TypeError(
            f"model: {layer.weight.kind} weights are frozen; adapt the float32 model, "
            f"and make {layer.weight.kind} of it afterwards"
        )

    if layer.adapters is None:
        layer.adapters = Adapters(dropout).train(layer.training)

    assert isinstance(layer.adapters, Adapters)
    adapter = Adapter(A.to(layer.weight), B.to(layer.weight), first, scale)
    layer.adapters[name] = adapter.train(layer.training)


def adapted(model: nn.Module) -> Iterator[tuple[str, Linear, Adapters]]:
    """The layers that have adapters, with their names in the model."""
    for path, module in model.named_modules():
        if isinstance(module, Linear) and isinstance(module.adapters, Adapters):
            yield path, module, module.adapters


def adapter_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters of all adapters: what is trained while the model is frozen."""
    parameters: list[nn.Parameter] = []
    for _, _, adapters in adapted(model):
        parameters += adapters.parameters()

    return parameters


@torch.no_grad()
def merge_adapters(model: nn.Module) -> None:
    """Replace every W by W + (alpha / rank) B A and remove the adapters.

    The sum is computed in float64 and rounded once.

    Args:
        model: A model with or without adapters.

    Raises:
        TypeError: If a matrix is int8 or int4.

    Example:
        >>> model = MultiHeadAttention(8, 2)
        >>> attach_adapters(model, AdapterConfig(rank=4))
        >>> merge_adapters(model)
        >>> adapter_parameters(model)
        []
    """
    for _, layer, adapters in list(adapted(model)):
        if not isinstance(layer.weight, Tensor):
            raise TypeError(
                f"model: {layer.weight.kind} weights are frozen; merge the float32 model, "
                f"and make {layer.weight.kind} of it afterwards"
            )

        merged = layer.weight.double()
        for _, part in adapters.parts():
            merged[part.first : part.last] += part.change()

        layer.weight.copy_(merged)
        remove(layer)


def detach_adapters(model: nn.Module) -> None:
    """Remove all adapters, so that the model is what it was before."""
    for _, layer, _ in list(adapted(model)):
        remove(layer)


def remove(layer: Linear) -> None:
    del layer.adapters  # a submodule, which an assignment of None would leave in place
    layer.adapters = None
