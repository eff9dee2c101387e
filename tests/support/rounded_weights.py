"""A float32 model with the weights of its quantized copy, which must give nearly the same."""

from __future__ import annotations

from typing import Any

import torch

from qkv.nn.linear.frozen_matrix import FrozenMatrix


def with_rounded_weights(model: Any, small: Any) -> Any:
    """Copy the dequantised weights of `small` into `model`, and return it."""
    parts = dict(small.named_modules())
    with torch.no_grad():
        for path, part in model.named_modules():
            rounded = getattr(parts[path], "weight", None)
            if isinstance(rounded, FrozenMatrix):
                part.weight.copy_(rounded.dequantised())

    return model
