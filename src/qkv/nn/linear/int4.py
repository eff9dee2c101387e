"""Int4 weights for inference on a CPU: a matrix in a sixth of the memory, its weights frozen.

A row of the matrix is cut into groups of 32 weights. Each group has its own step and center, and
each weight a whole number from 0 to 15:

    weight = center + step * (number - 8)

Two numbers share a byte, in the order that the processor's kernel reads. Step and center are
bfloat16; in `quantized_activations` so are the inputs and outputs of a product, which sums in
float32.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import BFloat16, Float, Int, UInt8
from torch import Tensor

from qkv.nn.linear.frozen_matrix import FrozenMatrix

GROUP = 32  # weights that share a step and a center
BLOCK = 64  # the kernel's blocks of rows divide it
LARGEST = 15
MIDDLE = 8
SHARES = (1.0, 0.92, 0.84)  # of a group's range: clipped ends cost less than a wide step

product = torch.ops.aten._weight_int4pack_mm_for_cpu.default


class Int4Matrix(FrozenMatrix):
    """A matrix of N rows and E columns in four bits, for a CPU.

    Rows and columns are filled up with zeros to multiples of 64 and 32.

    Args:
        matrix: In float32.
    """

    kind = "int4"
    packed: UInt8[Tensor, "P H"]
    """Two numbers a byte: P is N, and H half of E, filled up."""
    groups: BFloat16[Tensor, "G P 2"]
    """The step and the center of each group of each row."""

    def __init__(self, matrix: Float[Tensor, "N E"]) -> None:
        super().__init__()
        self.shape = matrix.shape
        N, E = matrix.shape
        self.missing = -E % GROUP
        full = F.pad(matrix.detach(), (0, self.missing, 0, -N % BLOCK))  # (P, G * 32)
        rounded = round_groups(full.unflatten(1, (-1, GROUP)))

        numbers = rounded.numbers.flatten(1).int()
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(numbers, 1)
        groups = torch.cat([rounded.step, rounded.center], dim=-1)  # (P, G, 2)
        self.register_buffer("packed", packed)
        # Not a buffer, which model.to(torch.float32) would convert.
        self.groups = groups.transpose(0, 1).bfloat16().contiguous()

    def multiply(
        self, x: Float[Tensor, "*n E"], bias: Float[Tensor, "R"] | None, rows: slice | None
    ) -> Float[Tensor, "*n R"]:
        """The product with x rounded to bfloat16."""
        flat = x.reshape(-1, self.shape[1]).bfloat16()  # (M, E)
        if self.missing:
            flat = F.pad(flat, (0, self.missing))

        y = product(flat, self.packed, GROUP, self.groups)  # (M, P)
        if rows is not None or y.shape[1] > self.shape[0]:
            y = y[:, : self.shape[0]][:, rows or slice(None)]  # (M, R)

        result = y.float() if bias is None else torch.add(bias, y)
        return result.view(*x.shape[:-1], -1)

    def dequantised(self, rows: slice = slice(None)) -> Float[Tensor, "R E"]:
        numbers = unpack(self.packed).unflatten(1, (-1, GROUP))  # (P, G, 32)
        step, center = self.groups.float().transpose(0, 1).split(1, dim=-1)  # (P, G, 1) each
        weights = center + step * (numbers.float() - MIDDLE)

        return weights.flatten(1)[: self.shape[0], : self.shape[1]][rows].contiguous()

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes + self.groups.nbytes


class RoundedGroups(NamedTuple):
    """Groups of weights as whole numbers from 0 to 15, with their steps and centers."""

    numbers: Float[Tensor, "P G 32"]
    step: Float[Tensor, "P G 1"]
    center: Float[Tensor, "P G 1"]


def round_groups(weights: Float[Tensor, "P G 32"]) -> RoundedGroups:
    """For each group the rounding with the smallest squared error among `SHARES` of its range."""
    best: RoundedGroups | None = None
    smallest = torch.empty(0)
    for share in SHARES:
        rounded = round_to(weights, share)
        actual = rounded.center + rounded.step * (rounded.numbers - MIDDLE)
        error = (actual - weights).square().sum(-1, keepdim=True)  # (P, G, 1)
        if best is None:
            best = rounded
            smallest = error
            continue

        better = error < smallest
        chosen = zip(rounded, best, strict=True)
        best = RoundedGroups(*(new.where(better, old) for new, old in chosen))
        smallest = error.minimum(smallest)

    assert best is not None
    return best


def round_to(weights: Float[Tensor, "P G 32"], share: float) -> RoundedGroups:
    """Round to 16 levels in a share of each group's range, which contains 0."""
    low = weights.amin(-1, keepdim=True).clamp(max=0) * share
    high = weights.amax(-1, keepdim=True).clamp(min=0) * share
    step = ((high - low) / LARGEST).bfloat16().float()
    step = step.where(step > 0, 1)
    center = (low + MIDDLE * step).bfloat16().float()
    numbers = ((weights - center) / step + MIDDLE).round().clamp(0, LARGEST)

    return RoundedGroups(numbers, step, center)


def unpack(packed: UInt8[Tensor, "P H"]) -> UInt8[Tensor, "P E"]:
    """The numbers of a packed matrix."""
    E = 2 * packed.shape[1]
    pairs = torch.stack([packed & LARGEST, packed >> 4], dim=-1)
    blocks = pairs.view(-1, BLOCK * E)
    numbers = torch.empty_like(blocks)
    numbers[:, packed_order(E)] = blocks

    return numbers.view(-1, E)


@lru_cache(maxsize=16)
def packed_order(E: int) -> Int[Tensor, "BE"]:
    """Where each half byte of 64 packed rows belongs, as the index into row after row.

    The order depends on the processor, so it is read from packed digits of the indices.
    """
    index = torch.arange(BLOCK * E).view(BLOCK, E)
    order = torch.zeros(BLOCK * E, dtype=torch.int64)
    for shift in range(0, (BLOCK * E).bit_length(), 4):
        digits = (index >> shift & LARGEST).int()
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(digits, 1)
        pairs = torch.stack([packed & LARGEST, packed >> 4], dim=-1)
        order += pairs.flatten().long() << shift

    return order
