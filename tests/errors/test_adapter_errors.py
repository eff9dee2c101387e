"""Adapters that are damaged, foreign or for another model: refused with one sentence, and the model
stays as it was.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from qkv.models import RNN, RNNConfig
from qkv.models.convert.peft import read_adapter, write_adapter
from qkv.nn.lora import AdapterConfig, adapted, adapter_parameters, attach
from support.small_hf_folders import refused, small

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
Q = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """An adapter for the query and value of a small Llama, as `peft` would have written it: with no
    header of ours.
    """
    model = small("llama")
    attach(model, AdapterConfig(rank=2, alpha=4.0))
    for parameter in adapter_parameters(model):
        nn.init.normal_(parameter)
    write_adapter(model, tmp_path / "adapter", "base")
    change(tmp_path / "adapter", lambda tensors: None)
    return tmp_path / "adapter"


def change(path: Path, how: Callable[[dict[str, Tensor]], Any]) -> None:
    tensors = load_file(path / WEIGHTS)
    how(tensors)
    save_file(tensors, path / WEIGHTS)


def edit(path: Path, **changes: Any) -> None:
    values = json.loads((path / CONFIG).read_text()) | changes
    (path / CONFIG).write_text(json.dumps(values))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"peft_type": "IA3"}, "peft_type: expected LORA, not 'IA3'"),
        ({"peft_type": None}, "peft_type: expected LORA, not None"),
        ({"use_dora": True}, "use_dora: True is not supported here; expected a plain LoRA adapter"),
        ({"bias": "all"}, "bias: expected 'none', the only value supported here, not 'all'"),
        ({"lora_bias": True}, "lora_bias: True is not supported here"),
        ({"layer_replication": [[0, 1]]}, "layer_replication: [[0, 1]] is not supported here"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices: [1] is not supported here"),
        (
            {"init_lora_weights": "pissa"},
            "init_lora_weights: 'pissa' changes the base's weights too",
        ),
        ({"of_tomorrow": {"on": 1}}, "of_tomorrow: {'on': 1} is not supported here"),
        ({"r": "8"}, "r: expected a whole number, not '8'"),
        ({"r": 0}, "r: expected 1 or more, not 0"),
        ({"lora_alpha": "much"}, "lora_alpha: expected a number, not 'much'"),
        ({"lora_dropout": 1.5}, "lora_dropout: expected a probability from 0 to below 1, not 1.5"),
        ({"use_rslora": "yes"}, "use_rslora: expected true or false, not 'yes'"),
        ({"rank_pattern": [3]}, "rank_pattern: expected fields in braces, not [3]"),
        (
            {"rank_pattern": {"q_proj": "x"}},
            "rank_pattern: q_proj: expected a whole number, not 'x'",
        ),
        ({"rank_pattern": {"(": 3}}, "'(': not a pattern that can be read"),
        ({"target_modules": "("}, "'(': not a pattern that can be read"),
        ({"target_modules": 3}, "target_modules: expected names or a pattern, not 3"),
    ],
)
def test_configs_that_are_refused(changes: dict[str, Any], complaint: str, made: Path) -> None:
    edit(made, **changes)
    model = small("llama")
    with refused(complaint) as error:
        read_adapter(model, made)
    assert str(made) in str(error.value)
    assert not list(adapted(model))


@pytest.mark.parametrize(
    "harmless", [{"use_dora": False}, {"of_tomorrow": None}, {"eva_config": {"rho": 2.0}}]
)
def test_configs_that_change_nothing(harmless: dict[str, Any], made: Path) -> None:
    edit(made, **harmless)
    assert list(adapted(read_adapter(small("llama"), made)))


@pytest.mark.parametrize(
    ("how", "complaint"),
    [
        (
            lambda t: t.pop(f"{Q}.lora_B.weight"),
            "model.layers.0.self_attn.q_proj.lora_B: this tensor is missing",
        ),
        (
            lambda t: [t.pop(f"{Q}.lora_{kind}.weight") for kind in "AB"],
            "model.layers.0.self_attn.q_proj.lora_A: this tensor is missing",
        ),
        (
            lambda t: t.update({f"{Q}.lora_A.weight": torch.ones(3, 8)}),
            "q_proj.lora_A: expected numbers in the shape (2, 8), not (3, 8) of torch.float32",
        ),
        (
            lambda t: t.update({f"{Q}.lora_B.weight": torch.ones(9, 2)}),
            "q_proj.lora_B: expected numbers in the shape (8, 2), not (9, 2) of torch.float32",
        ),
        (
            lambda t: t.update({f"{Q}.lora_A.weight": torch.ones(2, 8, dtype=torch.int8)}),
            "q_proj.lora_A: expected numbers in the shape (2, 8), not (2, 8) of torch.int8",
        ),
        (
            lambda t: t.update({f"{Q.replace('0', '1')}.lora_A.weight": torch.ones(2, 8)}),
            "layers.1.self_attn.q_proj.lora_A.weight: there is no place for it in the model's attention",
        ),
        (
            lambda t: t.update({"base_model.model.lm_head.lora_A.weight": torch.ones(2, 8)}),
            "base_model.model.lm_head.lora_A.weight: there is no place for it",
        ),
        (
            lambda t: t.update({f"{Q}.lora_magnitude_vector": torch.ones(8)}),
            "q_proj.lora_magnitude_vector: there is no place for it",
        ),
        (
            lambda t: t.update(
                {f"{Q.replace('.model.model', '.model')}.lora_A.weight": torch.ones(2, 8)}
            ),
            "two tensors mean the same; expected one",
        ),
        (
            lambda t: t.update({"base_model.model.score.weight": torch.ones(2, 8)}),
            "score: this is the head of a task, for a model that has one of the same size",
        ),
        (lambda t: t.clear(), "model.layers.0.self_attn.q_proj.lora_A: this tensor is missing"),
    ],
)
def test_tensors_that_do_not_fit(
    how: Callable[[dict[str, Tensor]], Any], complaint: str, made: Path
) -> None:
    change(made, how)
    model = small("llama")
    with refused(complaint) as error:
        read_adapter(model, made)
    assert str(made / WEIGHTS) in str(error.value)
    assert not list(adapted(model))


def test_the_wrong_model(made: Path) -> None:
    with refused("there is no place for it in the model's attention and feed-forward"):
        read_adapter(small("bert"), made)
    with refused("expected numbers in the shape (2, 16), not (2, 8)"):
        read_adapter(small("llama", width=16), made)
    with refused("model: an RNN has no projections to adapt"):
        read_adapter(RNN(RNNConfig(vocabulary=5, width=4)), made)
    model = read_adapter(small("llama"), made)
    with refused("model: it has adapters already; merge or detach them first"):
        read_adapter(model, made)


def test_files_that_are_not_there(made: Path) -> None:
    (made / WEIGHTS).rename(made / "adapter_model.bin")
    with refused("adapter_model.bin: this file is a pickle"):
        read_adapter(small("llama"), made)
    (made / "adapter_model.bin").unlink()
    with refused(f"{WEIGHTS}: there is no such file; an adapter has its numbers in it"):
        read_adapter(small("llama"), made)
    (made / CONFIG).write_text("{")
    with refused(f"{CONFIG}: not valid JSON"):
        read_adapter(small("llama"), made)


@pytest.mark.parametrize("padding_mask", [0, 7, 200, -1])
def test_a_cut_off_file(padding_mask: int, made: Path) -> None:
    (made / WEIGHTS).write_bytes((made / WEIGHTS).read_bytes()[:padding_mask])
    with refused(f"{WEIGHTS}: not a whole safetensors file"):
        read_adapter(small("llama"), made)


def test_our_own_are_known_by_their_checksum(tmp_path: Path) -> None:
    model = small("llama")
    attach(model, AdapterConfig(rank=2))
    write_adapter(model, tmp_path)
    other = small("llama")
    with refused(
        "this adapter was trained on other weights than those of this base; give it its own"
    ):
        read_adapter(other, tmp_path)
    assert not list(adapted(other))
    content = bytearray((tmp_path / WEIGHTS).read_bytes())
    content[-3] ^= 1
    (tmp_path / WEIGHTS).write_bytes(content)
    with refused(
        f"{WEIGHTS}: damaged: its numbers are not those that were saved; bring back a copy"
    ):
        read_adapter(other, tmp_path)


def test_writing(tmp_path: Path) -> None:
    model = small("llama")
    with refused("model: it has no adapters; attach(model, config) makes them"):
        write_adapter(model, tmp_path)
    with refused("model: an RNN has no projections to adapt"):
        write_adapter(RNN(RNNConfig(vocabulary=5, width=4)), tmp_path)
    attach(model, AdapterConfig(rank=2))
    write_adapter(model, tmp_path)
    with refused("adapter_config.json is already here; choose an empty folder"):
        write_adapter(model, tmp_path)
    write_adapter(model, tmp_path, "elsewhere", replace=True)
    assert json.loads((tmp_path / CONFIG).read_text())["base_model_name_or_path"] == "elsewhere"
    assert sorted(file.name for file in tmp_path.iterdir()) == [CONFIG, WEIGHTS]
