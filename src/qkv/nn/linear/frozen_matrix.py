"""What the matrices of few bits have in common: they are for inference on a CPU, and not saved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

active: ContextVar[bool] = ContextVar("active", default=False)


@contextmanager
def quantized_activations() -> Iterator[None]:
    """Let matrices of few bits round their inputs, too, while the context is open: it is faster."""
    token = active.set(True)
    try:
        yield
    finally:
        active.reset(token)


class FrozenMatrix(nn.Module):
    """A matrix of N rows and E columns in few bits, for a CPU.

    By default it becomes float32 again for a product, which then is linear in x and has a gradient.
    Inside `quantized_activations`, which generation and evaluation open, `multiply` computes it.
    """

    kind = ""
    """Name of the number format."""
    of_model = ""
    """The format of the whole model, for errors: an int4 model has an int8 embedding."""
    shape: torch.Size

    def linear(
        self,
        x: Float[Tensor, "*n E"],
        bias: Float[Tensor, "R"] | None = None,
        rows: slice | None = None,
    ) -> Float[Tensor, "*n R"]:
        """x W^T + b for all rows of W, or for some of them."""
        if not x.is_cpu or x.dtype != torch.float32:
            raise ValueError(
                f"model: {self.format} weights multiply float32 numbers on a CPU, "
                f"not {x.dtype} on {x.device}"
            )

        needs_gradient = torch.is_grad_enabled() and x.requires_grad
        if active.get() and not needs_gradient and x.numel():
            return self.multiply(x, bias, rows)

        return F.linear(x, self.dequantised(rows or slice(None)), bias)

    def multiply(
        self, x: Float[Tensor, "*n E"], bias: Float[Tensor, "R"] | None, rows: slice | None
    ) -> Float[Tensor, "*n R"]:
        """The product with x rounded, which may not be empty."""
        raise NotImplementedError

    def dequantised(self, rows: slice = slice(None)) -> Float[Tensor, "R E"]:
        """The matrix, or some of its rows, in float32."""
        raise NotImplementedError

    def lookup(self, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n E"]:
        """Rows of the matrix, as an embedding gives them."""
        return self.dequantised()[ids]

    @property
    def format(self) -> str:
        """What an error calls these weights."""
        return self.of_model or self.kind

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        raise NotImplementedError

    def train(self, mode: bool = True) -> FrozenMatrix:
        if mode:
            raise TypeError(
                f"model: {self.format} weights are frozen; train the float32 model, "
                f"and make {self.format} of it again"
            )

        return super().train(mode)

    def _save_to_state_dict(self, *_: object) -> None:
        raise TypeError(
            f"model: {self.format} weights are not saved; save the float32 model, "
            f"and make {self.format} of it when loaded"
        )
