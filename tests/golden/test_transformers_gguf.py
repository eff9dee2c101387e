"""GGUF: a tiny Llama, written as llama.cpp does, gives the logits of `transformers`.

tests/golden/test_real_weights.py does the same with a published file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from qkv.models.convert import read_gguf
from qkv.nn.position import RotaryScaling
from support.tiny_gguf import write_gguf
from support.tiny_transformers import furthest, ids, randomised

V = 33
SMALL: dict[str, Any] = {
    "vocab_size": V,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 9000,
}
STRETCHED: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 50000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def theirs(**choices: Any) -> Any:
    return randomised(LlamaForCausalLM(LlamaConfig(**(SMALL | choices))))


@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"num_key_value_heads": 2, "tie_word_embeddings": True},
        {"num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-3},
        {"head_dim": 16, "rope_parameters": {"rope_type": "default", "rope_theta": 300.0}},
        {"head_dim": 32, "rope_parameters": STRETCHED},
    ],
)
def test_their_weights_in_our_model(choices: dict[str, Any], tmp_path: Path) -> None:
    their_model = theirs(**choices)
    our_model = read_gguf(write_gguf(their_model, tmp_path / "model.gguf"))
    token_ids = ids(V, 2, 100)
    assert furthest(our_model(token_ids), their_model(token_ids).logits) < 1e-4
    if choices.get("rope_parameters") is STRETCHED:
        assert our_model.config.rotary_scaling == RotaryScaling(8.0, 1.0, 4.0, 8192)

    assert our_model.config.tied == their_model.config.tie_word_embeddings


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q5_1"])
def test_quantised_tensors(kind: str, tmp_path: Path) -> None:
    """Their model gets the dequantised numbers too."""
    quantised = gguf.GGMLQuantizationType[kind]
    their_model = theirs(num_key_value_heads=2)
    with torch.no_grad():
        for parameter in their_model.parameters():
            if parameter.dim() == 2:
                rounded = gguf.dequantize(gguf.quantize(parameter.numpy(), quantised), quantised)
                assert not np.array_equal(rounded, parameter.numpy())
                parameter.copy_(torch.from_numpy(rounded.copy()))

    our_model = read_gguf(write_gguf(their_model, tmp_path / "model.gguf", quantised))
    token_ids = ids(V)
    assert furthest(our_model(token_ids), their_model(token_ids).logits) < 1e-4
    assert {parameter.dtype for parameter in our_model.parameters()} == {torch.float32}
    narrow = read_gguf(tmp_path / "model.gguf", dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in narrow.parameters()} == {torch.bfloat16}
