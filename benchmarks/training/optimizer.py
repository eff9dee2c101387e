"""Time of a training step of the demo's GPT with each optimizer, and of the optimizer alone.

On this CPU, and as on a CPU without AVX-512 and bf16:
    python -m benchmarks.training.optimizer
    ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 python -m benchmarks.training.optimizer

On a GPU:
    python -m benchmarks.training.optimizer --preset gpt2

The peer is torch.optim.Muon, whose iterations always run in bf16.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import tyro

from benchmarks.harness import Table, compare
from qkv.data.batches.batch import Batch
from qkv.lab import demo
from qkv.models import GPTConfig, build, preset
from qkv.training.objective import Objective
from qkv.training.optimizer import Optimizers
from qkv.training.run_config import OptimizerConfig
from qkv.training.step import gradients_of
from qkv.training.systems.distributed import World
from qkv.training.systems.precision import best_precision

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ROWS = 16
ROUNDS = 15


@dataclass
class Options:
    preset: str = "demo"
    """A name of `qkv presets`, or demo: the GPT of `make demo`."""


def size_of(options: Options) -> GPTConfig:
    config = demo.WRITER_CONFIG if options.preset == "demo" else preset(options.preset)
    assert isinstance(config, GPTConfig)
    return replace(config, dropout=0.0, attention_dropout=0.0)


def torch_muon(optimizers: Optimizers) -> None:
    """Replace our Muon by torch's, with the same parameters."""
    _, ours = optimizers.optimizers
    optimizers.optimizers[1] = torch.optim.Muon(ours.param_groups)


def steps_of(kind: str, size: GPTConfig) -> tuple[Callable[[], None], Callable[[], None]]:
    """A whole training step, and the optimizer's step alone on unchanged gradients."""
    with DEVICE:
        model = build(size).train()
    objective = Objective(model, precision=best_precision(DEVICE))
    optimizers = Optimizers(
        model, OptimizerConfig(optimizer="adamw" if kind == "adamw" else "muon")
    )
    if kind == "muon of torch, bf16":
        torch_muon(optimizers)
    optimizers.set_rate(1e-3, 1e-3)
    ids = torch.randint(size.vocabulary, (ROWS, size.context + 1), device=DEVICE)
    batch = Batch(ids=ids[:, :-1].contiguous(), targets=ids[:, 1:].contiguous())
    world = World(DEVICE)
    bad = torch.zeros((), device=DEVICE)
    divisor = torch.ones((), device=DEVICE)

    def update() -> None:
        optimizers.step(bad, divisor)

    def whole() -> None:
        optimizers.zero_gradients()
        gradients_of(objective, batch, world)
        update()

    whole()
    return whole, update


def main(options: Options) -> None:
    kinds = ["adamw", "muon", "muon of torch, bf16"]
    size = size_of(options)
    steps = {kind: steps_of(kind, size) for kind in kinds}
    capability = torch.backends.cpu.get_cpu_capability()
    table = Table(f"{options.preset}, {ROWS} x {size.context} tokens, {capability}")
    for row, part in (("a training step", 0), ("the optimizer alone", 1)):
        table.add(row, compare({kind: steps[kind][part] for kind in kinds}, ROUNDS, DEVICE.type))
    table.print()


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
