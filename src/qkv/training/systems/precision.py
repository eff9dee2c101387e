"""Half precision: weights, gradients and the optimizer's memory stay float32; the model computes
with a short copy.

This is what FSDP's mixed precision does too, so one GPU and many give the same. bf16 has float32's
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
    """A module that computes with its weights cast to a dtype; gradients arrive at the weights
    themselves.
    """

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


def check_precision(precision: Precision, device: torch.device) -> str | None:
    """Refuse a half precision that this CPU announces but cannot compute with; a sentence if it is
    slow here.
    """
    if device.type != "cpu" or precision == "float32":
        return None

    slowdown = cpu_slowdown(DTYPES[precision])
    if slowdown is None:
        raise ValueError(f"precision: this CPU cannot compute with {precision}; use float32")
    if slowdown < NOTICEABLE:
        return None

    return (
        f"Matrix products in {precision} take {slowdown:.1f} times as long as in float32 on this CPU, "
        "which has no fast instructions for it; --precision float32 is faster here."
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
"""A slowdown from which on a person is told; below it may be noise."""


@cache
def cpu_slowdown(dtype: torch.dtype) -> float | None:
    """Time of a matrix product on this CPU relative to float32; None where it does not compute.

    A child process tries it: some processors announce instructions that kill the process that uses
    them.
    """
    program = PROBE.replace("DTYPE", str(dtype).removeprefix("torch."))
    tried = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    if tried.returncode != 0:
        return None

    total, slowdown = map(float, tried.stdout.split())

    return slowdown if total == 256.0**3 else None
