"""Errors of adapters: damaged, unsupported or for another model; the model stays as it was."""

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
from qkv.nn.lora import AdapterConfig, adapted, adapter_parameters, attach_adapters
from support.small_hf_folders import refused, small

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
Q = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """An adapter for the query and value of a small Llama, as `peft` writes it: no metadata."""
    model = small("llama")
    attach_adapters(model, AdapterConfig(rank=2, alpha=4.0))
    for parameter in adapter_parameters(model):
        nn.init.normal_(parameter)

    write_adapter(model, tmp_path / "adapter", "base")
    edit_tensors(tmp_path / "adapter", lambda tensors: None)
    return tmp_path / "adapter"


def edit_tensors(path: Path, change: Callable[[dict[str, Tensor]], Any]) -> None:
    tensors = load_file(path / WEIGHTS)
    change(tensors)
    save_file(tensors, path / WEIGHTS)


def edit(path: Path, **changes: Any) -> None:
    values = json.loads((path / CONFIG).read_text()) | changes
    (path / CONFIG).write_text(json.dumps(values))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type: expected LORA, not 'IA3'"),
        ({"peft_type": None}, "peft_type: expected LORA, not None"),
        ({"use_dora": True}, "use_dora: ... not supported"),
        ({"bias": "all"}, "bias: ... only value"),
        ({"lora_bias": True}, "lora_bias: True is not supported here"),
        ({"layer_replication": [[0, 1]]}, "layer_replication: ... not supported"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices: ... not supported"),
        (
            {"init_lora_weights": "pissa"},
            "init_lora_weights: 'pissa' changes the base's weights too",
        ),
        ({"of_tomorrow": {"on": 1}}, "of_tomorrow: ... not supported"),
        ({"r": "8"}, "r: expected a whole number, not '8'"),
        ({"r": 0}, "r: expected 1 or more, not 0"),
        ({"lora_alpha": "much"}, "lora_alpha: ... a number"),
        ({"lora_dropout": 1.5}, "lora_dropout: ... a probability"),
        ({"use_rslora": "yes"}, "use_rslora: ... true or false"),
        ({"rank_pattern": [3]}, "rank_pattern: ... fields in braces"),
        (
            {"rank_pattern": {"q_proj": "x"}},
            "rank_pattern: q_proj: ... whole number",
        ),
        ({"rank_pattern": {"(": 3}}, "'(': not a pattern that can be read"),
        ({"target_modules": "("}, "'(': not a pattern that can be read"),
        ({"target_modules": 3}, "target_modules: expected names or a pattern, not 3"),
    ],
)
def test_configs_that_are_refused(changes: dict[str, Any], message: str, adapter: Path) -> None:
    edit(adapter, **changes)
    model = small("llama")
    with refused(message) as error:
        read_adapter(model, adapter)

    assert str(adapter) in str(error.value)
    assert not list(adapted(model))


@pytest.mark.parametrize(
    "harmless", [{"use_dora": False}, {"of_tomorrow": None}, {"eva_config": {"rho": 2.0}}]
)
def test_configs_that_change_nothing(harmless: dict[str, Any], adapter: Path) -> None:
    edit(adapter, **harmless)
    assert list(adapted(read_adapter(small("llama"), adapter)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda t: t.pop(f"{Q}.lora_B.weight"),
            "model.layers.0.self_attn.q_proj.lora_B: ... is missing",
        ),
        (
            lambda t: [t.pop(f"{Q}.lora_{kind}.weight") for kind in "AB"],
            "model.layers.0.self_attn.q_proj.lora_A: ... is missing",
        ),
        (
            lambda t: t.update({f"{Q}.lora_A.weight": torch.ones(3, 8)}),
            "q_proj.lora_A: ... in the shape",
        ),
        (
            lambda t: t.update({f"{Q}.lora_B.weight": torch.ones(9, 2)}),
            "q_proj.lora_B: ... in the shape",
        ),
        (
            lambda t: t.update({f"{Q}.lora_A.weight": torch.ones(2, 8, dtype=torch.int8)}),
            "q_proj.lora_A: ... in the shape",
        ),
        (
            lambda t: t.update({f"{Q.replace('0', '1')}.lora_A.weight": torch.ones(2, 8)}),
            "layers.1.self_attn.q_proj.lora_A.weight: ... no place",
        ),
        (
            lambda t: t.update({"base_model.model.lm_head.lora_A.weight": torch.ones(2, 8)}),
            "base_model.model.lm_head.lora_A.weight: ... no place",
        ),
        (
            lambda t: t.update({f"{Q}.lora_magnitude_vector": torch.ones(8)}),
            "q_proj.lora_magnitude_vector: ... no place",
        ),
        (
            lambda t: t.update(
                {f"{Q.replace('.model.model', '.model')}.lora_A.weight": torch.ones(2, 8)}
            ),
            "two tensors mean the same; expected one",
        ),
        (
            lambda t: t.update({"base_model.model.score.weight": torch.ones(2, 8)}),
            "score: ... same size",
        ),
        (lambda t: t.clear(), "model.layers.0.self_attn.q_proj.lora_A: ... is missing"),
    ],
)
def test_tensors_that_do_not_fit(
    change: Callable[[dict[str, Tensor]], Any], message: str, adapter: Path
) -> None:
    edit_tensors(adapter, change)
    model = small("llama")
    with refused(message) as error:
        read_adapter(model, adapter)

    assert str(adapter / WEIGHTS) in str(error.value)
    assert not list(adapted(model))


def test_the_wrong_model(adapter: Path) -> None:
    with refused("there is no place for it in the model's attention and feed-forward"):
        read_adapter(small("bert"), adapter)

    with refused("expected numbers in the shape (2, 16), not (2, 8)"):
        read_adapter(small("llama", width=16), adapter)

    with refused("model: ... no projections"):
        read_adapter(RNN(RNNConfig(vocabulary=5, width=4)), adapter)

    model = read_adapter(small("llama"), adapter)
    with refused("model: ... adapters already"):
        read_adapter(model, adapter)


def test_files_that_are_not_there(adapter: Path) -> None:
    (adapter / WEIGHTS).rename(adapter / "adapter_model.bin")
    with refused("adapter_model.bin: ... is a pickle"):
        read_adapter(small("llama"), adapter)

    (adapter / "adapter_model.bin").unlink()
    with refused(f"{WEIGHTS}: ... no such file"):
        read_adapter(small("llama"), adapter)

    (adapter / CONFIG).write_text("{")
    with refused(f"{CONFIG}: not valid JSON"):
        read_adapter(small("llama"), adapter)


@pytest.mark.parametrize("length", [0, 7, 200, -1])
def test_a_cut_off_file(length: int, adapter: Path) -> None:
    (adapter / WEIGHTS).write_bytes((adapter / WEIGHTS).read_bytes()[:length])
    with refused(f"{WEIGHTS}: not a whole safetensors file"):
        read_adapter(small("llama"), adapter)


def test_our_adapters_have_checksums(tmp_path: Path) -> None:
    model = small("llama")
    attach_adapters(model, AdapterConfig(rank=2))
    write_adapter(model, tmp_path)
    other = small("llama")
    with refused("this adapter was trained on other weights"):
        read_adapter(other, tmp_path)

    assert not list(adapted(other))
    content = bytearray((tmp_path / WEIGHTS).read_bytes())
    content[-3] ^= 1
    (tmp_path / WEIGHTS).write_bytes(content)
    with refused(f"{WEIGHTS}: checksum mismatch"):
        read_adapter(other, tmp_path)


def test_writing(tmp_path: Path) -> None:
    model = small("llama")
    with refused("model: ... no adapters"):
        write_adapter(model, tmp_path)

    with refused("model: ... no projections"):
        write_adapter(RNN(RNNConfig(vocabulary=5, width=4)), tmp_path)

    attach_adapters(model, AdapterConfig(rank=2))
    write_adapter(model, tmp_path)
    with refused("adapter_config.json is already here; choose an empty folder"):
        write_adapter(model, tmp_path)

    write_adapter(model, tmp_path, "elsewhere", replace=True)
    assert json.loads((tmp_path / CONFIG).read_text())["base_model_name_or_path"] == "elsewhere"
    assert sorted(file.name for file in tmp_path.iterdir()) == [CONFIG, WEIGHTS]
