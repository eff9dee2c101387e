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
from torch import Tensor, nn
from torch.func import functional_call

from qkv.nn.recurrent import restore_own_weights
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
        self.recurrent = [part for part in module.modules() if isinstance(part, nn.RNNBase)]

    def forward(self, *inputs: Any) -> Any:
        result = functional_call(self.module, cast_weights(self.module, self.dtype), inputs)
        for cells in self.recurrent:
            restore_own_weights(cells)

        return result


class CastTogether(torch.autograd.Function):
    """Casts of many tensors, and of their gradients, with a kernel or two instead of one each."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.dtypes = [weight.dtype for weight in weights]
        casts = [torch.empty_like(weight, dtype=dtype) for weight in weights]
        torch._foreach_copy_(casts, weights)

        return tuple(casts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        results: list[Tensor | None] = [None, *gradients]
        sources: list[Tensor] = []
        targets: list[Tensor] = []
        for number, dtype in enumerate(ctx.dtypes, start=1):
            gradient = results[number]
            if gradient is not None:
                sources.append(gradient)
                targets.append(torch.empty_like(gradient, dtype=dtype))
                results[number] = targets[-1]

        if sources:
            torch._foreach_copy_(targets, sources)

        return tuple(results)


def cast_weights(module: nn.Module, dtype: torch.dtype) -> dict[str, Tensor]:
    """The parameters of a module by name, cast; their gradients reach the parameters.

    Compiled code fuses the single casts with what follows them.
    """
    named = dict(module.named_parameters())
    if torch.compiler.is_compiling():
        return {name: weight.to(dtype) for name, weight in named.items()}

    # All results of one function get gradients, so frozen weights are cast by another call.
    casts: dict[str, Tensor] = {}
    for trained in (True, False):
        chosen = {name: x for name, x in named.items() if x.requires_grad == trained}
        if chosen:
            casts |= zip(chosen, CastTogether.apply(dtype, *chosen.values()), strict=True)

    return casts


def best_precision(device: torch.device) -> Precision:
    """bf16 on a GPU that supports it, fp16 on an older one, float32 on a CPU."""
    if device.type != "cuda":
        return "float32"
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return "bf16"

    return "fp16"


def use_tf32(device: torch.device) -> None:
    """Let a GPU multiply float32 matrices in TF32.

    PyTorch's setting holds for CPUs as well, where it selects kernels that are slower on those with
    AMX, so it is left alone there.
    """
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")


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
