"""Half precision: weights, gradients and the optimizer's memory stay float32; the model computes with a short copy.

This is what FSDP's mixed precision does too, so one GPU and many give the same. bf16 has float32's range and 8 bits of
precision; fp16 has 11 bits and a narrow range, so its loss is scaled up before the backward pass.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from typing import Any, Literal

import torch
from torch import nn
from torch.func import functional_call

Precision = Literal["float32", "bf16", "fp16"]
DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Cast(nn.Module):
    """A module that computes with its weights cast to a dtype; gradients arrive at the weights themselves."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.module, self.dtype = module, dtype

    def forward(self, *inputs: Any) -> Any:
        short = {name: weight.to(self.dtype) for name, weight in self.module.named_parameters()}
        return functional_call(self.module, short, inputs)


def best_precision(device: torch.device) -> Precision:
    """bf16 on a GPU that computes with it, fp16 on an older one, float32 on a CPU."""
    if device.type != "cuda":
        return "float32"
    return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"


def check_precision(precision: Precision, device: torch.device) -> None:
    """Refuse a half precision that this machine announces but cannot compute with."""
    if device.type == "cpu" and precision != "float32" and not cpu_computes_with(DTYPES[precision]):
        raise ValueError(f"precision: this CPU cannot compute with {precision}; use float32")


@cache
def cpu_computes_with(dtype: torch.dtype) -> bool:
    """Tried in a child process: some processors announce instructions that kill the process that uses them."""
    name = str(dtype).removeprefix("torch.")
    product = f"import torch; x = torch.ones(64, 64, dtype=torch.{name}); print(float((x @ x).sum()))"
    tried = subprocess.run([sys.executable, "-c", product], capture_output=True, text=True, check=False)
    return tried.returncode == 0 and float(tried.stdout) == 64.0**3
