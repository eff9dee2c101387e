"""What is saved is what is loaded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from qkv.artifact import load, save
from qkv.models import BERT, GPT, RNN, BERTConfig, GPTConfig, RNNConfig, Transformer, TransformerConfig
from qkv.models.foreign import write_folder
from qkv.nn.position import RotaryScaling

SMALL = {"vocabulary": 40, "width": 16, "depth": 2, "heads": 2}
MODELS = {
    "gpt": GPT(GPTConfig(**SMALL, context=32, position="rotary", rotary_scaling=RotaryScaling(factor=2.0))),
    "bert": BERT(BERTConfig(**SMALL, context=32)),
    "transformer": Transformer(TransformerConfig(**SMALL, tied="two")),
    "rnn": RNN(RNNConfig(vocabulary=40, width=16, cell="lstm")),
}


@pytest.mark.parametrize("family", MODELS)
def test_loaded_equals_saved(family: str, tmp_path: Path) -> None:
    model = MODELS[family]
    save(model, tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert loaded.config == model.config
    assert type(loaded) is type(model)
    assert not loaded.training
    before, after = model.state_dict(), loaded.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_model_outlives_its_folder(tmp_path: Path) -> None:
    save(MODELS["gpt"], tmp_path / "model")
    loaded = load(tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(b"\0" * weights.stat().st_size)
    assert torch.equal(loaded.embedding.token.weight, MODELS["gpt"].embedding.token.weight)


def test_load_knows_a_folder_of_transformers(tmp_path: Path) -> None:
    model = GPT(GPTConfig(**SMALL, context=32, activation="gelu_tanh")).eval()
    write_folder(model, tmp_path / "theirs")
    ids = torch.randint(40, (2, 9))
    assert torch.equal(load(tmp_path / "theirs")(ids), model(ids))


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    save(MODELS["gpt"], tmp_path)
    with pytest.raises(ValueError, match=r"already here; choose an empty folder"):
        save(MODELS["bert"], tmp_path)
    assert load(tmp_path).config == MODELS["gpt"].config


def test_a_config_with_an_unknown_key_is_refused(tmp_path: Path) -> None:
    save(MODELS["gpt"], tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "headz": 4}))
    with pytest.raises(ValueError, match=r"config\.json: headz: the gpt config has no such key; did you mean heads\?"):
        load(tmp_path)


def test_weights_of_another_size_are_refused(tmp_path: Path) -> None:
    save(MODELS["gpt"], tmp_path)
    other = replace(MODELS["gpt"].config, hidden=8)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "hidden": other.hidden}))
    with pytest.raises(ValueError, match=r"model\.safetensors: .*up\.weight has shape \(64, 16\), expected \(8, 16\)"):
        load(tmp_path)


@pytest.mark.parametrize("keep", [0, 7, 200, -1])
def test_a_cut_off_weight_file_is_refused(keep: int, tmp_path: Path) -> None:
    save(MODELS["gpt"], tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"model\.safetensors: not a whole safetensors file"):
        load(tmp_path)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere.*config\.json"):
        load(tmp_path / "nowhere")


@pytest.mark.usefixtures("without_shape_checks")
def test_a_compiled_model_is_saved_as_itself(tmp_path: Path) -> None:
    save(torch.compile(MODELS["gpt"]), tmp_path)
    assert torch.equal(load(tmp_path).embedding.token.weight, MODELS["gpt"].embedding.token.weight)


def test_weights_that_are_no_fractions_are_refused(tmp_path: Path) -> None:
    model = GPT(GPTConfig(**SMALL, context=32)).half()
    model.embedding.token.float()
    save(model, tmp_path)
    with pytest.raises(
        ValueError, match=r"expected tensors of one floating-point dtype, not torch\.float16, torch\.float32"
    ):
        load(tmp_path)
