"""Sparse attention: how time and memory grow with the length, forward and backward.

    python -m benchmarks.attention.sparse

On a CPU every measurement has its own process, so that the peak memory is that of one length. The
exponent is the slope of log(time) or log(memory) against log(length): 1 is linear, 2 quadratic.
On a GPU the Sparse Transformer's patterns also run in FlexAttention, compiled for the same mask.
"""

from __future__ import annotations

import json
import math
import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
import tyro

from benchmarks.harness import clock, machine
from qkv.nn.attention import Causal, Fixed, Mask, Strided, Window, attend

HEADS, HEAD_WIDTH = 8, 64


KINDS = ("dense", "window", "strided", "fixed")
FLEX = ("strided flex", "fixed flex")
ON_GPU = torch.cuda.is_available()


@dataclass
class Options:
    window: int = 256
    batch: int = 16 if ON_GPU else 1
    """Rows; enough to fill a GPU, so that its time is work and not waiting."""
    lengths: tuple[int, ...] = (2048, 4096, 8192, 16384)
    kinds: tuple[str, ...] = KINDS + FLEX if ON_GPU else KINDS
    """What to measure; the speed of each is that of the first times a factor."""
    device: str = "cuda" if ON_GPU else "cpu"
    one: str = ""
    """Measure one "length kind" in this process and print JSON; used by the benchmark itself."""


def mask_of(kind: str, window: int, length: int) -> Mask:
    stride = 2 ** round(math.log2(length) / 2)
    return {
        "dense": Causal(),
        "window": Causal() & Window(window),
        "strided": Causal() & Strided(stride),
        "fixed": Causal() & Fixed(stride, 1),
    }[kind]


def measure(kind: str, length: int, options: Options) -> dict[str, float]:
    """Seconds and bytes of one pass forward and backward."""
    on_gpu = options.device.startswith("cuda")
    dtype = torch.bfloat16 if on_gpu else torch.float32
    pattern, *flex = kind.split()
    mask = mask_of(pattern, options.window, length)
    kernel = flex[0] if flex else None
    shape = (options.batch, HEADS, length, HEAD_WIDTH)
    tensors = [torch.randn(shape, device=options.device, dtype=dtype) for _ in range(4)]
    gradient = tensors.pop()
    query, key, value = (x.requires_grad_() for x in tensors)

    def run() -> None:
        query.grad = key.grad = value.grad = None
        attend(query, key, value, mask=mask, kernel=kernel)[0].backward(gradient)

    return measure_on_gpu(run) if on_gpu else measure_on_cpu(run)


def measure_on_cpu(run: Callable[[], None]) -> dict[str, float]:
    before = peak()
    run()
    memory = peak() - before
    seconds = min(clock(run, "cpu") for _ in range(7))  # others' work only adds
    return {"seconds": seconds, "bytes": memory}


def measure_on_gpu(run: Callable[[], None]) -> dict[str, float]:
    run()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    once = clock(run, "cuda")
    memory = torch.cuda.max_memory_allocated() - before
    passes = max(1, min(10, round(0.05 / once)))

    def several() -> None:
        for _ in range(passes):
            run()

    seconds = min(clock(several, "cuda") / passes for _ in range(10))
    return {"seconds": seconds, "bytes": memory}


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def measure_alone(kind: str, length: int, options: Options) -> dict[str, float]:
    """The same in a process of its own."""
    command = [sys.executable, "-m", __spec__.name, "--one", f"{length} {kind}"]
    command += ["--window", str(options.window), "--batch", str(options.batch)]
    command += ["--device", options.device]
    timed = run_alone(command)

    # With every large block returned at once, the peak is what is held and not what the allocator
    # keeps.
    weighed = run_alone(command, MALLOC_MMAP_THRESHOLD_="65536", MALLOC_TRIM_THRESHOLD_="65536")
    return {"seconds": timed["seconds"], "bytes": weighed["bytes"]}


def run_alone(command: list[str], **environment: str) -> dict[str, float]:
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, **environment}
    )
    return json.loads(done.stdout.splitlines()[-1])


def exponent(lengths: tuple[int, ...], values: list[float]) -> float:
    """Slope of the least-squares line through the logarithms."""
    x = [math.log(n) for n in lengths]
    y = [math.log(v) for v in values]
    return statistics.linear_regression(x, y).slope


def main(options: Options) -> None:
    if options.one:
        length, kind = options.one.split(maxsplit=1)
        print(json.dumps(measure(kind, int(length), options)))
        return

    print(
        f"sparse attention, forward + backward, batch {options.batch}, "
        f"{HEADS} heads of {HEAD_WIDTH}; {machine()}"
    )
    # On a GPU a process counts its own peak.
    run = measure if options.device.startswith("cuda") else measure_alone
    seconds: dict[str, list[float]] = {kind: [] for kind in options.kinds}
    memory: dict[str, list[float]] = {kind: [] for kind in options.kinds}
    for length in options.lengths:
        for kind in options.kinds:
            result = run(kind, length, options)
            seconds[kind].append(result["seconds"])
            memory[kind].append(max(result["bytes"], 1))
            faster = seconds[options.kinds[0]][-1] / result["seconds"]
            print(
                f"{length:6} positions  {kind:12} {result['seconds'] * 1e3:10.2f} ms "
                f"{result['bytes'] / 2**20:8.1f} MiB, {faster:5.2f} x {options.kinds[0]}",
                flush=True,
            )

    for kind in options.kinds if len(options.lengths) > 1 else ():
        print(
            f"{kind:12} exponent of time {exponent(options.lengths, seconds[kind]):.2f}, "
            f"of memory {exponent(options.lengths, memory[kind]):.2f}"
        )


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
