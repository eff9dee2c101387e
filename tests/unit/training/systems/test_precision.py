"""Mixed precision: float32 gradients of half-precision computation; what a CPU cannot compute."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

from qkv.models import build
from qkv.training.objective import FeatureExtractor, Objective
from qkv.training.run_config import DataConfig, RunConfig
from qkv.training.systems import precision
from qkv.training.systems.distributed import World
from qkv.training.systems.precision import (
    Cast,
    best_precision,
    cast_weights,
    check_precision,
    cpu_slowdown,
    use_tf32,
)
from support.small_training import MODELS, random_batch

CPU = torch.device("cpu")


def test_cast_computes_in_the_dtype_and_gradients_reach_the_weights() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    inputs = torch.randn(5, 3, dtype=torch.float64)
    cast = Cast(model, torch.float64)
    out = cast(inputs)
    assert out.dtype == torch.float64
    out.square().sum().backward()
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    gradients = [weight.grad for weight in model.parameters()]
    assert {gradient.dtype for gradient in gradients} == {torch.float32}
    double = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    double.load_state_dict(model.state_dict())
    double(inputs).square().sum().backward()
    for gradient, weight in zip(gradients, double.parameters(), strict=True):
        torch.testing.assert_close(gradient, weight.grad.float())


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_recurrent_layers_keep_no_cast_weights(kind: type[nn.RNNBase]) -> None:
    """Otherwise the graph of a pass stays alive, and PyTorch moves the weights at the next call."""
    layers = kind(3, 4, num_layers=2, batch_first=True)
    Cast(layers, torch.float64)(torch.randn(2, 5, 3, dtype=torch.float64))
    own = list(layers.parameters())
    assert all(a is b for a, b in zip(layers._flat_weights, own, strict=True))
    assert not layers._weights_have_changed()


def test_frozen_and_unused_weights_get_no_gradients() -> None:
    model = nn.ModuleDict({"used": nn.Linear(3, 3), "unused": nn.Linear(3, 3)})
    model["used"].bias.requires_grad_(False)
    weights = cast_weights(model, torch.float64)
    assert list(weights) == ["used.weight", "unused.weight", "unused.bias", "used.bias"]
    assert not weights["used.bias"].requires_grad
    (weights["used.weight"] @ weights["used.bias"]).sum().backward()
    expected = model["used"].bias.expand(3, 3)
    torch.testing.assert_close(model["used"].weight.grad, expected)
    assert model["unused"].weight.grad is None
    assert model["used"].bias.grad is None


@pytest.mark.parametrize("family", list(MODELS))
def test_a_cast_model_has_the_gradients_of_a_model_of_that_dtype(family: str) -> None:
    """Float64 stands for bf16; a weight that is used twice gets the gradient of both uses."""
    batch = random_batch(family)
    model = build(MODELS[family]).eval()
    objective = Objective(model).eval()
    objective.reader = Cast(FeatureExtractor(model), torch.float64)
    loss = objective(batch)
    assert loss.dtype == torch.float64
    loss.backward()
    double = build(MODELS[family]).double()
    double.load_state_dict(model.state_dict())
    expected = Objective(double).eval()(batch)
    expected.backward()
    torch.testing.assert_close(loss, expected)
    for (name, weight), other in zip(model.named_parameters(), double.parameters(), strict=True):
        if other.grad is None:  # BERT's pooler, which masked tokens do not use
            assert weight.grad is None, name
        else:
            torch.testing.assert_close(weight.grad, other.grad.float(), msg=name)


def test_the_best_precision_of_a_cpu_is_float32() -> None:
    assert best_precision(CPU) == "float32"


@pytest.mark.parametrize(("bf16", "expected"), [(True, "bf16"), (False, "fp16")])
def test_the_best_precision_of_a_gpu(
    bf16: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: bf16)
    assert best_precision(torch.device("cuda")) == expected


def test_products_are_in_tf32_on_a_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    settings: list[str] = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", settings.append)
    use_tf32(CPU)
    assert settings == []
    use_tf32(torch.device("cuda"))
    assert settings == ["high"]


def test_the_probe_does_not_kill_this_process() -> None:
    slowdown = cpu_slowdown(torch.bfloat16)
    assert slowdown is None or slowdown > 0


def fake_probe(monkeypatch: pytest.MonkeyPatch, code: int, printed: str) -> None:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, code, printed, "")

    monkeypatch.setattr(precision.subprocess, "run", run)


@pytest.mark.parametrize(
    ("code", "printed", "slowdown"),
    [
        (0, "16777216.0 0.5\n", 0.5),
        (0, "16777216.0 11.0\n", 11.0),
        (-4, "", None),
        (-11, "", None),
        (0, "17.0 1.0\n", None),
        (1, "", None),
        (0, "nan 1.0", None),
    ],
)
def test_a_probe_that_dies_or_errs_means_unsupported(
    code: int, printed: str, slowdown: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_probe(monkeypatch, code, printed)
    assert cpu_slowdown.__wrapped__(torch.bfloat16) == slowdown


def test_an_unsupported_precision_raises_and_a_slow_one_warns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        precision, "cpu_slowdown", {torch.bfloat16: None, torch.float16: 9.5}.__getitem__
    )
    with pytest.raises(ValueError, match=r"precision: .*bf16"):
        check_precision("bf16", CPU)
    assert "fp16 take 9.5 times as long as in float32" in (check_precision("fp16", CPU) or "")
    assert check_precision("float32", CPU) is None
    assert check_precision("bf16", torch.device("cuda")) is None
    monkeypatch.setattr(precision, "cpu_slowdown", lambda dtype: 1.0)
    assert check_precision("bf16", CPU) is None


def test_fp8_needs_half_precision_for_the_rest_and_whole_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device is taken for a GPU with FP8."""
    training = import_module("qkv.training.train")  # the package has a function of this name
    monkeypatch.setattr(training, "check_precision", lambda precision, device: None)
    monkeypatch.setattr(training.fp8, "check_supported", lambda device: None)
    data = DataConfig(data=("text.txt",))
    alone = World(torch.device("cpu"))
    monkeypatch.setattr(training, "uses_fsdp", lambda world, distributed: distributed == "fsdp")
    half = RunConfig(out=tmp_path, fp8=True, precision="bf16")
    training.check_machine(data, half, alone, Console())
    with pytest.raises(ValueError, match=r"fp8: expected bf16 or fp16 .*not float32"):
        training.check_machine(data, replace(half, precision="float32"), alone, Console())
    with pytest.raises(ValueError, match=r"fp8: expected one GPU or --distributed ddp, not fsdp"):
        training.check_machine(data, replace(half, distributed="fsdp"), alone, Console())
