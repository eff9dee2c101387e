"""The estimated cost of training against what torch counts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from qkv.data.batches.batch import Batch
from qkv.models import BERTConfig, GPTConfig, TransformerConfig, build, count_parameters
from qkv.models.registry import Config
from qkv.training.objective import Objective
from qkv.training.setup.cost import attention_flops, cost, measured_peak, memory_used
from qkv.training.setup.training_task import meta_model
from support.small_training import MODELS, SIZE, random_batch

GPT = GPTConfig(**SIZE, context=32)
SHAPES = {
    "tied": GPT,
    "untied": replace(GPT, tied=False),
    "rotary, swiglu, grouped heads": replace(
        GPT, position="rotary", activation="swiglu", kv_heads=1
    ),
    "wide": replace(GPT, width=64, hidden=256, heads=4, depth=1),
}


def counted(config: Config, batch: Batch) -> int:
    """Operations of the matrix products of one pass, without attention (uncounted on a CPU)."""
    objective = Objective(build(config))
    with FlopCounterMode(display=False) as counter:
        objective(batch).backward()
    products = {"mm", "addmm", "addmm_", "bmm", "baddbmm"}
    total = 0
    for operation, count in counter.get_flop_counts()["Global"].items():
        if str(operation).split(".")[1] in products:
            total += count

    return total


@pytest.mark.parametrize("kind", list(SHAPES))
def test_six_operations_for_every_matrix_element(kind: str) -> None:
    config = SHAPES[kind]
    ids = torch.randint(64, (3, 32))
    estimate = cost(config, 96, "float32")
    matrices = estimate.flops_per_token - 6 * attention_flops(meta_model(config))
    assert matrices * ids.numel() == pytest.approx(counted(config, Batch(ids, ids)), rel=1e-3)
    assert estimate.parameters == count_parameters(config)


def test_attention_by_hand() -> None:
    """A token attends on average to half of the context."""
    assert attention_flops(meta_model(GPT)) == 2 * 2 * 16 * 16
    assert attention_flops(meta_model(replace(GPT, window=8))) == 2 * 2 * 8 * 16
    assert attention_flops(meta_model(BERTConfig(**SIZE, context=32))) == 2 * 2 * 32 * 16


@pytest.mark.parametrize("family", ["bert", "transformer", "rnn"])
def test_the_other_families_approximately(family: str) -> None:
    config = MODELS[family]
    if isinstance(config, TransformerConfig):
        config = replace(config, dropout=0.0)
    batch = random_batch(family, rows=8, length=16)
    estimate = cost(config, 64, "float32").flops_per_token * batch.tokens
    assert counted(config, batch) / 3 < estimate < 3 * counted(config, batch)


def test_memory_of_weights() -> None:
    estimate = cost(GPT, 1024, "float32")
    assert estimate.weights == 16 * estimate.parameters, "weights, gradients, two moments"
    assert cost(GPT, 1024, "float32", average=True).weights == 20 * estimate.parameters
    assert cost(GPT, 1024, "bf16").weights == 18 * estimate.parameters, (
        "and a copy in half precision"
    )
    assert cost(GPT, 1024, "bf16").activations == estimate.activations / 2
    assert cost(GPT, 2048, "float32").activations == 2 * estimate.activations
    assert cost(replace(GPT, depth=12), 1024, "float32", recompute=True).activations < (
        cost(replace(GPT, depth=12), 1024, "float32").activations / 4
    )


def test_no_weights_are_allocated() -> None:
    huge = GPTConfig(width=12288, depth=96, heads=96, vocabulary=50257, context=2048)
    assert cost(huge, 1, "bf16").parameters > 1e11


def test_measurements_of_the_machine() -> None:
    cpu = torch.device("cpu")
    assert 1e8 < measured_peak(cpu, "float32") < 1e15
    assert 2**26 < memory_used(cpu) < 2**40
