"""Numbers added to the scores before the softmax. Like a mask, a bias is a described value.

`at(b, h, q, k)` gives the number for row b, head h, query position q and key position k.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.nn.attention.mask import Index
from qkv.nn.attention.shape import check_fits_scores, four_dimensions


@dataclass(frozen=True, eq=False)
class Bias:
    def at(self, b: Index, h: Index, q: Tensor, k: Tensor) -> Tensor:
        raise TypeError(f"{type(self).__name__} must say what it adds")

    def check(self, B: int, H: int, T: int, S: int) -> None:
        """Raise when this bias cannot be added to scores of shape (B, H, T, S)."""

    def tile(self, q: Tensor, k: Tensor, like: Tensor) -> Float[Tensor, "#B #H ..."]:
        """The numbers for index tensors of positions, for queries `like` (B, H, ...)."""
        ones = (1,) * len(torch.broadcast_shapes(q.shape, k.shape))
        b = torch.arange(like.shape[0], device=like.device).view(-1, 1, *ones)
        h = torch.arange(like.shape[1], device=like.device).view(-1, *ones)
        numbers = self.at(b, h, q, k).to(like.dtype)

        return numbers[
            (None,) * (2 + len(ones) - numbers.dim())
        ]  # (B, H, ...), with 1 for what it does not depend on

    def materialise(self, T: int, S: int, like: Tensor) -> Float[Tensor, "#B #H T S"]:
        q = torch.arange(S - T, S, device=like.device).view(T, 1)
        return self.tile(q, torch.arange(S, device=like.device), like)


@dataclass(frozen=True, eq=False)
class Distance(Bias):
    """ALiBi (Press et al. 2022): the further away a key, the lower its score, by a slope of its
    head's own.
    """

    slopes: Float[Tensor, "H"]

    def at(self, b: Index, h: Index, q: Tensor, k: Tensor) -> Tensor:
        return -self.slopes[h] * (q - k).abs()

    def check(self, B: int, H: int, T: int, S: int) -> None:
        if self.slopes.shape != (H,):
            raise ValueError(
                f"bias: expected {H} slopes, one a head, not {tuple(self.slopes.shape)}"
            )


@dataclass(frozen=True, eq=False)
class BiasMatrix(Bias):
    """A bias given as its matrix: (T, S), (B, T, S) or (B, H, T, S); B, H and T may be 1."""

    values: Float[Tensor, "..."]

    def at(self, b: Index, h: Index, q: Tensor, k: Tensor) -> Tensor:
        B, H, T, S = self.values.shape
        row = q - (S - T) if T > 1 else torch.zeros_like(q)
        return self.values[b if B > 1 else 0, h if H > 1 else 0, row, k]

    def materialise(self, T: int, S: int, like: Tensor) -> Float[Tensor, "#B #H T S"]:
        return self.values.to(like.dtype).expand(-1, -1, T, S)

    def check(self, B: int, H: int, T: int, S: int) -> None:
        check_fits_scores("bias", self.values, (B, H, T, S), may_be_one="BHT")


def as_bias(bias: Bias | Tensor) -> Bias:
    if isinstance(bias, Bias):
        return bias
    if not isinstance(bias, Tensor):
        raise TypeError(f"bias must be a Bias or a tensor, not {type(bias).__name__}")
    if not bias.is_floating_point():
        raise TypeError(
            f"bias must be floating-point numbers, not {bias.dtype}; who may look at whom goes into mask"
        )
    if bias.dim() > 4 or bias.dim() < 2:
        raise ValueError(f"bias must have 2, 3 or 4 dimensions, not shape {tuple(bias.shape)}")

    return BiasMatrix(four_dimensions(bias))
