"""Where the time of a training step goes: its kernels by group, and matrix products by shape.

python -m benchmarks.training.kernel_profile
python -m benchmarks.training.kernel_profile --preset gpt2-xl --batch 16 --depth 4

The options are those of benchmarks.training.train. The step is not captured as a CUDA graph, so
that every kernel is known by the operation that launched it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

import torch
import tyro
from torch.profiler import ProfilerActivity, profile

from benchmarks.harness import machine
from benchmarks.training.train import Options, OurStep, clock, size_of

GROUPS = {
    "attention, forward": r"(fmha|flash|cudnn|sdpa).*(fprop|fwd)|flash_fwd",
    "attention, backward": r"(fmha|flash|cudnn|sdpa).*(bprop|bwd|dgrad|dO_O|convert)|flash_bwd",
    "matrix products": r"gemm|cutlass|nvjet|sm90_xmma|splitK|multiply_",
    "loss": r"loss_of_row|slopes_of",
    "optimizer": r"Adam|multi_tensor|FusedAdam|lpnorm",
    "copies": r"Memcpy|Memset|copy_kernel|CatArray",
    "compiled reductions (norms, bias sums)": r"triton_(red|per)",
    "compiled pointwise": r"triton_poi",
}
STEPS = 4
NOT_KERNELS = ("ProfilerStep", "Activity Buffer", "## Call", "Optimizer.", "Torch-Compiled")
"""Ranges that the profiler lists beside the kernels inside them."""


@dataclass
class ProfileOptions(Options):
    rows: int = 40
    """Kernels and products to print."""


def group_of(kernel: str) -> str:
    for group, pattern in GROUPS.items():
        if re.search(pattern, kernel, re.IGNORECASE):
            return group

    return "other"


def flops(operation: str, shapes: list[Any]) -> float:
    """Operations of aten::mm or aten::addmm, from the shapes of its inputs."""
    first = 1 if operation == "aten::addmm" else 0
    (M, K), (_, N) = shapes[first : first + 2]
    return 2.0 * M * N * K


def print_groups(events: list[Any], rows: int) -> None:
    """Milliseconds of a step by group, and its longest kernels."""
    groups: dict[str, float] = defaultdict(float)
    kernels: dict[str, list[float]] = defaultdict(list)
    for event in events:
        groups[group_of(event.name)] += event.device_time / STEPS / 1e3
        kernels[event.name].append(event.device_time / 1e3)

    print(f"  {sum(groups.values()):8.2f} ms in all kernels")
    for group, took in sorted(groups.items(), key=lambda item: -item[1]):
        print(f"  {took:8.2f} ms {group}")

    longest = sorted(kernels.items(), key=lambda item: -sum(item[1]))
    for name, times in longest[:rows]:
        count = len(times) / STEPS
        print(f"  {sum(times) / STEPS:8.3f} ms {count:6.1f} x {group_of(name)[:12]:12} {name[:90]}")


def print_products(profiler: Any, rows: int) -> None:
    """Matrix products by shape, with their speed."""
    averages = profiler.key_averages(group_by_input_shape=True)
    products = [event for event in averages if event.key in ("aten::mm", "aten::addmm")]
    for event in sorted(products, key=lambda event: -event.self_device_time_total)[:rows]:
        took = event.self_device_time_total / event.count  # microseconds
        speed = flops(event.key, event.input_shapes) / max(took, 1e-9) / 1e6
        count = event.count / STEPS
        shapes = [shape for shape in event.input_shapes if shape]
        print(
            f"  {took * count / 1e3:8.3f} ms {count:6.1f} x {took:8.1f} us "
            f"{speed:6.0f} TFLOP/s {event.key} {shapes}"
        )


def main(options: ProfileOptions) -> None:
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda")
    size = size_of(options)
    ids = torch.randint(size.vocabulary, (options.batch, size.context + 1), device=device)
    step = OurStep(replace(options, cuda_graph=False), device)
    if options.fp8:
        step.use_fp8()

    clock(step, [ids], 3)
    took = clock(step, [ids], 8)
    print(f"{options.preset}, {options.batch} x {size.context}; {machine()}: {took * 1e3:.2f} ms")

    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities, record_shapes=True) as profiler:
        for _ in range(STEPS):
            step(ids)

        torch.cuda.synchronize()

    kernels = [
        event
        for event in profiler.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
        and not event.name.startswith(NOT_KERNELS)
    ]
    print_groups(kernels, options.rows)
    print_products(profiler, options.rows)


if __name__ == "__main__":
    main(tyro.cli(ProfileOptions, description=__doc__))
