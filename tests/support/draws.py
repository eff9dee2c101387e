"""Hypothesis strategies: attention calls of every shape, with every mask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import and_

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from torch import Tensor

from qkv.nn.attention import (
    Blockwise,
    Causal,
    Distance,
    Document,
    Explicit,
    Fixed,
    Mask,
    Padding,
    Prefix,
    Strided,
    Window,
)


@dataclass(frozen=True)
class Sizes:
    B: int
    H: int
    K: int
    T: int
    S: int
    D: int
    X: int


@st.composite
def sizes(draw: DrawFn, *, longest: int = 12, square: bool = False) -> Sizes:
    """T <= S: the queries are the last positions, all of them (training) or a few (decoding)."""
    S = draw(st.integers(1, longest))
    T = S if square else draw(st.one_of(st.just(S), st.integers(1, S)))
    K = draw(st.integers(1, 2))
    return Sizes(
        B=draw(st.integers(1, 3)),
        H=K * draw(st.integers(1, 3)),
        K=K,
        T=T,
        S=S,
        D=draw(st.sampled_from([1, 2, 5, 8])),
        X=draw(st.sampled_from([1, 3, 8])),
    )


def random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


seeds = st.integers(0, 10_000)


@st.composite
def paddings(draw: DrawFn, n: Sizes) -> Mask:
    """Padding anywhere, and rows without a token."""
    padding_mask = torch.rand(n.B, n.S, generator=random(draw(seeds))) < draw(
        st.sampled_from([0.0, 0.5, 0.9])
    )
    if draw(st.booleans()):
        padding_mask[draw(st.integers(0, n.B - 1))] = False
    return Padding(padding_mask)


@st.composite
def documents(draw: DrawFn, n: Sizes) -> Mask:
    begins = torch.rand(n.B, n.S, generator=random(draw(seeds))) < 0.3
    return Document(begins.cumsum(1))


@st.composite
def prefixes(draw: DrawFn, n: Sizes) -> Mask:
    if draw(st.booleans()):
        return Prefix(draw(st.integers(0, n.S)))
    return Prefix(torch.randint(0, n.S + 1, (n.B,), generator=random(draw(seeds))))


@st.composite
def explicits(draw: DrawFn, n: Sizes) -> Mask:
    shape = draw(st.sampled_from([(), (n.B,), (1,), (n.B, n.H), (1, n.H), (n.B, 1)]))
    return Explicit(torch.rand(*shape, n.T, n.S, generator=random(draw(seeds))) < 0.6)


@st.composite
def fixeds(draw: DrawFn, n: Sizes) -> Mask:
    stride = draw(st.integers(1, n.S + 1))
    return Fixed(stride, draw(st.integers(1, stride)))


def lengths(n: Sizes) -> SearchStrategy[int]:
    return st.integers(1, n.S + 1)


KINDS: dict[type[Mask], Callable[[Sizes], SearchStrategy[Mask]]] = {
    Causal: lambda n: st.just(Causal()),
    Window: lambda n: lengths(n).map(Window),
    Blockwise: lambda n: lengths(n).map(Blockwise),
    Strided: lambda n: lengths(n).map(Strided),
    Fixed: fixeds,
    Padding: paddings,
    Document: documents,
    Prefix: prefixes,
    Explicit: explicits,
}
WITH_REACH = [Causal, Window, Blockwise, Document]
PATTERNS = [Strided, Fixed]


def masks_of(kinds: list[type[Mask]], n: Sizes) -> SearchStrategy[Mask]:
    return st.one_of([KINDS[kind](n) for kind in kinds])


@st.composite
def masks(draw: DrawFn, n: Sizes, *, first: list[type[Mask]] | None = None) -> Mask:
    """A mask of one of the `first` kinds, combined with up to two of any kind, in any order."""
    parts = [
        draw(masks_of(first or list(KINDS), n)),
        *draw(st.lists(masks_of(list(KINDS), n), max_size=2)),
    ]
    return reduce(and_, draw(st.permutations(parts)))


@st.composite
def biases(draw: DrawFn, n: Sizes) -> Distance | Tensor | None:
    """None, ALiBi's slopes or a table in float64, which require a gradient."""
    kind = draw(st.sampled_from(["none", "distance", "table"]))
    if kind == "none":
        return None
    if kind == "distance":
        return Distance(
            torch.rand(n.H, generator=random(draw(seeds)), dtype=torch.float64).requires_grad_()
        )
    shape = draw(st.sampled_from([(n.T,), (n.B, n.T), (n.B, n.H, n.T), (1, n.H, n.T), (n.B, 1, 1)]))
    table = torch.randn(*shape, n.S, generator=random(draw(seeds)), dtype=torch.float64)
    return table.requires_grad_()


@dataclass(frozen=True)
class Call:
    """One call of attend, in float64."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Mask | None
    bias: Distance | Tensor | None
    ask: Tensor  # the gradient that comes back to the output

    def to(self, dtype: torch.dtype) -> Call:
        return self.each(lambda x: x.detach().to(dtype).requires_grad_(x.requires_grad))

    def detached(self) -> Call:
        return self.each(lambda x: x.detach())

    def each(self, copy: Callable[[Tensor], Tensor]) -> Call:
        bias = self.bias
        if bias is not None:
            bias = Distance(copy(bias.slopes)) if isinstance(bias, Distance) else copy(bias)
        return Call(
            copy(self.query), copy(self.key), copy(self.value), self.mask, bias, copy(self.ask)
        )

    @property
    def leaves(self) -> dict[str, Tensor]:
        """The tensors that require a gradient."""
        tensors = {"query": self.query, "key": self.key, "value": self.value}
        if self.bias is not None:
            tensors["bias"] = self.bias.slopes if isinstance(self.bias, Distance) else self.bias
        return {name: leaf for name, leaf in tensors.items() if leaf.requires_grad}


def call(
    n: Sizes, seed: int, mask: Mask | None = None, bias: Distance | Tensor | None = None
) -> Call:
    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    generator = random(seed)
    query, key, value = (
        numbers(n.B, n.H, n.T, n.D),
        numbers(n.B, n.K, n.S, n.D),
        numbers(n.B, n.K, n.S, n.X),
    )
    for leaf in (query, key, value):
        leaf.requires_grad_()
    return Call(query, key, value, mask, bias, numbers(n.B, n.H, n.T, n.X))


@st.composite
def calls(
    draw: DrawFn,
    *,
    longest: int = 12,
    square: bool = False,
    first: list[type[Mask]] | None = None,
    always_masked: bool = False,
) -> Call:
    n = draw(sizes(longest=longest, square=square))
    masked = masks(n, first=first)
    mask = draw(masked if always_masked else st.one_of(st.none(), masked))
    return call(n, draw(seeds), mask, draw(biases(n)))
