"""Folders of `transformers`: shards, dtypes and tokenizers."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
)

from qkv.models import BERT, GPT, BERTConfig, GPTConfig, Model, Transformer, TransformerConfig
from qkv.models.convert import read_folder, write_folder
from support.tiny_transformers import (
    furthest,
    ids,
    loaded,
    randomised,
    same_weights,
    saved,
    tensors,
)

V = 40
SMALL: dict[str, Any] = {"vocabulary": V, "context": 32, "width": 16, "depth": 3, "heads": 2}


def llama() -> Any:
    return randomised(
        LlamaForCausalLM(
            LlamaConfig(
                vocab_size=V,
                hidden_size=16,
                intermediate_size=24,
                num_hidden_layers=3,
                num_attention_heads=2,
                max_position_embeddings=32,
            )
        )
    )


def test_their_shards(tmp_path: Path) -> None:
    their_model = llama()
    saved(their_model, tmp_path / "whole")
    saved(their_model, tmp_path / "shards", max_shard_size="6KB")
    assert len(list((tmp_path / "shards").glob("model-*.safetensors"))) > 2
    assert same_weights(read_folder(tmp_path / "shards"), read_folder(tmp_path / "whole"))


def test_our_shards(tmp_path: Path) -> None:
    our_model = randomised(GPT(GPTConfig(**SMALL, tied=False)))
    limit = 6000
    write_folder(our_model, tmp_path, max_shard_bytes=limit)
    files = sorted(tmp_path.glob("model-*.safetensors"))
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert len(files) > 2
    assert not (tmp_path / "model.safetensors").exists()
    assert {file.name for file in files} == set(index["weight_map"].values())
    assert index["metadata"]["total_size"] == sum(
        tensor.nbytes for tensor in tensors(tmp_path).values()
    )
    sizes = [sum(tensor.nbytes for tensor in load_file(file).values()) for file in files]
    assert max(sizes) <= limit
    assert all(one + next_one > limit for one, next_one in pairwise(sizes)), (
        "no two shards would fit into one"
    )

    token_ids = ids(V)
    assert (
        furthest(our_model(token_ids), loaded(AutoModelForCausalLM, tmp_path)(token_ids).logits)
        < 1e-4
    )
    assert same_weights(read_folder(tmp_path), our_model)


def test_a_tensor_larger_than_a_shard_has_one_of_its_own(tmp_path: Path) -> None:
    our_model = GPT(GPTConfig(**SMALL))
    write_folder(our_model, tmp_path, max_shard_bytes=1)
    assert len(list(tmp_path.glob("model-*.safetensors"))) == len(our_model.state_dict())
    assert same_weights(read_folder(tmp_path), our_model)


def test_numbers_are_float32_unless_the_file_s_own_are_asked_for(tmp_path: Path) -> None:
    saved(llama().bfloat16(), tmp_path / "theirs")
    wide = read_folder(tmp_path / "theirs")
    narrow = read_folder(tmp_path / "theirs", dtype=None)
    assert {parameter.dtype for parameter in wide.parameters()} == {torch.float32}
    assert {parameter.dtype for parameter in narrow.parameters()} == {torch.bfloat16}
    token_ids = ids(V)
    their_model = loaded(AutoModelForCausalLM, tmp_path / "theirs", dtype=torch.float32)
    assert furthest(wide(token_ids), their_model(token_ids).logits) < 1e-4

    write_folder(narrow, tmp_path / "ours")
    assert {tensor.dtype for tensor in tensors(tmp_path / "ours").values()} == {torch.bfloat16}
    assert loaded(AutoModelForCausalLM, tmp_path / "ours").dtype == torch.bfloat16
    assert same_weights(read_folder(tmp_path / "ours", dtype=None), narrow)


def test_a_model_outlives_its_folder(tmp_path: Path) -> None:
    write_folder(GPT(GPTConfig(**SMALL)), tmp_path)
    our_model = read_folder(tmp_path)
    before = {name: tensor.clone() for name, tensor in our_model.state_dict().items()}
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"\0" * file.stat().st_size)
    assert all(torch.equal(tensor, before[name]) for name, tensor in our_model.state_dict().items())


def test_what_is_read_can_be_trained(tmp_path: Path) -> None:
    write_folder(GPT(GPTConfig(**SMALL)), tmp_path)
    our_model = read_folder(tmp_path).train()
    our_model(ids(V)).square().mean().backward()
    assert all(parameter.grad is not None for parameter in our_model.parameters())
    assert all(parameter.is_contiguous() for parameter in our_model.parameters())


MODELS = {
    "gpt2": lambda: GPT(GPTConfig(**SMALL)),
    "llama": lambda: GPT(GPTConfig(**SMALL, position="rotary", norm="rms", activation="swiglu")),
    "bert": lambda: BERT(BERTConfig(**SMALL)),
    "marian": lambda: Transformer(TransformerConfig(**SMALL)),
}


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    token_ids = Tokenizer(WordLevel({"[UNK]": 0, "the": 1, "cat": 2, "sat": 3}, unk_token="[UNK]"))
    token_ids.pre_tokenizer = Whitespace()
    (tmp_path / "words").mkdir()
    token_ids.save(str(tmp_path / "words" / "tokenizer.json"))
    return tmp_path / "words"


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("inputs", ["file", "folder"])
def test_a_tokenizer_comes_along(family: str, inputs: str, tokenizer: Path, tmp_path: Path) -> None:
    write_folder(
        MODELS[family](),
        tmp_path / "model",
        tokenizer=tokenizer / "tokenizer.json" if inputs == "file" else tokenizer,
    )
    their_tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert their_tokenizer("the cat sat there", add_special_tokens=False)["input_ids"] == [
        1,
        2,
        3,
        0,
    ]


def test_what_lies_beside_a_tokenizer_comes_along(tokenizer: Path, tmp_path: Path) -> None:
    beside = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[UNK]"}
    (tokenizer / "tokenizer_config.json").write_text(json.dumps(beside))
    (tokenizer / "special_tokens_map.json").write_text(json.dumps({"pad_token": "[UNK]"}))
    write_folder(MODELS["marian"](), tmp_path / "model", tokenizer=tokenizer)
    assert json.loads((tmp_path / "model" / "tokenizer_config.json").read_text()) == beside
    assert AutoTokenizer.from_pretrained(tmp_path / "model").pad_token_id == 0
    assert loaded(AutoModelForSeq2SeqLM, tmp_path / "model").config.vocab_size == V


@pytest.mark.parametrize("family", MODELS)
def test_nothing_else_is_left_in_the_folder(family: str, tmp_path: Path) -> None:
    model: Model = MODELS[family]()
    write_folder(model, tmp_path)
    expected = {"config.json", "model.safetensors", "tokenizer_config.json"}
    assert {path.name for path in tmp_path.iterdir()} == expected
    (tmp_path / "another file").touch()
    assert len({path.stat().st_mode for path in tmp_path.iterdir()}) == 1, (
        "who may read one may read all"
    )
