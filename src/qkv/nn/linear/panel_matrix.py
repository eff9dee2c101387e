"""Int8 and int4 matrices for the compiled kernels of qkv.nn.native.

The rows of a matrix are in panels of 32, and two columns of a panel lie side by side, so that a
processor multiplies 32 rows at a time as it reads them. The whole numbers are those of the modules
int8 and int4. Inside `quantized_activations` the rows of x are whole numbers, too, of 16 bits:

    x = unit * number                                   unit = max |x| / 32767

Products are summed without rounding, in int8 over 512 columns and in int4 over a group of 32. The
product of a row does not depend on the other rows of a batch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Int8, Int16, Integer
from torch import Tensor

from qkv.nn.linear.frozen_matrix import FrozenMatrix
from qkv.nn.linear.int4 import GROUP, LARGEST, MIDDLE, round_groups
from qkv.nn.linear.int8 import round_rows
from qkv.nn.native import native_library
from qkv.nn.native.native_library import INT4, INT8, PANEL, Product, address, plain_vector

SHIFTS = range(0, 16, 4)
"""Where the four columns of a 16-bit number begin."""


class PanelMatrix(FrozenMatrix):
    """A matrix of N rows and E columns in panels, filled up with zeros to multiples of 32.

    Args:
        matrix: In float32.
    """

    weight: Tensor

    def __init__(self, matrix: Float[Tensor, "N E"]) -> None:
        super().__init__()
        self.shape = matrix.shape
        N, E = matrix.shape
        self.fill(F.pad(matrix.detach(), (0, -E % GROUP, 0, -N % PANEL)))

    def fill(self, matrix: Float[Tensor, "R W"]) -> None:
        """Round the matrix, whose sizes are multiples of 32."""
        raise NotImplementedError

    def product(self, bias: Tensor | None = None, panels: slice = slice(None)) -> Product:
        """The arguments of the kernel; `bias` must live as long as they are used."""
        raise NotImplementedError

    def multiply(
        self, x: Float[Tensor, "*n E"], bias: Float[Tensor, "R"] | None, rows: slice | None
    ) -> Float[Tensor, "*n R"]:
        kernels = native_library.library()
        if kernels is None:  # made where the kernels were compiled
            return F.linear(x, self.dequantised(rows or slice(None)), bias)

        flat = x.reshape(-1, self.shape[1]).contiguous()  # (M, E)
        if rows is None and plain_vector(bias, self.shape[0]):
            y = kernels.multiply(self.product(bias), flat, self.shape[0])
            return y.view(*x.shape[:-1], -1)

        # The panels that the rows lie in.
        first, last, _ = (rows or slice(None)).indices(self.shape[0])
        panels = slice(first // PANEL, -(-last // PANEL))
        product = self.product(panels=panels)
        y = kernels.multiply(product, flat, product.N)
        y = y[:, first - panels.start * PANEL :][:, : last - first]
        if bias is not None:
            y = y + bias

        return y.reshape(*x.shape[:-1], -1)

    def count(self, panels: slice) -> int:
        """Rows in the given panels."""
        first, last, _ = panels.indices(len(self.weight))
        return min(last * PANEL, self.shape[0]) - first * PANEL


class Int8Panels(PanelMatrix):
    """A matrix in eight bits, with one scale for each row."""

    kind = "int8"
    weight: Int8[Tensor, "P W2 32 2"]
    scale: Float[Tensor, "R"]

    def fill(self, matrix: Float[Tensor, "R W"]) -> None:
        numbers, scale = round_rows(matrix)
        self.register_buffer("weight", to_panels(numbers.to(torch.int8)))
        self.register_buffer("scale", scale)

    def product(self, bias: Tensor | None = None, panels: slice = slice(None)) -> Product:
        start = panels.start or 0
        return Product(
            N=self.count(panels),
            E=self.shape[1],
            format=INT8,
            weight=address_at(self.weight, start),
            scale=address_at(self.scale, start * PANEL),
            bias=address(bias),
        )

    def dequantised(self, rows: slice = slice(None)) -> Float[Tensor, "R E"]:
        numbers = from_panels(self.weight)[: self.shape[0], : self.shape[1]]
        return numbers[rows] * self.scale[: self.shape[0]][rows].unsqueeze(1)

    def lookup(self, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n E"]:
        numbers = self.weight[ids // PANEL, :, ids % PANEL].flatten(-2)  # (*n, W)
        return numbers[..., : self.shape[1]] * self.scale[ids].unsqueeze(-1)

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes + self.scale.nbytes


class Int4Panels(PanelMatrix):
    """A matrix in four bits, with a step and a center for each group of 32 columns of a row."""

    kind = "int4"
    weight: Int16[Tensor, "P G 4 32 2"]
    """Four columns of a group in 16 bits, as `pack` orders them."""
    groups: Int16[Tensor, "P G 2 32"]
    """The bits of steps and centers in bfloat16."""

    def fill(self, matrix: Float[Tensor, "R W"]) -> None:
        rounded = round_groups(matrix.unflatten(1, (-1, GROUP)))
        self.register_buffer("weight", pack(rounded.numbers.to(torch.int16)))
        groups = torch.cat([rounded.step, rounded.center], dim=-1)  # (R, G, 2)
        groups = groups.bfloat16().view(torch.int16).unflatten(0, (-1, PANEL))  # (P, 32, G, 2)
        self.register_buffer("groups", groups.permute(0, 2, 3, 1).contiguous())

    def product(self, bias: Tensor | None = None, panels: slice = slice(None)) -> Product:
        start = panels.start or 0
        return Product(
            N=self.count(panels),
            E=self.shape[1],
            format=INT4,
            weight=address_at(self.weight, start),
            groups=address_at(self.groups, start),
            bias=address(bias),
        )

    def dequantised(self, rows: slice = slice(None)) -> Float[Tensor, "R E"]:
        numbers = unpack(self.weight)  # (R, G, 32)
        groups = self.groups.view(torch.bfloat16).float()
        step, center = groups.permute(0, 3, 1, 2).flatten(0, 1).split(1, dim=-1)  # (R, G, 1) each
        weights = center + step * (numbers.float() - MIDDLE)

        return weights.flatten(1)[: self.shape[0], : self.shape[1]][rows].contiguous()

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes + self.groups.nbytes


def address_at(tensor: Tensor, start: int) -> int:
    """Where tensor[start] begins."""
    return tensor.data_ptr() + start * tensor.stride(0) * tensor.element_size()


def to_panels(numbers: Integer[Tensor, "R W"]) -> Integer[Tensor, "P W2 32 2"]:
    """Panels of 32 rows; two columns of a panel lie side by side."""
    return numbers.unflatten(1, (-1, 2)).unflatten(0, (-1, PANEL)).transpose(1, 2).contiguous()


def from_panels(panels: Integer[Tensor, "P W2 32 2"]) -> Integer[Tensor, "R W"]:
    """The matrix of `to_panels`."""
    return panels.transpose(1, 2).flatten(0, 1).flatten(1)


def pack(numbers: Int[Tensor, "R G 32"]) -> Int16[Tensor, "P G 4 32 2"]:
    """Panels of numbers from 0 to 15, four in 16 bits.

    The halves of a 32-bit word have columns 2i and 2i + 1 in their lowest bits, above them those 8,
    16 and 24 columns further: one shift unpacks two columns of all rows of a vector.
    """
    R, G, _ = numbers.shape
    words = torch.zeros(R, G, 4, 2, dtype=torch.int16)
    for quarter, shift in zip(numbers.to(torch.int16).split(8, dim=2), SHIFTS, strict=True):
        words |= quarter.unflatten(2, (4, 2)) << shift  # the highest bit becomes the sign

    return words.unflatten(0, (-1, PANEL)).permute(0, 2, 3, 1, 4).contiguous()


def unpack(words: Int16[Tensor, "P G 4 32 2"]) -> Int16[Tensor, "R G 32"]:
    """The numbers of `pack`."""
    rows = words.permute(0, 3, 1, 2, 4).flatten(0, 1)  # (R, G, 4, 2)
    return torch.stack([rows >> shift & LARGEST for shift in SHIFTS], dim=2).flatten(2)
