"""Models that have names and shapes but no numbers, on PyTorch's device "meta"."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import init
from torch.overrides import TorchFunctionMode

DRAWS = (init.normal_, init.uniform_, init.kaiming_uniform_, Tensor.normal_, Tensor.uniform_)
"""What the initial weights of qkv's and of PyTorch's layers are drawn with."""


class SkippedDraws(TorchFunctionMode):
    """Leaves tensors without memory as they are when random numbers would be drawn into them."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in DRAWS:
            tensor = args[0] if args else (kwargs or {})["tensor"]
            if tensor.is_meta:
                return tensor

        return func(*args, **(kwargs or {}))


@contextmanager
def without_numbers() -> Iterator[None]:
    """Build models that need no memory for their weights.

    Initial weights are not drawn: on this device PyTorch draws in Python, and imports its compiler
    before the first draw, which takes longer than loading a small model.
    """
    with torch.device("meta"), SkippedDraws():
        yield
