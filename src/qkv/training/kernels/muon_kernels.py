"""What Muon computes around its iterations on a GPU, in two Triton kernels.

PyTorch's operations stack the gradients, divide and mask them, update the momentum, round and scale
it, and later scale the directions, decay the weights and subtract: each reads and writes all
matrices once. Here one kernel does everything before the iterations and one everything after them.

Gradients and weights are tensors of their own, which are not stacked: a kernel finds them by a
table of their addresses. The table is copied to the device when an address has changed, from pinned
memory, so that the host never waits. No sum depends on the order in which programs run.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from jaxtyping import BFloat16, Float, Int
from torch import Tensor, nn
from torch.autograd.graph import increment_version

try:
    import triton
    import triton.language as tl
except ImportError:  # PyTorch brings it along only where there is a GPU to use it
    triton = None

BLOCK = 4096
"""Elements per program."""
WARPS = 8
READ = 16
"""Bytes that a thread reads at once, if they are aligned."""
TABLES = 1024
"""Tables of addresses that are kept; a step needs two for each shape of a parameter group."""
AMPERE = (8, 0)
"""The first compute capability with bf16."""


def supports(parameters: Sequence[Tensor], *scalars: Tensor | None) -> bool:
    """Whether the kernels can update these parameters, by scalars on the same device.

    During the capture of a CUDA graph they cannot, since a new table must not be copied then.
    """
    device = parameters[0].device
    if triton is None or device.type != "cuda" or device.index != torch.cuda.current_device():
        return False
    if torch.cuda.get_device_capability(device) < AMPERE:
        return False
    if torch.cuda.is_current_stream_capturing():
        return False
    if not all(scalar is None or scalar.device == device for scalar in scalars):
        return False

    tensors = [*parameters, *(parameter.grad for parameter in parameters)]
    return all(is_plain(tensor, device) for tensor in tensors)


def is_plain(tensor: Tensor | None, device: torch.device) -> bool:
    """True for float32 numbers one after the other; False for a DTensor."""
    if tensor is None or type(tensor) not in (Tensor, nn.Parameter):
        return False

    return tensor.dtype == torch.float32 and tensor.is_contiguous() and tensor.device == device


def update_momentum(
    momentum: Float[Tensor, "n M N"],
    gradients: Sequence[Float[Tensor, "M N"]],
    share: float,
    *,
    nesterov: bool,
    grad_scale: Float[Tensor, ""] | None = None,
    found_inf: Tensor | None = None,
) -> tuple[BFloat16[Tensor, "n M N"], Float[Tensor, "n"]]:
    """Move the momentum towards the gradients, in place, and round it to bf16.

    Args:
        momentum: The momentum of matrices of one shape.
        gradients: Their gradients.
        share: How far the momentum moves: 1 minus Muon's hyperparameter.
        nesterov: Return a momentum that has moved by `share` once more.
        grad_scale: What the gradients are divided by.
        found_inf: If it is not 0, the gradients count as zeros and the momentum stays unchanged.

    Returns:
        The matrices to orthogonalise, and their norms.
    """
    size = gradients[0].numel()
    grid = (triton.cdiv(size, BLOCK), len(gradients))
    addresses, aligned = addresses_of(gradients)
    rounded = torch.empty_like(momentum, dtype=torch.bfloat16)
    norms = torch.empty(grid[::-1], dtype=torch.float32, device=momentum.device)
    momentum_kernel[grid](
        momentum, addresses, rounded, norms,
        scalar(grad_scale, 1.0, momentum), scalar(found_inf, 0.0, momentum), share, size,
        NESTEROV=nesterov, ALIGNED=aligned, BLOCK=BLOCK, num_warps=WARPS,
    )  # fmt: skip
    increment_version(momentum)

    return rounded, torch.linalg.vector_norm(norms, dim=1)


def apply_update(
    parameters: Sequence[Float[Tensor, "M N"]],
    directions: BFloat16[Tensor, "n M N"],
    rate: float,
    decay: float,
    found_inf: Tensor | None = None,
) -> None:
    """Set each matrix to (1 - decay) * matrix - rate * direction, unless `found_inf` is not 0."""
    size = parameters[0].numel()
    grid = (triton.cdiv(size, BLOCK), len(parameters))
    addresses, aligned = addresses_of(parameters)
    update_kernel[grid](
        addresses, directions.contiguous(), scalar(found_inf, 0.0, directions), rate, decay, size,
        ALIGNED=aligned, BLOCK=BLOCK, num_warps=WARPS,
    )  # fmt: skip
    increment_version(parameters)


def scalar(value: Tensor | None, default: float, like: Tensor) -> Float[Tensor, ""]:
    """The tensor, or one with the default value."""
    if value is not None:
        return value

    return torch.full((), default, device=like.device)


def addresses_of(tensors: Sequence[Tensor]) -> tuple[Int[Tensor, "n"], bool]:
    """The addresses of the tensors, on their device, and whether all are aligned."""
    device = tensors[0].device
    stream = torch.cuda.current_stream(device).cuda_stream
    addresses = tuple(tensor.data_ptr() for tensor in tensors)
    aligned = all(address % READ == 0 for address in addresses)

    return address_table(device, stream, addresses), aligned


@lru_cache(TABLES)
def address_table(
    device: torch.device, stream: int, addresses: tuple[int, ...]
) -> Int[Tensor, "n"]:
    """A table on the device for kernels of the stream, which is the current one.

    Each stream has a table of its own: a kernel of another one could run before the copy.
    """
    return torch.tensor(addresses, dtype=torch.int64, device="cpu", pin_memory=True).to(
        device, non_blocking=True
    )


if triton is not None:

    @triton.jit
    def matrix_at(addresses, number, ALIGNED: tl.constexpr):  # type: ignore[no-untyped-def]
        """A pointer to the matrix with this number."""
        matrix = tl.load(addresses + number).to(tl.pointer_type(tl.float32))
        if ALIGNED:
            matrix = tl.multiple_of(matrix, 16)

        return matrix

    @triton.jit
    def momentum_kernel(  # type: ignore[no-untyped-def]
        momentum, addresses, rounded, norms, grad_scale, found_inf, share, size,
        NESTEROV: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """A block of one matrix: its momentum, the same in bf16, and the norm of that."""
        block = tl.program_id(0)
        number = tl.program_id(1)
        begin = block.to(tl.int64) * BLOCK
        stacked = number.to(tl.int64) * size + begin
        i = tl.arange(0, BLOCK)
        inside = i < size - begin
        good = tl.load(found_inf).to(tl.float32) == 0
        factor = 1.0 / tl.load(grad_scale).to(tl.float32)

        # In a bad step gradients and divisor may be NaN or infinite
        old = tl.load(momentum + stacked + i, mask=inside, other=0.0)
        matrix = matrix_at(addresses, number, ALIGNED)
        gradient = tl.load(matrix + begin + i, mask=inside, other=0.0)
        gradient = tl.where(good, gradient * factor, 0.0)
        new = tl.where(good, old + (gradient - old) * share, old)
        tl.store(momentum + stacked + i, new, mask=inside & good)
        if NESTEROV:
            new += (gradient - new) * share

        # Beyond the end all numbers are zeros
        result = new.to(tl.bfloat16)
        tl.store(rounded + stacked + i, result, mask=inside)
        result = result.to(tl.float32)
        norm = tl.sqrt(tl.sum(result * result, 0))
        tl.store(norms + number * tl.num_programs(0) + block, norm)

    @triton.jit
    def update_kernel(  # type: ignore[no-untyped-def]
        addresses, directions, found_inf, rate, decay, size,
        ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """A block of one matrix, which a bad step does not write."""
        number = tl.program_id(1)
        begin = tl.program_id(0).to(tl.int64) * BLOCK
        stacked = number.to(tl.int64) * size + begin
        i = tl.arange(0, BLOCK)
        inside = i < size - begin
        good = tl.load(found_inf).to(tl.float32) == 0
        matrix = matrix_at(addresses, number, ALIGNED)
        old = tl.load(matrix + begin + i, mask=inside, other=0.0)
        direction = tl.load(directions + stacked + i, mask=inside, other=0.0).to(tl.float32)
        new = old * (1 - decay) - rate * direction
        tl.store(matrix + begin + i, new, mask=inside & good)
