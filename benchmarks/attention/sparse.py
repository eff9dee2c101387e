"""Sparse attention: how time and memory grow with the length, forward and backward.

    python -m benchmarks.attention.sparse

On a CPU every measurement has its own process, so that the peak memory is that of one length. The
exponent is the slope of log(time) or log(memory) against log(length): 1 is linear, 2 quadratic.
"""

from __future__ import annotations

import json
import math
import os
import resource
import statistics
import subprocess
import sys
from dataclasses import dataclass

import torch
import tyro

from benchmarks.harness import clock, machine
from qkv.nn.attention import Causal, Fixed, Mask, Strided, Window, attend

HEADS, HEAD_WIDTH = 8, 64


@dataclass
class Options:
    window: int = 256
    batch: int = 16 if torch.cuda.is_available() else 1
    """Rows; enough to fill a GPU, so that its time is work and not waiting."""
    lengths: tuple[int, ...] = (2048, 4096, 8192, 16384)
    device: str = "cuda" if torch.cuda.is_available() else "cpu"
    one: str = ""
    """Measure one "kind length" in this process and print JSON; used by the benchmark itself."""


def mask_of(kind: str, window: int, length: int) -> Mask:
    stride = 2 ** round(math.log2(length) / 2)
    return {
        "dense": Causal(),
        "window": Causal() & Window(window),
        "strided": Causal() & Strided(stride),
        "fixed": Causal() & Fixed(stride, 1),
    }[kind]


def measure(kind: str, length: int, options: Options) -> dict[str, float]:
    device, dtype = (
        options.device,
        torch.bfloat16 if options.device.startswith("cuda") else torch.float32,
    )
    mask = mask_of(kind, options.window, length)
    tensors = [
        torch.randn(options.batch, HEADS, length, HEAD_WIDTH, device=device, dtype=dtype)
        for _ in range(3)
    ]
    query, key, value = (x.requires_grad_() for x in tensors)

    def run() -> None:
        query.grad = key.grad = value.grad = None
        attend(query, key, value, mask=mask)[0].sum().backward()

    if not device.startswith("cuda"):
        before = peak()
        run()
        memory = peak() - before
        return {
            "seconds": min(clock(run, device) for _ in range(7)),
            "bytes": memory,
        }  # others' work only adds
    run()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    memory = torch.cuda.max_memory_allocated() - before
    seconds = min(clock(lambda: [run() for _ in range(10)], device) / 10 for _ in range(10))
    return {"seconds": seconds, "bytes": memory}


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def run_alone(command: list[str], **environment: str) -> dict[str, float]:
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, **environment}
    )
    return json.loads(done.stdout.splitlines()[-1])


def exponent(lengths: tuple[int, ...], values: list[float]) -> float:
    """Slope of the least-squares line through the logarithms."""
    x, y = [math.log(n) for n in lengths], [math.log(v) for v in values]
    return statistics.linear_regression(x, y).slope


def main(options: Options) -> None:
    if options.one:
        kind, length = options.one.split()
        print(json.dumps(measure(kind, int(length), options)))
        return
    print(
        f"sparse attention, forward + backward, batch {options.batch}, "
        f"{HEADS} heads of {HEAD_WIDTH}; {machine()}"
    )
    for kind in ("window", "strided", "fixed", "dense"):
        results = []
        for length in options.lengths:
            if options.device.startswith("cuda"):  # counts its own peak
                results.append(measure(kind, length, options))
                continue
            command = [
                sys.executable,
                "-m",
                __spec__.name,
                "--one",
                f"{kind} {length}",
                "--window",
                str(options.window),
            ]
            command += ["--device", options.device, "--batch", str(options.batch)]
            timed = run_alone(command)
            # With every large block returned at once, the peak is what is held and not what the
            # allocator keeps.
            weighed = run_alone(
                command, MALLOC_MMAP_THRESHOLD_="65536", MALLOC_TRIM_THRESHOLD_="65536"
            )
            results.append({"seconds": timed["seconds"], "bytes": weighed["bytes"]})
        time_slope = exponent(options.lengths, [r["seconds"] for r in results])
        memory_slope = exponent(options.lengths, [max(r["bytes"], 1) for r in results])
        print(f"{kind:8} exponent of time {time_slope:.2f}, of memory {memory_slope:.2f}")
        for length, r in zip(options.lengths, results, strict=True):
            print(
                f"  {length:6} positions {r['seconds'] * 1e3:10.2f} ms "
                f"{r['bytes'] / 2**20:10.1f} MiB",
                flush=True,
            )


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
