"""The experiments about memory and time: their counts, and verdicts that can go against them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qkv.data.embedded import turkish
from qkv.data.sources.named import NAMED_SOURCES
from qkv.lab.experiment import Cell, Experiment, Measured
from qkv.lab.experiments.efficiency import (
    efficiency_measures,
    kv_heads_lab,
    memory_lab,
    norm_and_warmup_lab,
    segments_lab,
    sparse_lab,
)
from qkv.lab.experiments.efficiency.efficiency_measures import ITSELF
from qkv.lab.lab_results import Results
from qkv.lab.sweep import measure_cell
from qkv.models import GPT, GPTConfig

CPU = torch.device("cpu")
TINY: dict[ModuleType, dict[str, Any]] = {
    kv_heads_lab: {
        "steps": 10, "width": 16, "depth": 1, "context": 8, "batch_tokens": 32,
        "validation_batches": 1,
    },
    memory_lab: {"steps": 3, "width": 32, "depth": 2, "context": 8, "rows": 4},
    norm_and_warmup_lab: {
        "steps": 4, "width": 8, "depths": (1, 2), "batch_tokens": 64, "validation_batches": 1,
    },
    segments_lab: {
        "steps": 4, "width": 8, "depth": 1, "context": 8, "batch_tokens": 32, "texts": 4,
    },
    sparse_lab: {
        "steps": 2, "width": 8, "depth": 1, "context": 16, "batch_tokens": 32,
        "validation_batches": 1, "lengths": (16, 64), "window": 4, "turns": 1,
    },
}  # fmt: skip
PROMISED = {
    kv_heads_lab: {"loss": 1, "cache": 1},
    memory_lab: {"kept": 1, "time": 1, "loss": 1},
    norm_and_warmup_lab: {"loss": 2, "deepest": 1},
    segments_lab: {"loss": 4, "first quarter": 1, "rest": 1, "whole": 1},
    sparse_lab: {"pairs": 2, "exponent": 1, "seconds": 2, "longest": 1, "loss": 1},
}
"""Measures, and how many numbers each has."""
TIMES = ("time", "seconds", "longest")
LABS = tuple(TINY)


@pytest.fixture(autouse=True)
def little_data(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A few hundred pairs and lines instead of all."""
    efficiency_measures.turkish_task.cache_clear()
    pairs = NAMED_SOURCES["turkish"]._replace(read=lambda split: turkish.pairs(split)[:300])
    lines = ["def add(a, b):\n    return a + b\n"] * 200
    texts = NAMED_SOURCES["python"]._replace(read=lambda split: lines)
    monkeypatch.setitem(NAMED_SOURCES, "turkish", pairs)
    monkeypatch.setitem(NAMED_SOURCES, "python", texts)
    yield
    efficiency_measures.turkish_task.cache_clear()


def cell(lab: ModuleType, arm: str, seed: int = 0, **settings: Any) -> Cell:
    experiment: Experiment = lab.EXPERIMENT
    return Cell(arm, seed, experiment.size("small", **{**TINY[lab], **settings}), CPU)


def measured(lab: ModuleType, arm: str, seed: int = 0, **settings: Any) -> Measured:
    chosen = cell(lab, arm, seed, **settings)
    return measure_cell(lab.EXPERIMENT, arm, seed, chosen.size, CPU).measured


def verdicts(lab: ModuleType, measure: Callable[[str, int], Measured], seeds: int = 3) -> list[str]:
    """The verdict on each check."""
    experiment: Experiment = lab.EXPERIMENT
    table = {}
    for arm in experiment.arms:
        for seed in range(seeds):
            table[arm, seed] = measure(arm, seed)

    results = Results(experiment, experiment.small, table)
    return [finding.verdict for finding in results.findings]


def numbers(value: object) -> list[float]:
    return list(value.values()) if isinstance(value, dict) else [value]  # type: ignore[list-item]


# What is measured


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.EXPERIMENT.name)
def test_each_arm_gives_the_promised_numbers(lab: ModuleType) -> None:
    for arm in lab.EXPERIMENT.arms:
        found = measured(lab, arm)
        expected = dict(PROMISED[lab])
        if arm == ITSELF:
            expected = {"loss": 1}
        if arm == "8 KV heads":
            expected["conversion"] = 3

        assert {name: len(numbers(value)) for name, value in found.items()} == expected
        for value in found.values():
            assert all(math.isfinite(number) for number in numbers(value))


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.EXPERIMENT.name)
def test_a_seed_gives_the_same_numbers_again_and_another_seed_others(lab: ModuleType) -> None:
    arm = lab.EXPERIMENT.arms[-1]
    first, again, other = measured(lab, arm), measured(lab, arm), measured(lab, arm, 1)
    for name in first:
        if name not in TIMES:
            assert first[name] == again[name]

    assert first["loss"] != other["loss"]


@pytest.mark.parametrize(("arm", "kv_heads"), list(kv_heads_lab.KV_HEADS.items()))
def test_kv_cache_has_two_vectors_for_each_key_value_head_and_layer(
    arm: str, kv_heads: int
) -> None:
    model = GPT(
        GPTConfig(vocabulary=8, context=8, width=32, depth=3, heads=8, kv_heads=kv_heads)
    ).eval()
    head_width = 32 // 8
    expected = 2 * kv_heads * head_width * 3 * 4  # keys and values, K, D, L, bytes of float32

    assert efficiency_measures.cache_bytes_per_token(model) == expected


def test_converted_model_is_the_average_of_heads_and_learns_on() -> None:
    losses = measured(kv_heads_lab, "8 KV heads", steps=20)["conversion"]
    assert isinstance(losses, dict)

    assert losses["8 heads"] != losses["averaged"]
    assert losses["trained on"] < losses["averaged"]


class Tanh(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).tanh().sum()


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_kept_bytes_are_input_and_output_of_a_layer_but_not_its_weights(device: str) -> None:
    # The weight's gradient needs x (7 x 3), that of tanh its output (7 x 5), in float32.
    x = torch.zeros(7, 3, device=device)

    assert efficiency_measures.kept_without_parameters(Tanh().to(device), x) == (7 * 3 + 7 * 5) * 4


def kept(arm: str, **settings: Any) -> float:
    """Bytes that the lab counts for an arm."""
    return float(measured(memory_lab, arm, steps=1, **settings)["kept"]) * 2**20  # type: ignore[arg-type]


def test_checkpointing_keeps_one_input_a_block() -> None:
    growth = kept(memory_lab.RECOMPUTE, depth=3) - kept(memory_lab.RECOMPUTE, depth=2)

    assert growth == 4 * 8 * 32 * 4  # rows, context, width, bytes of float32
    assert kept(memory_lab.PLAIN, depth=3) - kept(memory_lab.PLAIN, depth=2) > 5 * growth


def test_all_three_keep_bf16_inputs_of_a_micro_batch_and_bf16_weights() -> None:
    growth = kept(memory_lab.ALL, depth=3) - kept(memory_lab.ALL, depth=2)
    block = GPT(GPTConfig(vocabulary=256, context=8, width=32, depth=1, heads=1)).stack.blocks[0]
    weights = sum(parameter.numel() for parameter in block.parameters())

    assert growth == (1 * 8 * 32 + weights) * 2  # one row of four, context, width; bf16


def test_accumulation_and_checkpointing_do_not_change_the_loss() -> None:
    plain = measured(memory_lab, memory_lab.PLAIN)["loss"]

    assert measured(memory_lab, memory_lab.RECOMPUTE)["loss"] == pytest.approx(plain, abs=1e-6)
    assert measured(memory_lab, memory_lab.PARTS)["loss"] == pytest.approx(plain, abs=1e-5)


def test_pairs_are_those_of_the_formulas() -> None:
    dense = measured(sparse_lab, "dense")["pairs"]
    window = measured(sparse_lab, "window")["pairs"]

    assert dense == {16: 16 * 17 / 2, 64: 64 * 65 / 2}
    assert window == {16: 16 * 4 - 6, 64: 64 * 4 - 6}  # 4 each, but 1, 2, 3 at the first positions


def test_exponent_of_a_power_is_its_power() -> None:
    assert efficiency_measures.growth_exponent({5: 1.0, 10: 100.0, 20: 400.0}) == 2.0
    assert efficiency_measures.growth_exponent({10: 3.0, 40: 12.0}) == 1.0


@pytest.mark.parametrize(
    ("memory", "sees_first", "sees_second"), [(0, False, False), (4, False, True), (8, True, True)]
)
def test_the_last_segment_depends_on_the_segments_in_memory(
    memory: int, sees_first: bool, sees_second: bool
) -> None:
    torch.manual_seed(0)
    config = GPTConfig(
        vocabulary=9, context=4, width=8, depth=1, heads=2, position="relative", memory=memory
    )
    model = GPT(config).double().eval()
    tokens = torch.randint(9, (2 * 12 + 1,))
    losses = efficiency_measures.last_segment_losses(model, tokens, 3)
    assert losses.shape == (2, 4)

    for place, expected in ((1, sees_first), (5, sees_second)):
        other = tokens.clone()
        other[place] = (other[place] + 1) % 9
        changed = efficiency_measures.last_segment_losses(model, other, 3)

        assert bool((changed[0] - losses[0]).abs().max() > 1e-9) == expected
        torch.testing.assert_close(changed[1], losses[1])


def test_without_memory_a_segment_is_a_text_of_its_own() -> None:
    torch.manual_seed(0)
    config = GPTConfig(vocabulary=9, context=4, width=8, depth=1, heads=2, position="relative")
    model = GPT(config).double().eval()
    tokens = torch.randint(9, (13,))
    with torch.no_grad():
        logits = model(tokens[None, 8:12])

    expected = nn.functional.cross_entropy(logits[0], tokens[9:13], reduction="none")
    losses = efficiency_measures.last_segment_losses(model, tokens, 3)
    torch.testing.assert_close(losses[0], expected)


# Planted numbers


def planted(lab: ModuleType, arm: str, seed: int) -> Measured:
    """Numbers that follow the claim."""
    noise = 0.001 * seed
    if lab is kv_heads_lab:
        heads = kv_heads_lab.KV_HEADS[arm]
        conversion = {"averaged": 3.0 + noise, "trained on": 2.1}
        loss = 2.0 + noise - 0.002 * heads + 0.5 * (arm == ITSELF)
        return {"loss": loss, "cache": 16.0 * heads, "conversion": conversion}
    if lab is memory_lab:
        share = {memory_lab.PLAIN: 1.0, memory_lab.HALF: 0.6}.get(arm, 0.2)
        return {"kept": 64.0 * share, "loss": 2.0 + noise}
    if lab is norm_and_warmup_lab:
        loss = {"after, none": 5.0, "after, warm-up": 4.0}.get(arm, 3.5)
        return {"deepest": loss + noise * len(arm)}
    if lab is segments_lab:
        gain = 0.2 * (segments_lab.ARMS[arm] > 0)
        whole = {"whole": 2.25 - 0.44 * gain + noise}
        return {"first quarter": 2.4 - gain + noise, "rest": 2.2 - gain / 4 + noise / 2, **whole}

    dense = arm == "dense"
    seconds = 0.1 * (1 + 3 * dense) + noise
    loss = 2.0 - 0.01 * dense + noise + 0.5 * (arm == ITSELF)
    return {"exponent": 1.1 + 0.9 * dense, "longest": seconds, "loss": loss}


SWAPPED = {
    kv_heads_lab: ("8 KV heads", "1 KV head"),
    memory_lab: (memory_lab.PLAIN, memory_lab.RECOMPUTE),
    norm_and_warmup_lab: ("after, none", "after, warm-up"),
    segments_lab: ("no memory", "memory of 1 segment"),
    sparse_lab: ("dense", "window"),
}


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.EXPERIMENT.name)
def test_planted_numbers_decide_the_verdict(lab: ModuleType) -> None:
    a, b = SWAPPED[lab]
    swap = {a: b, b: a}
    follows = verdicts(lab, lambda arm, seed: planted(lab, arm, seed))
    against = verdicts(lab, lambda arm, seed: planted(lab, swap.get(arm, arm), seed))
    equal = verdicts(lab, lambda arm, seed: planted(lab, a, seed))

    assert set(follows) == {"holds"}
    assert "does not hold" in against
    assert "does not hold" in equal


def test_one_head_that_is_much_worse_does_not_hold() -> None:
    def measure(arm: str, seed: int) -> Measured:
        worse = {"loss": 2.3 + 0.001 * seed} if arm == "1 KV head" else {}
        return {**planted(kv_heads_lab, arm, seed), **worse}

    assert verdicts(kv_heads_lab, measure) == ["holds", "does not hold", *["holds"] * 3]


@pytest.mark.parametrize("lab", [kv_heads_lab, sparse_lab])
def test_models_that_do_not_use_attention_prove_nothing(lab: ModuleType) -> None:
    """Every pattern is as good as the dense one, but so is none at all."""
    found = verdicts(lab, lambda arm, seed: {**planted(lab, arm, seed), "loss": 2.0 + 0.01 * seed})

    assert found[-1] == "does not hold"
    assert set(found[:-1]) == {"holds"}


def test_a_loss_just_within_the_margin_is_hardly_worse() -> None:
    def measure(arm: str, seed: int) -> Measured:
        loss = 2.0 + 0.001 * seed * len(arm) / 10 + 0.045 * (arm == "1 KV head")
        return {**planted(kv_heads_lab, arm, seed), "loss": loss}

    assert verdicts(kv_heads_lab, measure)[1] == "holds"


# Models that contradict the claim


def test_kv_heads_that_are_not_shared_save_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kv_heads_lab.KV_HEADS, "1 KV head", 8)
    found = verdicts(kv_heads_lab, lambda arm, seed: measured(kv_heads_lab, arm, seed, steps=1))

    assert found[0] == "does not hold"


def test_checkpointing_that_recomputes_nothing_saves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_lab, "recompute_blocks", lambda model: None)
    found = verdicts(memory_lab, lambda arm, seed: measured(memory_lab, arm, seed, steps=1))

    assert found[0::2] == ["holds", "holds", "does not hold"]


def test_a_window_as_long_as_the_text_is_not_cheaper() -> None:
    found = verdicts(
        sparse_lab, lambda arm, seed: measured(sparse_lab, arm, seed, steps=1, window=64)
    )

    assert found[0] == "does not hold"
    assert found[3] == "holds"


def test_segments_without_any_memory_gain_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for arm in segments_lab.ARMS:
        monkeypatch.setitem(segments_lab.ARMS, arm, 0)

    found = verdicts(segments_lab, lambda arm, seed: measured(segments_lab, arm, seed))
    assert found == ["does not hold"] * 3


def test_warmup_that_is_left_out_everywhere_lowers_no_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for arm, (placement, _) in norm_and_warmup_lab.ARMS.items():
        monkeypatch.setitem(norm_and_warmup_lab.ARMS, arm, (placement, 0.0))

    found = verdicts(
        norm_and_warmup_lab, lambda arm, seed: measured(norm_and_warmup_lab, arm, seed, depths=(1,))
    )
    assert found[:2] == ["does not hold", "holds"]
