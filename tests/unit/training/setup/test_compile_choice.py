"""Compiling pays in long runs of large steps only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.training.run_config import RunConfig
from qkv.training.setup import compile_choice, cost
from qkv.training.setup.compile_choice import compile_seconds, compiling_pays, pays_in_run
from qkv.training.setup.training_task import assemble
from qkv.training.systems.distributed import World
from support.small_training import small_job


def test_the_saved_seconds_are_compared_with_those_of_compiling() -> None:
    for blocks in (1, 12, 48):
        seconds = compile_seconds(blocks)
        break_even = seconds / compile_choice.SAVED  # seconds of training
        assert compiling_pays(1000, 1.01 * break_even / 1000, blocks)
        assert not compiling_pays(1000, 0.99 * break_even / 1000, blocks)
        assert not compiling_pays(10, 0.99 * break_even / 1000, blocks)


def test_more_blocks_take_longer_to_compile() -> None:
    assert 0 < compile_seconds(1) < compile_seconds(12) < compile_seconds(48)


def test_a_run_uses_the_plans_estimate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the machine's speed halves what compiling can save."""
    job = small_job("gpt", tmp_path)
    task = assemble(job.config, job.data, batch_tokens=job.run.batch_tokens, seed=0)
    world = World(torch.device("cpu"))
    run = RunConfig(out=tmp_path, steps=1000)
    flops = cost.cost(task.config, 1, "float32", task.workload).flops_per_token
    flops *= task.training.tokens_per_step * run.steps
    needed = compile_seconds(task.config.depth) / compile_choice.SAVED
    speed = flops / (needed * cost.UTILISATION)  # at which it just pays

    def peak(factor: float) -> Any:
        return lambda device, precision: factor * speed

    monkeypatch.setattr(cost, "measured_peak", peak(0.9))
    assert pays_in_run(task, run, world, "float32")
    monkeypatch.setattr(cost, "measured_peak", peak(1.1))
    assert not pays_in_run(task, run, world, "float32")
