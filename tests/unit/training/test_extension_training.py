"""An optimizer and an objective from outside the package: in Python, and on the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.models.gpt import GPTConfig
from qkv.training import run_config
from qkv.training.logging.metrics import read_metrics
from qkv.training.objective import Objective
from qkv.training.resilience.checkpoint_writer import Checkpoints
from qkv.training.run_config import DataConfig, OptimizerConfig, RunConfig
from qkv.training.train import train
from support.small_checkpoints import same_bits

MINE = """
import torch
from qkv.training.objective import Objective

class SignDescent(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 0.0, "momentum": 0.9})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["steps"] = state.get("steps", 0) + 1
                mean = state.setdefault("mean", torch.zeros_like(parameter))
                mean.lerp_(parameter.grad, 1 - group["momentum"])
                parameter.sub_(group["lr"] * mean.sign())

class TwiceTheLoss(Objective):
    def forward(self, batch):
        return 2 * super().forward(batch)
"""
CONFIG = GPTConfig(vocabulary=64, context=8, width=16, depth=1, heads=2)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text("cats chase mice and dogs chase cats\n" * 20)
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    return file


def train_small(
    folder: Path, out: str, steps: int = 6, resume: bool = False, **optimizer: Any
) -> Path:
    train(
        CONFIG,
        DataConfig(data=(str(folder / "text.txt"),), tokenizer="words"),
        OptimizerConfig(schedule="constant", warmup=1, **optimizer),
        RunConfig(
            out=folder / out,
            steps=steps,
            batch_tokens=32,
            checkpoint_every=3,
            device="cpu",
            compile=False,
            resume=resume,
        ),
    )
    return folder / out


def losses(run: Path) -> list[float]:
    return [row["loss"] for row in read_metrics(run) if "loss" in row]


def test_an_optimizer_of_a_file_trains_and_resumes_bit_for_bit(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train_small(mine.parent, "whole", 6, optimizer=f"{mine}:SignDescent")
    assert losses(whole)[-1] < losses(whole)[0]
    train_small(mine.parent, "resumed", 3, optimizer=f"{mine}:SignDescent")
    monkeypatch.chdir(mine.parent)  # the file by another name
    resumed = train_small(mine.parent, "resumed", 6, resume=True, optimizer="mine.py:SignDescent")
    tensors = [Checkpoints(run / "checkpoints").newest().tensors() for run in (whole, resumed)]
    assert same_bits(*tensors)
    assert any(name.endswith("|steps") for name in tensors[0])


def test_an_objective_of_a_file_is_the_loss(mine: Path) -> None:
    plain = train_small(mine.parent, "plain", 1)
    twice = train_small(mine.parent, "twice", 1, objective=f"{mine}:TwiceTheLoss")
    assert losses(twice)[0] == pytest.approx(2 * losses(plain)[0])
    with pytest.raises(ValueError, match=r"objective: the run in .* has .*TwiceTheLoss"):
        train_small(mine.parent, "twice", 2, resume=True)


def test_classes_are_registered_under_a_name(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Half(Objective):
        def forward(self, batch: Any) -> torch.Tensor:
            return super().forward(batch) / 2

    monkeypatch.setitem(run_config.OPTIMIZERS, "sgd", torch.optim.SGD)
    monkeypatch.setitem(run_config.OBJECTIVES, "half", Half)
    plain = train_small(mine.parent, "plain", 2, optimizer="sgd", learning_rate=0.5)
    half = train_small(
        mine.parent, "half", 2, optimizer="sgd", objective="half", learning_rate=0.5, clip=0.0
    )
    assert losses(half)[0] == pytest.approx(losses(plain)[0] / 2)
    assert losses(plain)[1] < losses(plain)[0]


def test_the_command_line_takes_files(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(mine.parent)
    flags = "--data text.txt --out run --steps 2 --tokenizer words --width 16 --depth 1 --heads 2"
    flags += " --context 8 --batch-tokens 32 --device cpu --sample-every 0"
    flags += " --optimizer mine.py:SignDescent --objective mine.py:TwiceTheLoss"
    subprocess.run([sys.executable, "-m", "qkv", "train", "gpt", *flags.split()], check=True)
    assert len(losses(mine.parent / "run")) == 2


def test_errors_name_the_option(mine: Path) -> None:
    with pytest.raises(ValueError, match=r"optimizer: expected adamw, muon, FILE\.py:NAME, not 'x"):
        OptimizerConfig(optimizer="x")
    with pytest.raises(ValueError, match=r"objective: expected FILE\.py:NAME, not 'x'"):
        OptimizerConfig(objective="x")
    with pytest.raises(ValueError, match=r"optimizer: .*mine\.py defines no Other; it has SignD"):
        train_small(mine.parent, "run", 1, optimizer=f"{mine}:Other")
    assert not (mine.parent / "run" / "run.json").exists()
