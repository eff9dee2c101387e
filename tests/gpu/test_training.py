"""Training on a GPU: the fused loss, compiled steps, CUDA graphs and half precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

pytestmark = pytest.mark.gpu


# Triton cannot compile a function that the shape checks have rewritten.
@pytest.mark.usefixtures("qkv_unchecked")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("V", [70, 8192, 50257])
def test_the_fused_loss_equals_its_definition(dtype: torch.dtype, smoothing: float, V: int) -> None:
    from qkv.training import fused_loss
    from qkv.training.loss import padded_rows, softmax_loss_

    logits = (3 * torch.randn(33, V, device="cuda")).to(dtype)
    logits[5, 7] = 80  # far above the others
    targets = torch.randint(V, (33,), device="cuda")
    targets[::5] = -100
    padded = torch.nn.functional.pad(logits, (0, -V % 128), value=float("nan"))
    assert fused_loss.supports(padded)
    fused = fused_loss.softmax_loss_(padded, V, targets, smoothing)
    exact = logits.double().cpu()
    total = softmax_loss_(exact, V, targets.cpu(), smoothing)
    torch.testing.assert_close(fused.double().cpu(), total, rtol=1e-5, atol=1e-5)
    tolerance = 1e-6 if dtype == torch.float32 else 4e-3
    torch.testing.assert_close(padded[:, :V].double().cpu(), exact, rtol=tolerance, atol=tolerance)
    assert (padded[:, V:] == 0).all()
    assert padded_rows(torch.zeros(V, 8, device="cuda")).shape[0] % 128 == 0


@pytest.mark.usefixtures("qkv_unchecked", "fresh_compiler")
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_cuda_graph_has_the_gradients_of_eager_mode(precision: Any) -> None:
    from qkv.data.batches.batch import Batch
    from qkv.models import GPT, GPTConfig
    from qkv.training.objective import Objective
    from qkv.training.step import gradients_of
    from qkv.training.systems.distributed import World

    torch.manual_seed(0)
    model = GPT(GPTConfig(vocabulary=300, context=64, width=64, depth=2, heads=4)).cuda()
    plain = Objective(model, precision=precision)
    fast = Objective(model, precision=precision)
    fast.compile_reader()
    fast.use_cuda_graph()
    world = World(torch.device("cuda"))
    tolerance = 1e-3 if precision == "float32" else 3e-2  # TensorFloat-32 may be on
    scale = torch.tensor(2.0, device="cuda")
    for seed in range(3):  # the graph is captured in the first and replayed in the others
        ids = torch.randint(300, (8, 65), generator=torch.Generator().manual_seed(seed))
        batch = Batch(ids=ids[:, :-1].contiguous(), targets=ids[:, 1:].contiguous())
        losses = []
        gradients = []
        for objective in (plain, fast):
            model.zero_grad(set_to_none=True)
            loss, _ = gradients_of(objective, batch, world, scale=scale)
            losses.append(loss.clone())
            gradients.append([parameter.grad.clone() for parameter in model.parameters()])

        torch.testing.assert_close(losses[1], losses[0], rtol=tolerance, atol=tolerance)
        for expected, gradient in zip(*gradients, strict=True):
            assert (gradient - expected).norm() <= tolerance * expected.norm() + 1e-7


@pytest.mark.usefixtures("qkv_unchecked", "fresh_compiler")
@pytest.mark.parametrize("compiled", [True, None])  # by default not, in so short a run
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_learns_as_float32_does(
    precision: str, compiled: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = train(
        tmp_path / "float32", tmp_path, monkeypatch, precision="float32", compile=compiled
    )
    loss = train(tmp_path / precision, tmp_path, monkeypatch, precision=precision, compile=compiled)
    assert expected < 2.5
    assert abs(loss - expected) < 0.1


@pytest.mark.usefixtures("qkv_unchecked", "fresh_compiler")
def test_a_resumed_run_ends_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = {
        "precision": "bf16",
        "deterministic": True,
        "checkpoint_every": 20,
        "compile": True,
    }
    train(tmp_path / "whole", tmp_path, monkeypatch, **flags)
    train(tmp_path / "parts", tmp_path, monkeypatch, steps=20, **flags)
    train(tmp_path / "parts", tmp_path, monkeypatch, resume=True, **flags)
    weights = load_file(tmp_path / "parts" / "model.safetensors")
    for name, expected in load_file(tmp_path / "whole" / "model.safetensors").items():
        assert torch.equal(weights[name], expected), name


def train(
    out: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, *, steps: int = 40, **flags: Any
) -> float:
    """Train a small GPT; return its validation loss."""
    from qkv.models import GPTConfig
    from qkv.training.run_config import DataConfig, OptimizerConfig, RunConfig
    from qkv.training.train import train

    monkeypatch.setenv("QKV_CACHE", str(folder / "cache"))
    text = folder / "text.txt"
    text.write_text("the cat chases the mouse and the mouse eats the cheese.\n" * 400)
    config = GPTConfig(vocabulary=300, context=64, width=64, depth=2, heads=4, dropout=0.1)
    run = RunConfig(out=out, steps=steps, batch_tokens=1024, **flags)
    schedule = OptimizerConfig(learning_rate=3e-3, schedule="constant", warmup=1)
    outcome = train(config, DataConfig(data=(str(text),), tokenizer="characters"), schedule, run)
    assert outcome is not None
    assert outcome.validation_loss is not None
    return outcome.validation_loss


def test_garbage_with_a_cuda_graph_does_not_break_the_capture_of_another() -> None:
    """A collection during the capture would free the older graph, which CUDA forbids there."""
    from qkv.nn.cuda_graph import WARM_UP, CudaGraph

    x = torch.ones(8, device="cuda")
    older = [CudaGraph(lambda: x + 1)]
    calls: list[None] = []

    def step() -> torch.Tensor:
        calls.append(None)
        if len(calls) > WARM_UP:  # the capture
            cycle: list[Any] = [older.pop()]
            cycle.append(cycle)
            del cycle
            objects = [[] for _ in range(10_000)]  # a collection of young objects after every 700
            assert len(objects) == 10_000

        return x + 2

    graph = CudaGraph(step)
    assert graph.replay().tolist() == [3.0] * 8
