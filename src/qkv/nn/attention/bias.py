"""Biases: numbers added to the scores before the softmax, such as ALiBi's.

Like a mask, a bias is a description and not a matrix: `at(b, h, q, k)` is the number for row b,
head h, query position q and key position k.
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
    """The base of all biases: a subclass defines `at`.

    Example:
        >>> import torch
        >>> class Recency(Bias):
        ...     def at(self, b, h, q, k):
        ...         return k - q
        >>> Recency().materialise(2, 2, torch.zeros(1, 1, 2, 4))[0, 0]
        tensor([[ 0.,  1.],
                [-1.,  0.]])
    """

    def at(self, b: Index, h: Index, q: Tensor, k: Tensor) -> Tensor:
        """The numbers for index tensors that broadcast.

        Raises:
            TypeError: If the subclass does not define it.
        """
        raise TypeError(f"{type(self).__name__} must define at(b, h, q, k)")

    def check(self, B: int, H: int, T: int, S: int) -> None:
        """Raise if this bias cannot be added to scores of shape (B, H, T, S)."""

    def tile(self, q: Tensor, k: Tensor, like: Tensor) -> Float[Tensor, "#B #H ..."]:
        """The numbers for index tensors of positions, for queries `like` (B, H, ...).

        B or H is 1 if the bias does not depend on the row or the head.
        """
        ones = (1,) * len(torch.broadcast_shapes(q.shape, k.shape))
        b = torch.arange(like.shape[0], device=like.device).view(-1, 1, *ones)
        h = torch.arange(like.shape[1], device=like.device).view(-1, *ones)
        numbers = self.at(b, h, q, k).to(like.dtype)

        missing = 2 + len(ones) - numbers.dim()
        return numbers[(None,) * missing]

    def materialise(self, T: int, S: int, like: Tensor) -> Float[Tensor, "#B #H T S"]:
        """The matrix for the last T of S positions."""
        q = torch.arange(S - T, S, device=like.device).view(T, 1)
        return self.tile(q, torch.arange(S, device=like.device), like)


@dataclass(frozen=True, eq=False)
class Distance(Bias):
    """ALiBi (Press et al. 2022): a score falls with the distance, by a slope for each head.

    Args:
        slopes: (H,), as `qkv.nn.position.alibi_slopes` gives them.

    Example:
        >>> import torch
        >>> Distance(torch.tensor([0.5])).materialise(1, 3, torch.zeros(1, 1, 1, 4))
        tensor([[[[-1.0000, -0.5000, -0.0000]]]])
    """

    slopes: Float[Tensor, "H"]

    def at(self, b: Index, h: Index, q: Tensor, k: Tensor) -> Tensor:
        return -self.slopes[h] * (q - k).abs()

    def check(self, B: int, H: int, T: int, S: int) -> None:
        if self.slopes.shape != (H,):
            raise ValueError(
                f"bias: expected {H} slopes, one per head, not {tuple(self.slopes.shape)}"
            )


@dataclass(frozen=True, eq=False)
class BiasMatrix(Bias):
    """A bias given as its matrix (B, H, T, S); B, H and T may be 1."""

    values: Float[Tensor, "..."]

    def at(self, b: Index, h: Index, q: Tensor, k: Tensor) -> Tensor:
        B, H, T, S = self.values.shape
        row = q - (S - T) if T > 1 else torch.zeros_like(q)
        if B == 1:
            b = 0

        if H == 1:
            h = 0

        return self.values[b, h, row, k]

    def materialise(self, T: int, S: int, like: Tensor) -> Float[Tensor, "#B #H T S"]:
        return self.values.to(like.dtype).expand(-1, -1, T, S)

    def check(self, B: int, H: int, T: int, S: int) -> None:
        check_fits_scores("bias", self.values, (B, H, T, S), may_be_one="BHT")


def as_bias(bias: Bias | Tensor) -> Bias:
    """A bias as it is; a tensor of 2 to 4 dimensions as a `BiasMatrix`."""
    if isinstance(bias, Bias):
        return bias
    if not isinstance(bias, Tensor):
        raise TypeError(f"bias must be a Bias or a tensor, not {type(bias).__name__}")
    if not bias.is_floating_point():
        raise TypeError(
            f"bias must be floating-point numbers, not {bias.dtype}; "
            "a bool matrix of allowed pairs is a mask"
        )
    if not 2 <= bias.dim() <= 4:
        raise ValueError(f"bias must have 2, 3 or 4 dimensions, not shape {tuple(bias.shape)}")

    return BiasMatrix(four_dimensions(bias))
