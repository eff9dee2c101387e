"""Mixed precision: float32 weights, gradients and optimizer states, computation in bf16 or fp16.

FSDP's mixed precision does the same, so one GPU and many give equal results. bf16 has float32's
range and 8 bits of precision; fp16 has 11 bits and a narrow range, so its loss is scaled up before
the backward pass.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from qkv.training.run_config import Precision

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


class Cast(nn.Module):
    """A module that computes with its weights cast to a dtype; gradients reach the weights."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.module = module
        self.dtype = dtype

    def forward(self, *inputs: Any) -> Any:
        weights = {name: weight.to(self.dtype) for name, weight in self.module.named_parameters()}
        return functional_call(self.module, weights, inputs)


def best_precision(device: torch.device) -> Precision:
    """bf16 on a GPU that supports it, fp16 on an older one, float32 on a CPU."""
    if device.type != "cuda":
        return "float32"
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return "bf16"

    return "fp16"


def check_precision(precision: Precision, device: torch.device) -> str | None:
    """Raise if this CPU cannot compute with a half precision; return a warning if it is slow."""
    if device.type != "cpu" or precision == "float32":
        return None

    slowdown = cpu_slowdown(DTYPES[precision])
    if slowdown is None:
        raise ValueError(f"precision: this CPU cannot compute with {precision}; use float32")
    if slowdown < NOTICEABLE:
        return None

    return (
        f"Matrix products in {precision} take {slowdown:.1f} times as long as in float32 "
        "on this CPU, which has no fast instructions for it; --precision float32 is faster here."
    )


PROBE = """
import time, torch
torch.set_num_threads(1)
seconds = {}
for dtype in (torch.float32, torch.DTYPE):
    x = torch.ones(256, 256, dtype=dtype)
    total = float((x @ x).float().sum())
    rounds = []
    for _ in range(7):
        begin = time.perf_counter()
        x @ x
        rounds.append(time.perf_counter() - begin)
    seconds[dtype] = min(rounds)
print(total, seconds[torch.DTYPE] / seconds[torch.float32])
"""
NOTICEABLE = 1.3
"""The smallest slowdown that is worth a warning; less may be noise."""


@cache
def cpu_slowdown(dtype: torch.dtype) -> float | None:
    """Time of a matrix product on this CPU relative to float32; None if the CPU cannot compute it.

    A child process tries it: some processors announce instructions that kill the process.
    """
    program = PROBE.replace("DTYPE", str(dtype).removeprefix("torch."))
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        return None

    total, slowdown = map(float, result.stdout.split())
    if total != 256.0**3:
        return None

    return slowdown
