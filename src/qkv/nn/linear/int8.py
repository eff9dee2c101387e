"""A matrix in a quarter of the memory, one byte a number. The bytes are frozen; what they multiply
stays float32.

A product is the sum of the matrix's columns, each times its number of x:   W x = W[:, 0] x[0] +
W[:, 1] x[1] + ... So the matrix lies column by column, each cut into pieces of up to 192 numbers. A
piece has its own offset and step: its smallest number is byte 0 and its largest byte 255, so number
= offset + step * byte is at most step / 2 wrong. PyTorch has a fast kernel for weighted sums of
such pieces: an embedding bag. Before, the rows are brought to one size, so that a piece need not
stretch for a large one; their sizes are put back after the product.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Int32, UInt8
from torch import Tensor, nn

LONGEST_PIECE = (
    192  # longer saves little memory; shorter pieces are spread more evenly over the cores
)
FEW_ROWS = 24  # with more, it is faster to make float32 numbers of the bytes first


class Int8Matrix(nn.Module):
    """A matrix of N rows and E columns as bytes, for a CPU. Its rows lie in G groups of P, the
    length of a piece.
    """

    packed: UInt8[
        Tensor, "GE Z"
    ]  # a piece of P bytes, its step and its offset in each of G * E rows
    size: Float[Tensor, "N"]  # of each row: the root of its mean square

    def __init__(self, matrix: Float[Tensor, "N E"]) -> None:
        super().__init__()
        self.shape = matrix.shape
        self.piece = length_of_piece(len(matrix))
        matrix = matrix.detach()
        size = matrix.square().mean(1).sqrt()
        size = size.where(size > 0, 1)  # a row of zeros
        full = F.pad(
            matrix / size.unsqueeze(1), (0, 0, 0, -len(matrix) % self.piece)
        )  # (G * P, E): zeros fill up
        pieces = full.unflatten(0, (-1, self.piece)).transpose(1, 2).flatten(0, 1)  # (G * E, P)
        self.register_buffer(
            "packed", torch.ops.quantized.embedding_bag_byte_prepack(pieces.contiguous())
        )
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
                f"model: int8 weights multiply float32 numbers on a CPU, not {x.dtype} on {x.device}"
            )

        first, last, _ = (rows or slice(None)).indices(self.shape[0])
        groups = range(
            first // self.piece, -(-last // self.piece)
        )  # those that hold the rows asked for
        flat = x.reshape(-1, self.shape[1])  # (M, E)
        few = 0 < len(flat) <= FEW_ROWS and not (torch.is_grad_enabled() and x.requires_grad)
        product = self.summed(flat, groups) if few else self.multiplied(flat, groups)  # (M, G * P)
        size = self.size
        if rows is not None or product.shape[1] > len(size):
            before = groups.start * self.piece
            product, size = (
                product[:, first - before : last - before],
                size[first:last],
            )  # (M, R), (R,)

        product = product * size if bias is None else torch.addcmul(bias, product, size)

        return product.view(*x.shape[:-1], last - first)

    def summed(self, x: Float[Tensor, "M E"], groups: range) -> Float[Tensor, "M GP"]:
        """Pieces times their numbers of x, summed as they are read."""
        (M, E), G = x.shape, len(groups)
        places, begins = bags(groups, M, E)
        weights = x.expand(G, M, E).flatten()
        sums = torch.ops.quantized.embedding_bag_byte_rowwise_offsets(
            self.packed, places, begins, per_sample_weights=weights, include_last_offset=True
        )  # (G * M, P)

        return (
            sums.view(1, -1) if M == 1 else sums.view(G, M, self.piece).transpose(0, 1).flatten(1)
        )

    def multiplied(self, x: Float[Tensor, "M E"], groups: range) -> Float[Tensor, "M GP"]:
        """Group by group: the float32 numbers of one are few enough to stay in the processor's
        cache.
        """
        return torch.cat(
            [x @ numbers(pieces) for pieces in self.by_group[groups.start : groups.stop]], dim=1
        )

    @property
    def by_group(self) -> UInt8[Tensor, "G E Z"]:
        return self.packed.unflatten(0, (-1, self.shape[1]))

    def lookup(self, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n E"]:
        """Rows of the matrix, as an embedding gives them."""
        group, place = ids // self.piece, ids % self.piece
        found, ends = (
            self.by_group[group, :, place],
            self.by_group[group, :, self.piece :],
        )  # (*n, E), (*n, E, 8)
        step, offset = ends.view(torch.float32).unbind(-1)  # (*n, E) each

        return (offset + step * found) * self.size[ids].unsqueeze(-1)

    def dequantised(self) -> Float[Tensor, "N E"]:
        pieces = numbers(self.packed).unflatten(0, (-1, self.shape[1]))  # (G, E, P)
        return pieces.transpose(1, 2).flatten(0, 1)[: self.shape[0]] * self.size.unsqueeze(1)

    def train(self, mode: bool = True) -> Int8Matrix:
        if mode:
            raise TypeError(
                "model: int8 weights are frozen; train the float32 model, and make int8 of it again"
            )

        return super().train(mode)

    def _save_to_state_dict(self, *_: object) -> None:
        raise TypeError(
            "model: int8 weights are not saved; save the float32 model, and make int8 of it when loaded"
        )


class Int8Embedding(nn.Module):
    """One vector for each word, made of its bytes when it is asked for."""

    def __init__(self, weight: Int8Matrix) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n E"]:
        return self.weight.lookup(ids)


def length_of_piece(rows: int) -> int:
    """A multiple of 16, as processors like it, that divides the rows if there is one."""
    fitting = (length for length in range(LONGEST_PIECE, 63, -16) if rows % length == 0)
    return next(fitting, min(LONGEST_PIECE, -(-rows // 16) * 16))


def numbers(pieces: UInt8[Tensor, "E Z"]) -> Float[Tensor, "E P"]:
    unpacked: Tensor = torch.ops.quantized.embedding_bag_byte_unpack(pieces)
    return unpacked


@lru_cache(maxsize=64)
def bags(groups: range, M: int, E: int) -> tuple[Int32[Tensor, "GME"], Int32[Tensor, "B"]]:
    """Which pieces are summed for each group and each of M rows, and where each sum begins. The
    same every step.
    """
    pieces = torch.arange(groups.start * E, groups.stop * E, dtype=torch.int32)  # (G * E,)
    places = pieces.view(-1, 1, E).expand(-1, M, -1).flatten()
    return places, torch.arange(0, len(places) + 1, E, dtype=torch.int32)
