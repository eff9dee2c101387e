"""GPT-2: our GPT and `transformers` give the same logits, whichever wrote the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, GPT2Model

from qkv.models import GPT, GPTConfig
from qkv.models.convert import read_folder, write_folder
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

V = 37
SMALL: dict[str, Any] = {
    "vocab_size": V,
    "n_positions": 16,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
}
NO_IDS: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None}
OURS: dict[str, Any] = {"vocabulary": V, "context": 16, "width": 32, "depth": 2, "heads": 4}


def theirs(**choices: Any) -> Any:
    return randomised(GPT2LMHeadModel(GPT2Config(**SMALL, **NO_IDS, **choices)))


@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"n_inner": 40, "activation_function": "gelu", "layer_norm_epsilon": 1e-3},
        {"tie_word_embeddings": False, "activation_function": "relu"},
        {"activation_function": "silu"},
        {"activation_function": "relu2", "reorder_and_upcast_attn": True},
    ],
)
def test_their_weights_in_our_model(choices: dict[str, Any], tmp_path: Path) -> None:
    their_model = theirs(**choices)
    our_model = read_folder(saved(their_model, tmp_path / "theirs"))
    token_ids = ids(V)
    padding_mask = padding()
    assert isinstance(our_model, GPT)
    assert not our_model.training
    assert furthest(our_model(token_ids), their_model(token_ids).logits) < 1e-4
    padded = their_model(token_ids, attention_mask=padding_mask.long()).logits
    assert furthest(our_model(token_ids, padding_mask=padding_mask), padded, padding_mask) < 1e-4

    write_folder(our_model, tmp_path / "ours")
    assert same_files(tmp_path / "theirs", tmp_path / "ours")


@pytest.mark.parametrize(
    "choices",
    [
        {"activation": "gelu_tanh"},
        {"tied": False, "hidden": 48},
        {"activation": "relu2", "norm_epsilon": 1e-3},
    ],
)
def test_our_weights_in_their_model(choices: dict[str, Any], tmp_path: Path) -> None:
    our_model = randomised(GPT(GPTConfig(**OURS, **choices)))
    write_folder(our_model, tmp_path, end_id=3)
    their_model = loaded(AutoModelForCausalLM, tmp_path)
    token_ids = ids(V)
    assert furthest(our_model(token_ids), their_model(token_ids).logits) < 1e-4
    assert their_model.config.eos_token_id == 3

    back = read_folder(tmp_path)
    assert back.config == our_model.config
    assert same_weights(back, our_model)


def test_the_inner_model_alone_has_no_prefix(tmp_path: Path) -> None:
    inner = randomised(GPT2Model(GPT2Config(**SMALL, **NO_IDS)))
    our_model = read_folder(saved(inner, tmp_path))
    token_ids = ids(V)
    assert furthest(our_model.hidden(token_ids), inner(token_ids).last_hidden_state) < 1e-4


def test_old_files_hold_the_mask_and_the_tied_output_too(tmp_path: Path) -> None:
    their_model = theirs()
    saved(their_model, tmp_path)
    old = tensors(tmp_path)
    old["lm_head.weight"] = old["transformer.wte.weight"].clone()
    for layer in range(2):
        old[f"transformer.h.{layer}.attn.bias"] = torch.ones(1, 1, 16, 16)
        old[f"transformer.h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)

    replace_tensors(tmp_path, old)
    edit_config(tmp_path, drop=("model_type", "n_inner", "tie_word_embeddings"))
    token_ids = ids(V)
    assert furthest(read_folder(tmp_path)(token_ids), their_model(token_ids).logits) < 1e-4
