"""Whether PyTorch transforms the operations of a call. Kernels of our own are unknown to it."""

from __future__ import annotations

import torch
from torch.autograd import forward_ad


def in_a_transform() -> bool:
    """True in torch.compile, traces, vmap, forward-mode derivatives, and modes.

    A mode sees every operation: a counter of FLOPs, for example, knows PyTorch's.
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return True
    if torch._C._are_functorch_transforms_active() or torch._C._len_torch_dispatch_stack():
        return True

    return forward_ad._current_level >= 0
