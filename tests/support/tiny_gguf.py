"""Write a Llama of `transformers` as a GGUF file, as llama.cpp does."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np

PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
F32 = gguf.GGMLQuantizationType.F32


def their_name(name: str) -> str:
    for long, short in PARTS.items():
        name = name.replace(long, short)

    return name.replace("model.layers.", "blk.")


def pairs_side_by_side(rows: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Row i of a head and row i + D/2 become rows 2i and 2i + 1."""
    width = rows.shape[0] // heads
    order = [
        head * width + i + half
        for head in range(heads)
        for i in range(width // 2)
        for half in (0, width // 2)
    ]
    return rows[order]


def frequency_factors(rope: dict[str, Any], head_width: int) -> np.ndarray[Any, Any]:
    """Return the factor by which each rotary frequency is divided."""
    factors = []
    for i in range(0, head_width, 2):
        wave = 2 * math.pi * rope["rope_theta"] ** (i / head_width)
        turns = rope["original_max_position_embeddings"] / wave
        low = rope["low_freq_factor"]
        high = rope["high_freq_factor"]
        if turns > high:
            factors.append(1.0)
        elif turns < low:
            factors.append(rope["factor"])
        else:
            smooth = (turns - low) / (high - low)
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))

    return np.array(factors, dtype=np.float32)


def write_gguf(
    model: Any,
    path: Path,
    matrices: gguf.GGMLQuantizationType = F32,
    *,
    fields: dict[str, Any] | None = None,
    drop: tuple[str, ...] = (),
    tensors: dict[str, Any] | None = None,
    architecture: str = "llama",
    endianess: gguf.GGUFEndian = gguf.GGUFEndian.LITTLE,
    split: int = 1,
) -> Path:
    config = model.config
    writer = gguf.GGUFWriter(path, architecture, endianess=endianess)
    writer.add_name("tiny")
    writer.add_uint16("split.count", split)
    writer.add_token_list([f"word {i}" for i in range(config.vocab_size)])
    writer.add_token_types([1] * config.vocab_size)
    rope = config.rope_parameters
    values = {
        "vocab_size": config.vocab_size,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.dimension_count": config.head_dim,
        "rope.freq_base": rope["rope_theta"],
    } | (fields or {})
    add = {
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    for name, value in values.items():
        if name not in drop:
            add[type(value)](f"{architecture}.{name}", value)

    add_tensors(writer, model, matrices, drop)
    for name, array in (tensors or {}).items():
        writer.add_tensor(name, array)

    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_tensors(
    writer: gguf.GGUFWriter,
    model: Any,
    matrices: gguf.GGMLQuantizationType,
    drop: tuple[str, ...],
) -> None:
    """Add the weights under llama.cpp's names, matrices quantised, rotary pairs side by side."""
    config = model.config
    arrays = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    if config.tie_word_embeddings:
        del arrays["lm_head.weight"]

    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, array in arrays.items():
        part = name.split(".")[-2]
        if part in heads:
            array = pairs_side_by_side(array, heads[part])

        kind = F32
        if array.ndim == 2:
            kind = matrices

        if their_name(name) not in drop:
            writer.add_tensor(their_name(name), gguf.quantize(array, kind), raw_dtype=kind)

    rope = config.rope_parameters
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", frequency_factors(rope, config.head_dim))
