"""Int8 weights for inference on a CPU: a matrix in a quarter of the memory, its weights frozen.

Row n of a matrix W is W[n] = scale[n] * numbers[n], with whole numbers from -127 to 127, so the
error of a weight is at most scale / 2. There are two ways to multiply.

By default W becomes float32 again, so that the product is linear in x and has a gradient.

Inside `quantized_activations`, which generation and evaluation open, bytes are multiplied as they
are read. One row of x times W is the sum of the columns of W, each times its number of x, and
PyTorch has a fast kernel for such sums: an embedding bag. The columns are cut into pieces of up to
192 bytes. Of several rows each is rounded, to two digits from -63 to 63:

    x = unit * (digit + next_digit / 126)               unit = max |x| / 63
    x W^T = unit * (digits W^T + next_digits W^T / 126)

Processors multiply bytes several times as fast as float32 and sum them without rounding. Both
digits of a row share one reading of the matrix. The digits have seven bits, so that two products
fit into 16 bits, in which processors without VNNI add them. The product of a row does not depend
on the other rows of a batch.
"""

from __future__ import annotations

import warnings
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Int8, Int32, UInt8
from torch import Tensor, nn

from qkv.nn.linear.frozen_matrix import FrozenMatrix

LARGEST = 127  # the largest whole number of a matrix
DIGIT = 63.0  # the largest digit of a row
SECOND = 2 * DIGIT  # values of the second digit of one value of the first
SMALLEST = torch.tensor(1e-30)  # instead of the unit of a row of zeros
LONGEST_PIECE = 192  # shorter pieces are spread more evenly over the cores
ZERO = 128  # the byte of the whole number 0

multiply_bytes = torch.ops.quantized.linear_dynamic.default
sum_bags = torch.ops.quantized.embedding_bag_byte_rowwise_offsets.default


class Int8Matrix(FrozenMatrix):
    """A matrix of N rows and E columns as bytes, for a CPU.

    Its rows are in G groups of P, the length of a piece.
    """

    kind = "int8"
    pieces: UInt8[Tensor, "GE Z"]
    """P bytes, the step 1 and the offset -128 in each of G * E rows."""
    scale: Float[Tensor, "N"]
    """What each row's whole numbers are multiplied by."""
    ends: Float[Tensor, "2 E"]
    """Two rows that let the operator, which finds the range of all rows, take -64 to 63."""

    def __init__(self, matrix: Float[Tensor, "N E"]) -> None:
        super().__init__()
        self.shape = matrix.shape
        self.piece = piece_length(len(matrix))
        numbers, scale = round_rows(matrix.detach())
        self.register_buffer("scale", scale)
        self.register_buffer("pieces", cut(numbers, self.piece))
        ends = torch.tensor([[-DIGIT - 1], [DIGIT]]).repeat(1, matrix.shape[1])
        self.register_buffer("ends", ends)
        self.packed: dict[tuple[int, int], Any] = {}
        """The rows that are multiplied by several rows, in the order of the processor's kernel."""

    @property
    def by_group(self) -> UInt8[Tensor, "G E Z"]:
        return self.pieces.unflatten(0, (-1, self.shape[1]))

    @property
    def numbers(self) -> Int8[Tensor, "N E"]:
        """The whole numbers of the matrix."""
        bytes_ = self.by_group[..., : self.piece].transpose(1, 2).flatten(0, 1)
        return whole(bytes_[: self.shape[0]])

    @property
    def nbytes(self) -> int:
        packed = sum(last - first for first, last in self.packed) * self.shape[1]
        return self.pieces.nbytes + packed + self.scale.nbytes + self.ends.nbytes

    def multiply(
        self, x: Float[Tensor, "*n E"], bias: Float[Tensor, "R"] | None, rows: slice | None
    ) -> Float[Tensor, "*n R"]:
        flat = x.reshape(-1, self.shape[1])  # (M, E)
        product = self.sum_columns if len(flat) == 1 else self.multiply_digits
        return product(flat, bias, rows).view(*x.shape[:-1], -1)

    def sum_columns(
        self, x: Float[Tensor, "1 E"], bias: Float[Tensor, "R"] | None, rows: slice | None
    ) -> Float[Tensor, "1 R"]:
        """One row: columns times their numbers of x, summed as they are read."""
        G = len(self.pieces) // self.shape[1]
        numbers, begins = bags(G, self.shape[1])
        weights = x.expand(G, -1).flatten()
        sums = sum_bags(
            self.pieces, numbers, begins, per_sample_weights=weights, include_last_offset=True
        )  # (G, P)

        sums = sums.view(1, -1)[:, : self.shape[0]]
        scale = self.scale
        if rows is not None:
            sums = sums[:, rows]
            scale = scale[rows]

        return sums * scale if bias is None else torch.addcmul(bias, sums, scale)

    def multiply_digits(
        self, x: Float[Tensor, "M E"], bias: Float[Tensor, "R"] | None, rows: slice | None
    ) -> Float[Tensor, "M R"]:
        """Several rows: each is rounded to two digits."""
        packed = self.prepacked(rows or slice(None))
        M = len(x)
        unit = torch.add(SMALLEST, x.abs().amax(-1, keepdim=True), alpha=1 / DIGIT)  # (M, 1)

        scaled = x / unit
        first = scaled.round()
        second = scaled.sub_(first).mul_(SECOND)
        digits = torch.cat([first, second, self.ends])  # (2M + 2, E)
        try:
            products = multiply_bytes(digits, packed, True)  # (2M + 2, R)
        except RuntimeError:  # a row is not finite, and its unit makes the product nan or infinite
            products = multiply_bytes(digits.nan_to_num_(0, 0, 0), packed, True)

        joined = torch.add(products[:M], products[M : 2 * M], alpha=1 / SECOND)  # (M, R)
        return joined.mul_(unit) if bias is None else torch.addcmul(bias, joined, unit)

    def prepacked(self, rows: slice) -> Any:
        """Rows of the matrix in the order of the processor's kernel, from their first use on."""
        first, last, _ = rows.indices(self.shape[0])
        if (first, last) not in self.packed:
            numbers = self.numbers[first:last].contiguous()
            self.packed[first, last] = prepack(numbers, self.scale[first:last])

        return self.packed[first, last]

    def lookup(self, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n E"]:
        numbers = whole(self.by_group[ids // self.piece, :, ids % self.piece])  # (*n, E)
        return numbers * self.scale[ids].unsqueeze(-1)

    def dequantised(self, rows: slice = slice(None)) -> Float[Tensor, "R E"]:
        return self.numbers[rows] * self.scale[rows].unsqueeze(1)


class Int8Embedding(nn.Module):
    """An embedding whose vectors are computed from bytes when they are looked up."""

    def __init__(self, weight: FrozenMatrix) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n E"]:
        return self.weight.lookup(ids)


def round_rows(matrix: Float[Tensor, "N E"]) -> tuple[Float[Tensor, "N E"], Float[Tensor, "N"]]:
    """Each row as whole numbers from -127 to 127 and their scale; a row of zeros has scale 1."""
    scale = matrix.abs().amax(1) / LARGEST
    scale = scale.where(scale != 0, 1)
    return (matrix / scale.unsqueeze(1)).round(), scale


def piece_length(rows: int) -> int:
    """A multiple of 16, for aligned memory, that divides the rows if there is one."""
    for length in range(LONGEST_PIECE, 63, -16):
        if rows % length == 0:
            return length

    return min(LONGEST_PIECE, -(-rows // 16) * 16)


def cut(numbers: Float[Tensor, "N E"], piece: int) -> UInt8[Tensor, "GE Z"]:
    """Columns in pieces of bytes, each with its step and offset: byte = number + 128."""
    N = len(numbers)
    full = F.pad(numbers, (0, 0, 0, -N % piece))  # (G * P, E)
    columns = full.unflatten(0, (-1, piece)).transpose(1, 2).flatten(0, 1)  # (G * E, P)
    bytes_ = (columns + ZERO).to(torch.uint8)
    step_and_offset = torch.tensor([1.0, -ZERO]).view(torch.uint8)  # (8,)

    return torch.cat([bytes_, step_and_offset.expand(len(bytes_), -1)], dim=1)


def whole(bytes_: UInt8[Tensor, "*n"]) -> Int8[Tensor, "*n"]:
    """The whole numbers of bytes."""
    return (bytes_ ^ ZERO).view(torch.int8)


@lru_cache(maxsize=64)
def bags(groups: int, E: int) -> tuple[Int32[Tensor, "GE"], Int32[Tensor, "B"]]:
    """The pieces that are summed for each group, and where each sum begins."""
    count = groups * E
    return torch.arange(count, dtype=torch.int32), torch.arange(0, count + 1, E, dtype=torch.int32)


def prepack(numbers: Int8[Tensor, "N E"], scale: Float[Tensor, "N"]) -> Any:
    """A matrix in the memory order that the processor's kernel reads."""
    zeros = torch.zeros(len(scale), dtype=torch.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch announces another class for quantized tensors
        tensor = torch._make_per_channel_quantized_tensor(numbers, scale.double(), zeros, 0)

    return torch.ops.quantized.linear_prepack(tensor, None)
