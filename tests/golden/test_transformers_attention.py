"""Captured attention weights are those of `transformers` with output_attentions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
)

from qkv.insight.inspect.capture import capture_attention
from qkv.models.convert import read_folder
from support.readings import reading
from support.tiny_transformers import ids, randomised, saved

V, T, S = 41, 11, 6
EAGER = {"attn_implementation": "eager"}
SMALL = {
    "vocab_size": V,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}
MODELS: dict[str, Any] = {
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=V, n_embd=32, n_layer=3, n_head=4, **EAGER)
    ),
    "bert": lambda: BertForMaskedLM(BertConfig(**SMALL, **EAGER)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL, num_key_value_heads=2, **EAGER)),
}


@pytest.mark.parametrize("family", MODELS)
def test_self_attention(family: str, tmp_path: Path) -> None:
    theirs = randomised(MODELS[family]())
    ours = read_folder(saved(theirs, tmp_path / "model")).eval()
    token_ids = ids(V, 1, T)
    with torch.no_grad():
        expected = theirs(token_ids, output_attentions=True).attentions

    (actual,) = capture_attention(ours, reading(token_ids[0].tolist()))
    assert len(actual.layers) == len(expected) == 3
    for layer, weights in actual.layers.items():
        assert_close(weights, expected[layer][0], rtol=0, atol=2e-6)


def test_encoder_decoder_and_cross_attention(tmp_path: Path) -> None:
    config = MarianConfig(
        vocab_size=V,
        d_model=32,
        encoder_layers=2,
        decoder_layers=3,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        pad_token_id=V - 1,
        decoder_start_token_id=V - 1,
        max_position_embeddings=64,
        **EAGER,
    )
    theirs = randomised(MarianMTModel(config))
    ours = read_folder(saved(theirs, tmp_path / "model")).eval()
    source = ids(V - 1, 1, S)
    target = ids(V - 1, 1, T)
    with torch.no_grad():
        output = theirs(source, decoder_input_ids=target, output_attentions=True)

    expected = {
        "encoder": output.encoder_attentions,
        "decoder": output.decoder_attentions,
        "cross": output.cross_attentions,
    }
    actual = capture_attention(ours, reading(target[0].tolist(), source[0].tolist()))
    assert [item.kind for item in actual] == list(expected)
    for item in actual:
        assert len(item.layers) == len(expected[item.kind])
        for layer, weights in item.layers.items():
            assert_close(weights, expected[item.kind][layer][0], rtol=0, atol=2e-6)
