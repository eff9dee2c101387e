"""Translators on a GPU: CUDA graphs of several shapes, recurrent layers step by step, resuming."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

pytestmark = pytest.mark.gpu


def models() -> dict[str, Any]:
    from qkv.models import RNNConfig, TransformerConfig

    small = {"vocabulary": 300, "width": 64, "dropout": 0.0}
    return {
        "transformer": TransformerConfig(**small, depth=2, heads=4),
        "learned": TransformerConfig(**small, depth=1, heads=4, position="learned", context=21),
        "gru": RNNConfig(**small),
        "lstm": RNNConfig(**small, cell="lstm", depth=2, attention="scaled_dot"),
        "rnn": RNNConfig(**small, cell="rnn", attention="none", residual=True, depth=2),
        "general": RNNConfig(**small, attention="general", bidirectional=False),
    }


def pair_batch(rows: int, S: int, T: int, seed: int) -> Any:
    """Pairs of random lengths up to S and T."""
    from qkv.data.batches.batch import Batch

    random = torch.Generator().manual_seed(seed)

    def side(length: int) -> tuple[torch.Tensor, torch.Tensor]:
        lengths = torch.randint(1, length + 1, (rows,), generator=random)
        lengths[0] = length
        mask = torch.arange(length) < lengths.unsqueeze(1)
        return torch.randint(1, 300, (rows, length), generator=random) * mask, mask

    source, source_mask = side(S)
    ids, mask = side(T)
    targets = torch.randint(300, ids.shape, generator=random).masked_fill(~mask, -100)

    return Batch(
        ids=ids, targets=targets, padding_mask=mask, source=source, source_padding_mask=source_mask
    )


def gradients(objective: Any, batch: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The loss of a batch, and the gradients of all weights."""
    from qkv.training.step import gradients_of
    from qkv.training.systems.distributed import World

    objective.zero_grad(set_to_none=True)
    world = World(torch.device("cuda"))
    loss, _ = gradients_of(objective, batch, world, scale=torch.tensor(2.0, device="cuda"))
    named = objective.model.named_parameters()

    return loss.clone(), {name: weight.grad.clone() for name, weight in named}


@pytest.mark.usefixtures("qkv_unchecked")
@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("family", ["transformer", "learned", "gru", "lstm", "rnn", "general"])
def test_graphs_of_padded_pairs_have_the_gradients_of_eager_mode(
    family: str, precision: Any
) -> None:
    from qkv.data.batches.shape_buckets import pad_to_bucket
    from qkv.models import build
    from qkv.models.input_checks import learned_context
    from qkv.training.objective import Objective

    torch.manual_seed(0)
    config = models()[family]
    model = build(config).cuda().train()
    plain = Objective(model, precision=precision, smoothing=0.1)
    fast = Objective(model, precision=precision, smoothing=0.1)
    fast.use_cuda_graph(wait=1, shaped=partial(pad_to_bucket, longest=learned_context(config)))
    assert fast.cuda_graphs is not None

    tolerance = 1e-4 if precision == "float32" else 5e-2
    for step in range(8):  # two shapes in turn: in eager mode, captured, then replayed
        batch = pair_batch(9, 18, 21, step) if step % 2 else pair_batch(33, 6, 5, step)
        expected_loss, expected = gradients(plain, batch)
        loss, found = gradients(fast, batch)
        torch.testing.assert_close(loss, expected_loss, rtol=tolerance, atol=tolerance)
        for name, gradient in expected.items():
            difference = (found[name] - gradient).norm()
            assert difference <= tolerance * gradient.norm() + 1e-5, (step, name)

    assert len(fast.cuda_graphs.graphs) == 2


@pytest.mark.usefixtures("qkv_unchecked", "fresh_compiler")
def test_compiled_pairs_are_captured_too() -> None:
    from qkv.data.batches.shape_buckets import pad_to_bucket
    from qkv.models import build
    from qkv.training.objective import Objective

    torch.manual_seed(0)
    model = build(models()["transformer"]).cuda().train()
    plain = Objective(model, precision="bf16")
    fast = Objective(model, precision="bf16")
    fast.compile_reader()
    fast.use_cuda_graph(wait=1, shaped=pad_to_bucket)
    assert fast.cuda_graphs is not None
    for step in range(6):
        batch = pair_batch(9, 18, 21, step) if step % 2 else pair_batch(33, 6, 5, step)
        expected_loss, _ = gradients(plain, batch)
        loss, _ = gradients(fast, batch)
        torch.testing.assert_close(loss, expected_loss, rtol=3e-2, atol=3e-2)

    assert len(fast.cuda_graphs.graphs) == 2


@pytest.mark.usefixtures("qkv_unchecked")
def test_a_pass_that_waits_for_the_gpu_stays_in_eager_mode() -> None:
    from qkv.data.batches.shape_buckets import pad_to_bucket
    from qkv.models import build
    from qkv.nn.hooks import add_hook
    from qkv.training.objective import Objective

    torch.manual_seed(0)
    model = build(models()["transformer"]).cuda().train()
    plain = Objective(model)
    fast = Objective(model)
    fast.use_cuda_graph(shaped=pad_to_bucket)
    assert fast.cuda_graphs is not None
    batch = pair_batch(9, 18, 21, 0)

    def read_back(value: torch.Tensor, name: str) -> torch.Tensor:
        return value * min(2.0, float(value.abs().max().item() > 0) + 1)

    with add_hook(model, "encoder.output", read_back):
        expected_loss, _ = gradients(plain, batch)
        for _ in range(3):
            loss, _ = gradients(fast, batch)
            torch.testing.assert_close(loss, expected_loss, rtol=1e-4, atol=1e-4)

    assert not fast.cuda_graphs.graphs


@pytest.mark.usefixtures("qkv_unchecked")
@pytest.mark.parametrize("family", ["transformer", "gru"])
def test_a_resumed_translator_ends_with_the_same_bits(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = {"deterministic": True, "checkpoint_every": 20, "precision": "bf16"}
    train(family, tmp_path / "whole", tmp_path, monkeypatch, **flags)
    train(family, tmp_path / "parts", tmp_path, monkeypatch, steps=20, **flags)
    train(family, tmp_path / "parts", tmp_path, monkeypatch, resume=True, **flags)
    weights = load_file(tmp_path / "parts" / "model.safetensors")
    for name, expected in load_file(tmp_path / "whole" / "model.safetensors").items():
        assert torch.equal(weights[name], expected), name


def train(
    family: str,
    out: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    steps: int = 40,
    **flags: Any,
) -> None:
    """Train a small translator with dropout on sentences of several lengths."""
    from dataclasses import replace

    from qkv.training.run_config import DataConfig, OptimizerConfig, RunConfig
    from qkv.training.train import train

    monkeypatch.setenv("QKV_CACHE", str(folder / "cache"))
    words = ["the", "cat", "chases", "a", "small", "mouse", "that", "eats", "cheese", "at", "home"]
    lines = []
    for number in range(400):
        chosen = [words[(number * (k + 3)) % len(words)] for k in range(3 + number % 9)]
        lines.append(f"{' '.join(chosen)}\t{' '.join(reversed(chosen))}")

    path = folder / "pairs.tsv"
    path.write_text("\n".join(lines) + "\n")
    config = replace(models()[family], dropout=0.1)
    data = DataConfig(data=(str(path),), tokenizer="words")
    schedule = OptimizerConfig(learning_rate=1e-3, schedule="constant", warmup=1)
    run = RunConfig(out=out, steps=steps, batch_tokens=256, **flags)
    assert train(config, data, schedule, run) is not None
