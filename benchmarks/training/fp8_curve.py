"""The loss of a GPT trained with `--fp8` beside bf16: same weights, same batches.

The output layer is in FP8, and so are the feed-forward layers, from the width at which that pays.

On a GPU with FP8:
    python -m benchmarks.training.fp8_curve
    python -m benchmarks.training.fp8_curve --data my.txt --steps 500
"""

from __future__ import annotations

import io
import tempfile
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console

from benchmarks.harness import machine
from qkv.models import GPTConfig
from qkv.training.logging.metrics import read_metrics
from qkv.training.run_config import DataConfig, OptimizerConfig, RunConfig
from qkv.training.train import train


@dataclass
class Options:
    data: str = "python"
    """A file, or the embedded python."""
    steps: int = 200
    vocabulary: int = 16384
    width: int = 768
    depth: int = 4
    batch_tokens: int = 16384
    rows: int = 10
    """Lines of the table."""
    only_bf16: bool = False
    """Train in the usual precision both times: how far two equal runs are apart."""


def losses(options: Options, folder: Path, *, fp8: bool) -> tuple[dict[int, float], float]:
    """Training losses by step, and the last validation loss."""
    config = GPTConfig(
        vocabulary=options.vocabulary,
        context=512,
        width=options.width,
        depth=options.depth,
        heads=options.width // 64,
    )
    run = RunConfig(
        out=folder,
        steps=options.steps,
        batch_tokens=options.batch_tokens,
        fp8=fp8,
        compile=False,
        sample_every=0,
    )
    optimizer = OptimizerConfig(learning_rate=6e-4, warmup=max(1, options.steps // 5))
    console = Console(file=io.StringIO())
    result = train(config, DataConfig(data=(options.data,)), optimizer, run, console=console)
    assert result is not None
    assert result.validation_loss is not None
    by_step = {row["step"]: row["loss"] for row in read_metrics(folder) if "loss" in row}

    return by_step, result.validation_loss


def main(options: Options) -> None:
    print(f"{options.depth} blocks of width {options.width}, {options.data}; {machine()}")
    with tempfile.TemporaryDirectory() as folder:
        bf16, bf16_validation = losses(options, Path(folder, "bf16"), fp8=False)
        fp8, fp8_validation = losses(options, Path(folder, "fp8"), fp8=not options.only_bf16)

    print(f"  {'step':>10} {'bf16':>10} {'FP8':>10}")
    for step in sorted(bf16)[:: max(1, len(bf16) // options.rows)]:
        print(f"  {step:10} {bf16[step]:10.4f} {fp8[step]:10.4f}")

    print(f"  {'validation':>10} {bf16_validation:10.4f} {fp8_validation:10.4f}")


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
