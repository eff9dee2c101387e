"""Int8 weights: a matrix in a quarter of the memory. Weights are frozen; inputs stay float32.

A product is the sum of the matrix's columns, each times its number of x:

    W x = W[:, 0] x[0] + W[:, 1] x[1] + ...

So the matrix is stored column by column, each cut into pieces of up to 192 numbers. A piece has its
own offset and step: its smallest number is byte 0 and its largest byte 255, so the error of
number = offset + step * byte is at most step / 2. PyTorch has a fast kernel for weighted sums of
such pieces: an embedding bag. Rows are first divided by their root mean square, so that a piece
need not stretch for a large row; the product is multiplied by it again.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Int32, UInt8
from torch import Tensor, nn

# Longer pieces save little memory; shorter ones are spread more evenly over the cores.
LONGEST_PIECE = 192
FEW_ROWS = 24  # with more rows, it is faster to convert the bytes to float32 first


class Int8Matrix(nn.Module):
    """A matrix of N rows and E columns as bytes, for a CPU.

    Its rows are in G groups of P, the length of a piece.
    """

    packed: UInt8[Tensor, "GE Z"]
    """A piece of P bytes, its step and its offset in each of G * E rows."""
    size: Float[Tensor, "N"]
    """The root mean square of each row."""

    def __init__(self, matrix: Float[Tensor, "N E"]) -> None:
        super().__init__()
        self.shape = matrix.shape
        self.piece = piece_length(len(matrix))

        # Divide by the size of each row, which is 1 for a row of zeros.
        matrix = matrix.detach()
        size = matrix.square().mean(1).sqrt()
        size = size.where(size > 0, 1)
        scaled = matrix / size.unsqueeze(1)

        # Cut columns into pieces: (N, E) -> (G * P, E), filled with zeros -> (G * E, P).
        full = F.pad(scaled, (0, 0, 0, -len(matrix) % self.piece))
        pieces = full.unflatten(0, (-1, self.piece)).transpose(1, 2).flatten(0, 1)
        packed = torch.ops.quantized.embedding_bag_byte_prepack(pieces.contiguous())
        self.register_buffer("packed", packed)
        self.register_buffer("size", size)

    def linear(
        self,
        x: Float[Tensor, "*n E"],
        bias: Float[Tensor, "R"] | None = None,
        rows: slice | None = None,
    ) -> Float[Tensor, "*n R"]:
        """x W^T + b for all rows of W, or for some of them."""
        if not x.is_cpu or x.dtype != torch.float32:
            raise ValueError(
                "model: int8 weights multiply float32 numbers on a CPU, "
                f"not {x.dtype} on {x.device}"
            )

        # The groups that contain the rows.
        first, last, _ = (rows or slice(None)).indices(self.shape[0])
        groups = range(first // self.piece, -(-last // self.piece))

        flat = x.reshape(-1, self.shape[1])  # (M, E)
        needs_gradient = torch.is_grad_enabled() and x.requires_grad
        if 0 < len(flat) <= FEW_ROWS and not needs_gradient:
            product = self.sum_pieces(flat, groups)  # (M, G * P)
        else:
            product = self.multiply(flat, groups)  # (M, G * P)

        size = self.size
        if rows is not None or product.shape[1] > len(size):
            before = groups.start * self.piece
            product = product[:, first - before : last - before]  # (M, R)
            size = size[first:last]  # (R,)

        product = product * size if bias is None else torch.addcmul(bias, product, size)

        return product.view(*x.shape[:-1], last - first)

    def sum_pieces(self, x: Float[Tensor, "M E"], groups: range) -> Float[Tensor, "M GP"]:
        """Pieces times their numbers of x, summed as they are read."""
        M, E = x.shape
        G = len(groups)
        pieces, begins = bags(groups, M, E)
        weights = x.expand(G, M, E).flatten()
        sums = torch.ops.quantized.embedding_bag_byte_rowwise_offsets(
            self.packed, pieces, begins, per_sample_weights=weights, include_last_offset=True
        )  # (G * M, P)
        if M == 1:
            return sums.view(1, -1)

        return sums.view(G, M, self.piece).transpose(0, 1).flatten(1)

    def multiply(self, x: Float[Tensor, "M E"], groups: range) -> Float[Tensor, "M GP"]:
        """Group by group: the float32 numbers of one fit into the processor's cache."""
        by_group = self.by_group[groups.start : groups.stop]
        return torch.cat([x @ unpacked(pieces) for pieces in by_group], dim=1)

    @property
    def by_group(self) -> UInt8[Tensor, "G E Z"]:
        return self.packed.unflatten(0, (-1, self.shape[1]))

    def lookup(self, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n E"]:
        """Rows of the matrix, as an embedding gives them."""
        group = ids // self.piece
        numbers = self.by_group[group, :, ids % self.piece]  # (*n, E)
        ends = self.by_group[group, :, self.piece :]  # (*n, E, 8)
        step, offset = ends.view(torch.float32).unbind(-1)  # (*n, E) each

        return (offset + step * numbers) * self.size[ids].unsqueeze(-1)

    def dequantised(self) -> Float[Tensor, "N E"]:
        """The matrix in float32."""
        pieces = unpacked(self.packed).unflatten(0, (-1, self.shape[1]))  # (G, E, P)
        return pieces.transpose(1, 2).flatten(0, 1)[: self.shape[0]] * self.size.unsqueeze(1)

    def train(self, mode: bool = True) -> Int8Matrix:
        if mode:
            raise TypeError(
                "model: int8 weights are frozen; train the float32 model, and make int8 of it again"
            )

        return super().train(mode)

    def _save_to_state_dict(self, *_: object) -> None:
        raise TypeError(
            "model: int8 weights are not saved; save the float32 model, "
            "and make int8 of it when loaded"
        )


class Int8Embedding(nn.Module):
    """An embedding whose vectors are computed from bytes when they are looked up."""

    def __init__(self, weight: Int8Matrix) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n E"]:
        return self.weight.lookup(ids)


def piece_length(rows: int) -> int:
    """A multiple of 16, for aligned memory, that divides the rows if there is one."""
    for length in range(LONGEST_PIECE, 63, -16):
        if rows % length == 0:
            return length

    return min(LONGEST_PIECE, -(-rows // 16) * 16)


def unpacked(pieces: UInt8[Tensor, "E Z"]) -> Float[Tensor, "E P"]:
    """Pieces in float32."""
    numbers: Tensor = torch.ops.quantized.embedding_bag_byte_unpack(pieces)
    return numbers


@lru_cache(maxsize=64)
def bags(groups: range, M: int, E: int) -> tuple[Int32[Tensor, "GME"], Int32[Tensor, "B"]]:
    """The pieces that are summed for each group and each of M rows, and where each sum begins."""
    pieces = torch.arange(groups.start * E, groups.stop * E, dtype=torch.int32)  # (G * E,)
    repeated = pieces.view(-1, 1, E).expand(-1, M, -1).flatten()
    return repeated, torch.arange(0, len(repeated) + 1, E, dtype=torch.int32)
