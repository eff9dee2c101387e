"""The Muon optimizer: orthogonalised momentum, in float32 on a CPU and in bf16 on a GPU.

torch.optim.Muon always iterates in bf16, one matrix at a time. A CPU without bf16 instructions
emulates it, ten times slower than float32; a GPU has little to do for one matrix. Here all matrices
of one shape are iterated together, and nothing is read back from the device. On a GPU one kernel
runs before the iterations and one after them, from `qkv.training.kernels.muon_kernels`.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributed.tensor import DTensor

from qkv.training.kernels import muon_kernels


class Muon(torch.optim.Muon):
    """torch.optim.Muon with the same hyperparameters, state and update.

    As in torch's fused optimizers, the gradients are divided by the tensor `grad_scale`, and a step
    changes nothing if the tensor `found_inf` is not 0.
    """

    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.stacks: dict[tuple[int, ...], tuple[Tensor, list[Tensor]]] = {}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        assert closure is None, "the training loop computes the gradients itself"
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault(parameter.shape, []).append(parameter)

            for parameters in by_shape.values():
                by_kernels = muon_kernels.supports(parameters, self.grad_scale, self.found_inf)
                if by_kernels and not isinstance(group["lr"], Tensor):
                    self.update_on_gpu(parameters, group)
                else:
                    self.update(parameters, group)

    def update(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """Move matrices of one shape along their orthogonalised momentum."""
        gradients = self.gradients(parameters)  # (n, M, N)
        good = torch.ones((), device=gradients.device)
        if self.found_inf is not None:
            good = (self.found_inf == 0).float()

        # Momentum, which a bad step leaves as it is
        momentum = self.momentum_of(parameters)  # (n, M, N)
        momentum.lerp_(gradients, (good * (1 - group["momentum"])).to(momentum.dtype))
        if isinstance(momentum, DTensor):
            self.copy_to_states(momentum, parameters)
        if group["nesterov"]:
            momentum = gradients.lerp(momentum, group["momentum"])

        # Update
        directions = orthogonalised(
            momentum, group["ns_coefficients"], group["ns_steps"], group["eps"]
        )
        rate = good * rate_of(parameters[0], group)
        change = directions * rate.to(momentum.dtype).view(1)  # in the weights' dtype
        torch._foreach_mul_(parameters, 1 - good * (group["lr"] * group["weight_decay"]))
        torch._foreach_sub_(parameters, list(change.unbind()))

    def update_on_gpu(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """The same as `update`, which defines it, with one kernel before the iterations and after.

        The momentum differs by the rounding of float32, the weights' change by that of bf16.
        """
        gradients: list[Any] = [parameter.grad for parameter in parameters]
        x, norms = muon_kernels.update_momentum(
            self.momentum_of(parameters),
            gradients,
            1 - group["momentum"],
            nesterov=group["nesterov"],
            grad_scale=self.grad_scale,
            found_inf=self.found_inf,
        )
        x.div_(norms.clamp(min=group["eps"]).to(x.dtype).view(-1, 1, 1))
        directions = newton_schulz(x, group["ns_coefficients"], group["ns_steps"])
        muon_kernels.apply_update(
            parameters,
            directions,
            float(rate_of(parameters[0], group)),
            float(group["lr"] * group["weight_decay"]),
            self.found_inf,
        )

    def gradients(self, parameters: list[Tensor]) -> Float[Tensor, "n M N"]:
        """The divided gradients; zeros in a bad step, whose gradients may be NaN or infinite."""
        gradients = stack([parameter.grad for parameter in parameters])  # type: ignore[misc]
        if self.grad_scale is not None:
            gradients = gradients / self.grad_scale.to(gradients.dtype)
        if self.found_inf is not None:
            gradients = torch.where(self.found_inf == 0, gradients, 0.0)

        return gradients

    def momentum_of(self, parameters: list[Tensor]) -> Float[Tensor, "n M N"]:
        """The momentum of matrices of one shape, stacked; their states are its parts.

        With FSDP the stack is a copy of the states.
        """
        key = tuple(map(id, parameters))
        stacked, parts = self.stacks.get(key, (None, []))
        states = [self.state[parameter] for parameter in parameters]
        buffers = [state.get("momentum_buffer") for state in states]
        if stacked is not None and all(map(operator.is_, buffers, parts)):
            return stacked

        # The first step, or the first after the state was loaded
        for state, parameter in zip(states, parameters, strict=True):
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(parameter)

        stacked = torch.stack([state["momentum_buffer"] for state in states])
        if isinstance(stacked, DTensor):
            return stacked

        parts = list(stacked.unbind())
        self.stacks[key] = (stacked, parts)
        for state, part in zip(states, parts, strict=True):
            state["momentum_buffer"] = part

        return stacked

    def copy_to_states(self, momentum: Tensor, parameters: list[Tensor]) -> None:
        for parameter, part in zip(parameters, momentum.unbind(), strict=True):
            self.state[parameter]["momentum_buffer"].copy_(part)


def stack(matrices: list[Tensor]) -> Float[Tensor, "n M N"]:
    """torch.stack; on a GPU with one kernel instead of a copy for each matrix."""
    if not matrices[0].is_cuda or isinstance(matrices[0], DTensor):
        return torch.stack(matrices)

    stacked = matrices[0].new_empty(len(matrices), *matrices[0].shape)
    torch._foreach_copy_(list(stacked.unbind()), matrices)

    return stacked


def rate_of(matrix: Float[Tensor, "M N"], group: dict[str, Any]) -> float:
    """The learning rate of matrices of this shape: larger for tall ones."""
    rows, columns = matrix.shape
    return group["lr"] * math.sqrt(max(1, rows / columns))


def orthogonalised(
    matrices: Float[Tensor, "n M N"],
    coefficients: tuple[float, float, float],
    steps: int,
    eps: float,
) -> Float[Tensor, "n M N"]:
    """About U Vᵀ of the singular value decompositions U S Vᵀ, by Newton-Schulz iterations."""
    x = matrices.to(iteration_dtype(matrices))
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=eps)

    return newton_schulz(x, coefficients, steps)


def newton_schulz(
    x: Float[Tensor, "n M N"], coefficients: tuple[float, float, float], steps: int
) -> Float[Tensor, "n M N"]:
    """Bring the singular values of matrices, which are at most 1, near 1."""
    a, b, c = coefficients
    tall = x.shape[-2] > x.shape[-1]
    for _ in range(steps):
        gram = x.mT @ x if tall else x @ x.mT  # (n, R, R), the smaller of both
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        if tall:
            x = torch.baddbmm(x, x, polynomial, beta=a)
        else:
            x = torch.baddbmm(x, polynomial, x, beta=a)

    return x


def iteration_dtype(matrix: Tensor) -> torch.dtype:
    """bf16 on a GPU; on a CPU float32, or float64 for a float64 model."""
    if matrix.device.type != "cpu":
        return torch.bfloat16

    return torch.promote_types(matrix.dtype, torch.float32)
