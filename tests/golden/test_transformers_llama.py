"""Llama: our GPT and `transformers` give the same logits, whichever wrote the weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from qkv.models import GPT, GPTConfig
from qkv.models.convert import read_folder, write_folder
from qkv.nn.position import RotaryScaling
from support.tiny_transformers import (
    edit_config,
    furthest,
    ids,
    loaded,
    padding,
    randomised,
    replace_tensors,
    same_files,
    same_weights,
    saved,
    tensors,
)

V = 41
SMALL: dict[str, Any] = {
    "vocab_size": V,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}
# Within 64 positions these waves are fast, between and slow: every branch of the stretching is met.
STRETCHED: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
OURS: dict[str, Any] = {
    "vocabulary": V,
    "context": 256,
    "width": 32,
    "depth": 2,
    "heads": 4,
    "norm": "rms",
    "position": "rotary",
    "activation": "swiglu",
}
BIASES = ("qkv_bias", "output_bias", "feed_forward_bias")


def theirs(**choices: Any) -> Any:
    return randomised(LlamaForCausalLM(LlamaConfig(**(SMALL | choices))))


@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"num_key_value_heads": 2, "tie_word_embeddings": True},
        {"num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True},
        {"head_dim": 12, "rms_norm_eps": 1e-3},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
        {"num_key_value_heads": 2, "rope_parameters": STRETCHED | {"rope_theta": 100.0}},
    ],
)
def test_their_weights_in_our_model(choices: dict[str, Any], tmp_path: Path) -> None:
    their_model = theirs(**choices)
    our_model = read_folder(saved(their_model, tmp_path / "theirs"))
    token_ids = ids(V, 2, 100)
    assert isinstance(our_model, GPT)
    assert furthest(our_model(token_ids), their_model(token_ids).logits) < 1e-4
    token_ids = ids(V)
    for side in ("right", "left"):
        padding_mask = padding(side)
        padded = their_model(token_ids, attention_mask=padding_mask.long()).logits
        assert (
            furthest(our_model(token_ids, padding_mask=padding_mask), padded, padding_mask) < 1e-4
        )

    write_folder(our_model, tmp_path / "ours")
    assert same_files(tmp_path / "theirs", tmp_path / "ours")


@pytest.mark.parametrize(
    "choices",
    [
        {"kv_heads": 2, "tied": False, **dict.fromkeys(BIASES, False)},
        {"kv_heads": 1, "hidden": 40, "rotary_base": 300.0, "norm_epsilon": 1e-3},
        {
            "head_width": 12,
            "rotary_scaling": RotaryScaling(factor=4.0, original_context=32),
            "rotary_base": 50.0,
        },
    ],
)
def test_our_weights_in_their_model(choices: dict[str, Any], tmp_path: Path) -> None:
    our_model = randomised(GPT(GPTConfig(**({"hidden": 128} | OURS | choices))))
    write_folder(our_model, tmp_path)
    their_model = loaded(AutoModelForCausalLM, tmp_path)
    token_ids = ids(V, 2, 100)
    assert furthest(our_model(token_ids), their_model(token_ids).logits) < 1e-4

    back = read_folder(tmp_path)
    assert back.config == our_model.config
    assert same_weights(back, our_model)


@pytest.mark.parametrize("rope", [{"rope_type": "default"}, STRETCHED])
def test_far_positions(rope: dict[str, Any], tmp_path: Path) -> None:
    """At far positions, an error in a rotary frequency would have grown a thousandfold."""
    their_model = theirs(
        head_dim=32, max_position_embeddings=2000, rope_parameters=rope | {"rope_theta": 50000.0}
    )
    our_model = read_folder(saved(their_model, tmp_path))
    token_ids = ids(V, 1, 2000)
    with torch.inference_mode():
        assert furthest(our_model(token_ids), their_model(token_ids).logits) < 1e-4


@pytest.mark.parametrize("spelling", ["rope_type", "type"])
def test_older_files_keep_rotary_settings_elsewhere(spelling: str, tmp_path: Path) -> None:
    their_model = theirs(rope_parameters=STRETCHED | {"rope_theta": 100.0})
    saved(their_model, tmp_path)
    older = {spelling if key == "rope_type" else key: value for key, value in STRETCHED.items()}
    edit_config(
        tmp_path, drop=("rope_parameters", "head_dim"), rope_theta=100.0, rope_scaling=older
    )
    token_ids = ids(V, 2, 100)
    assert furthest(read_folder(tmp_path)(token_ids), their_model(token_ids).logits) < 1e-4


def test_the_stretching_matters(tmp_path: Path) -> None:
    """Rotary scaling changes the logits; otherwise the tests above would prove nothing."""
    saved(theirs(rope_parameters=STRETCHED | {"rope_theta": 100.0}), tmp_path)
    token_ids = ids(V, 2, 100)
    stretched = read_folder(tmp_path)(token_ids)
    edit_config(tmp_path, rope_parameters={"rope_type": "default", "rope_theta": 100.0})
    assert furthest(read_folder(tmp_path)(token_ids), stretched) > 0.1


def test_both_layouts_of_rotary_settings_are_written(tmp_path: Path) -> None:
    scaling = RotaryScaling(factor=4.0, original_context=32)
    write_folder(GPT(GPTConfig(**OURS, rotary_base=50.0, rotary_scaling=scaling)), tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    assert values["rope_theta"] == values["rope_parameters"]["rope_theta"] == 50.0
    assert values["rope_scaling"].items() <= values["rope_parameters"].items()


def test_old_buffers_and_the_tied_output_are_passed_over(tmp_path: Path) -> None:
    their_model = theirs(tie_word_embeddings=True)
    saved(their_model, tmp_path)
    old = tensors(tmp_path)
    old["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    old["lm_head.weight"] = old["model.embed_tokens.weight"].clone()
    replace_tensors(tmp_path, old)
    token_ids = ids(V)
    assert furthest(read_folder(tmp_path)(token_ids), their_model(token_ids).logits) < 1e-4
