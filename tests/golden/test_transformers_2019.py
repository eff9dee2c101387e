"""Folders of 2019 without model_type and class: the tensors' names decide the family."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    BertForPreTraining,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Model,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
    RobertaConfig,
    RobertaModel,
)

from qkv.models import BERT, GPT, Transformer
from qkv.models.convert import read_folder
from qkv.models.convert.detect_family import FAMILY_TENSORS, detect_family
from support.tiny_transformers import (
    edit_config,
    furthest,
    ids,
    randomised,
    replace_tensors,
    saved,
    tensors,
)

V = 40
GPT2 = {"vocab_size": V, "n_positions": 16, "n_ctx": 16, "n_embd": 12, "n_layer": 2, "n_head": 3}
GPT2 |= {"initializer_range": 0.02, "layer_norm_epsilon": 1e-5}
BERT_2019 = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 12,
    "initializer_range": 0.02,
    "intermediate_size": 20,
    "max_position_embeddings": 16,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "type_vocab_size": 2,
    "vocab_size": V,
}
LLAMA = {
    "vocab_size": V,
    "hidden_size": 12,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "max_position_embeddings": 16,
    "rms_norm_eps": 1e-6,
}
MARIAN = {
    "vocab_size": V,
    "d_model": 12,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "max_position_embeddings": 16,
    "pad_token_id": V - 1,
    "decoder_start_token_id": V - 1,
    "scale_embedding": True,
    "activation_function": "swish",
    "static_position_embeddings": True,
}


def folder_2019(model: Any, config: dict[str, Any], path: Path, old_norms: bool = False) -> Path:
    """Write tensors, maybe with LayerNorm's old names, and a config.json with only these fields."""
    saved(model, path)
    (path / "config.json").write_text(json.dumps(config))
    if old_norms:
        norm = re.compile(r"(.*(?:LayerNorm|ln_[12f]))\.(weight|bias)")
        new = {"weight": "gamma", "bias": "beta"}
        renamed = {
            f"{actual[1]}.{new[actual[2]]}" if (actual := norm.fullmatch(name)) else name: tensor
            for name, tensor in tensors(path).items()
        }
        assert any(name.endswith(".gamma") for name in renamed)
        replace_tensors(path, renamed)

    return path


@pytest.mark.parametrize("old_norms", [False, True])
def test_gpt2(old_norms: bool, tmp_path: Path) -> None:
    theirs = randomised(GPT2LMHeadModel(GPT2Config(**GPT2, bos_token_id=0, eos_token_id=0)))
    ours = read_folder(folder_2019(theirs, GPT2, tmp_path / "whole", old_norms))
    assert isinstance(ours, GPT)
    token_ids = ids(V)
    assert furthest(ours(token_ids), theirs(token_ids).logits) < 1e-4

    bare = read_folder(folder_2019(theirs.transformer, GPT2, tmp_path / "bare", old_norms))
    assert isinstance(theirs.transformer, GPT2Model)
    assert furthest(bare(token_ids), theirs(token_ids).logits) < 1e-4


@pytest.mark.parametrize("old_norms", [False, True])
def test_bert(old_norms: bool, tmp_path: Path) -> None:
    theirs = randomised(BertForPreTraining(BertConfig(**BERT_2019)))
    ours = read_folder(folder_2019(theirs, BERT_2019, tmp_path / "whole", old_norms))
    assert isinstance(ours, BERT)
    token_ids = ids(V)
    assert furthest(ours(token_ids), theirs(token_ids).prediction_logits) < 1e-4

    bare = read_folder(folder_2019(theirs.bert, BERT_2019, tmp_path / "bare", old_norms))
    assert isinstance(theirs.bert, BertModel)
    assert furthest(bare.hidden(token_ids), theirs.bert(token_ids).last_hidden_state) < 1e-4


def test_llama_and_marian(tmp_path: Path) -> None:
    theirs = randomised(LlamaForCausalLM(LlamaConfig(**LLAMA)))
    ours = read_folder(folder_2019(theirs, LLAMA, tmp_path / "llama"))
    assert isinstance(ours, GPT)
    token_ids = ids(V)
    assert furthest(ours(token_ids), theirs(token_ids).logits) < 1e-4

    translator = randomised(MarianMTModel(MarianConfig(**MARIAN)))
    ours = read_folder(folder_2019(translator, MARIAN, tmp_path / "marian"))
    assert isinstance(ours, Transformer)
    target = ids(V)
    right = translator(
        input_ids=token_ids, decoder_input_ids=target, attention_mask=torch.ones_like(token_ids)
    ).logits
    assert furthest(ours(token_ids, target), right) < 1e-4


def test_a_roberta_is_not_taken_for_a_bert(tmp_path: Path) -> None:
    """RoBERTa's tensors have the same names, but its positions start at 2."""
    config = BERT_2019 | {"type_vocab_size": 1, "max_position_embeddings": 18}
    folder = folder_2019(RobertaModel(RobertaConfig(**config)), config, tmp_path)
    with pytest.raises(
        ValueError, match=r'config\.json: model_type: .* a BERT or a RoBERTa; add "model_type"'
    ):
        read_folder(folder)


def test_a_gemma_is_not_taken_for_a_llama(tmp_path: Path) -> None:
    theirs = LlamaForCausalLM(LlamaConfig(**LLAMA))
    folder = folder_2019(theirs, LLAMA | {"hidden_activation": "gelu_pytorch_tanh"}, tmp_path)
    with pytest.raises(
        ValueError, match=r"model_type: .* hidden_activation is not a field of its config; add"
    ):
        read_folder(folder)

    edit_config(folder, model_type="llama")
    read_folder(folder)


def test_names_that_tell_nothing_or_too_much() -> None:
    with pytest.raises(
        ValueError, match=r"model_type: .* are of none of gpt2, bert, llama, marian; add"
    ):
        detect_family({}, ["layer.0.weight"])

    with pytest.raises(ValueError, match=r"model_type: .* are of none of"):
        detect_family({}, ["tokens_embed.weight", "h.0.attn.c_attn.weight"])  # GPT-1

    both = [
        "wte.weight",
        "h.0.attn.c_attn.weight",
        "embed_tokens.weight",
        "layers.0.self_attn.q_proj.weight",
    ]
    with pytest.raises(ValueError, match=r"model_type: .* could be gpt2 or llama; add"):
        detect_family({}, both)

    assert list(FAMILY_TENSORS) == ["gpt2", "bert", "llama", "marian"]
