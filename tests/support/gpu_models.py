"""Small GPTs of many kinds on a GPU, whose fused kernels are compared with the plain code."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

NO_BIASES = {"qkv_bias": False, "output_bias": False, "feed_forward_bias": False}
KINDS: dict[str, dict[str, Any]] = {
    "gpt-2": {"activation": "gelu_tanh"},
    "exact": {"activation": "gelu", **NO_BIASES},
    "llama": {
        "position": "rotary", "norm": "rms", "activation": "swiglu", "heads": 6, "kv_heads": 2,
        "hidden": 100, **NO_BIASES,
    },
}  # fmt: skip


def names_of(modules: Sequence[ModuleType]) -> dict[str, Any]:
    """All names of some modules, also those that are imported at first use."""
    everything: dict[str, Any] = {}
    for module in modules:
        everything |= vars(module)
        for name in getattr(module, "__all__", ()):
            everything[name] = getattr(module, name)

    return everything


def small_gpt(qkv: Any, kind: dict[str, Any], context: int, dtype: torch.dtype) -> Any:
    """A GPT whose norms and biases do something, with weights that bfloat16 has."""
    torch.manual_seed(3)
    settings = {"vocabulary": 300, "context": context, "width": 96, "depth": 2, "heads": 3} | kind
    model = qkv.GPT(qkv.GPTConfig(**settings)).cuda().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)

    return model.to(torch.bfloat16).to(dtype)
