"""The Muon optimizer: orthogonalised momentum, in float32 on a CPU and in bf16 on a GPU.

torch.optim.Muon always iterates in bf16. A CPU without bf16 instructions emulates it, ten times
slower than float32.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


class Muon(torch.optim.Muon):
    """torch.optim.Muon with the same hyperparameters, state and update; only the dtype differs."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        assert closure is None, "the training loop computes the gradients itself"
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(parameter, group)

    def update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        """Move one matrix along its orthogonalised momentum."""
        gradient = parameter.grad
        assert gradient is not None

        # Momentum
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(
                gradient, memory_format=torch.preserve_format
            )

        momentum = state["momentum_buffer"]
        momentum.lerp_(gradient, 1 - group["momentum"])
        if group["nesterov"]:
            momentum = gradient.lerp(momentum, group["momentum"])

        # Update
        direction = orthogonalised(
            momentum, group["ns_coefficients"], group["ns_steps"], group["eps"]
        )
        rows, columns = parameter.shape
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(direction, alpha=-group["lr"] * math.sqrt(max(1, rows / columns)))


def orthogonalised(
    matrix: Float[Tensor, "M N"], coefficients: tuple[float, float, float], steps: int, eps: float
) -> Float[Tensor, "M N"]:
    """About U Vᵀ of the singular value decomposition U S Vᵀ, by Newton-Schulz iterations."""
    a, b, c = coefficients
    x = matrix.to(iteration_dtype(matrix))
    tall = matrix.shape[0] > matrix.shape[1]
    if tall:
        x = x.T  # (R, C) with R <= C, so that the Gram matrix is the small one

    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T  # (R, R)
        polynomial = torch.addmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.addmm(x, polynomial, x, beta=a)

    if tall:
        x = x.T

    return x


def iteration_dtype(matrix: Tensor) -> torch.dtype:
    """bf16 on a GPU; on a CPU float32, or float64 for a float64 model."""
    if matrix.device.type != "cpu":
        return torch.bfloat16

    return torch.promote_types(matrix.dtype, torch.float32)
