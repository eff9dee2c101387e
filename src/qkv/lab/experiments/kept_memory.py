"""Memory that a forward pass keeps for the backward pass, counted."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


def kept_bytes(run: Callable[[], object], skip: Callable[[Tensor], bool]) -> int:
    """Bytes that a forward pass keeps for the backward pass.

    Tensors that share their memory count once. On the meta device nothing is computed.

    Args:
        run: The forward pass; returns what depends on it.
        skip: True for tensors that do not count, such as weights.
    """
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        if not skip(tensor):
            kept[storage_of(tensor)] = tensor  # held here, so that no other takes its place

        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        result = run()

    total = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    del result
    return total


def storage_of(tensor: Tensor) -> int:
    """Identifies the memory of a tensor, also on the meta device, where addresses are 0."""
    return tensor.untyped_storage()._cdata
