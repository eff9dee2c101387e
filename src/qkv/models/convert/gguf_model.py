"""A Llama in a GGUF file; tensors are dequantised.

Fields and tensors get the names that `transformers` has for a Llama, and hf_llama.py reads them.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.imports import require
from qkv.models.convert import hf_llama
from qkv.models.convert.config_fields import Fields
from qkv.models.convert.hf_folder import refuse_pickle
from qkv.models.convert.hf_format import model_from_hf
from qkv.models.convert.weight_rules import Weights
from qkv.models.model import Model
from qkv.nn.position import RotaryScaling, stretch
from qkv.text.loaders.gguf_file import GGUFFile

FIELDS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "feed_forward_length": "intermediate_size",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
OPTIONAL_FIELDS = {
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "rope.freq_base": "rope_theta",
}
HARMLESS_FIELDS = ("vocab_size", "tensor_data_layout")
NEUTRAL = {"rope.scaling.type": "none", "rope.scaling.factor": 1.0, "rope.scale_linear": 1.0}
"""Fields that change nothing when they have this value."""

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
ROTARY_FACTORS = "rope_freqs.weight"


def read_gguf(
    path: Path | str, *, dtype: torch.dtype = torch.float32, allow_nonfinite: bool = False
) -> Model:
    """Read a Llama from a GGUF file.

    Args:
        path: The file.
        dtype: The dtype of the weights.
        allow_nonfinite: Load NaN and infinite weights instead of raising.

    Returns:
        The model in evaluation mode (dropout off).

    Raises:
        ValueError: If the file is damaged, or holds a model that is not supported.
        ImportError: If the package gguf is not installed.
    """
    path = Path(path)
    refuse_pickle(path)
    file = GGUFFile(path)

    try:
        fields = Fields(config_to_hf(file), str(path))
        weights = weights_to_hf(fields, file.tensors, allow_nonfinite)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error

    return model_from_hf(hf_llama.FORMAT, fields, weights, dtype)


def config_to_hf(file: GGUFFile) -> dict[str, Any]:
    """Return the file's fields as `transformers` names them."""
    check_kind(file)
    tensors = file.tensors
    llama = {}
    for name, value in file.fields("llama.").items():
        llama[name.removeprefix("llama.")] = value

    if missing := sorted(FIELDS.keys() - llama.keys()):
        raise ValueError(f"llama.{missing[0]}: this field is missing")

    values: dict[str, Any] = {}
    for name, their_name in {**FIELDS, **OPTIONAL_FIELDS}.items():
        if name in llama:
            values[their_name] = llama[name]

    # What a GGUF file states by its tensors.
    values["vocab_size"] = int(tensors["token_embd.weight"].shape[-1])
    values["tie_word_embeddings"] = "output.weight" not in tensors
    values["attention_bias"] = "blk.0.attn_q.bias" in tensors
    values["mlp_bias"] = "blk.0.ffn_up.bias" in tensors

    fields = Fields(values, "")
    heads = max(1, fields.whole("num_attention_heads", 1))
    head_width = fields.whole("head_dim", fields.whole("hidden_size", 0) // heads)
    check_other_fields(llama, head_width)

    if ROTARY_FACTORS in tensors:
        factors = dequantized(tensors[ROTARY_FACTORS])
        base = fields.number("rope_theta", 10000.0)
        values["rope_parameters"] = rotary_to_hf(factors, base, head_width)

    return values


def check_kind(file: GGUFFile) -> None:
    architecture = file.fields("general.architecture").get("general.architecture")
    if architecture != "llama":
        raise ValueError(f"general.architecture: expected llama, not {architecture!r}")

    files = file.fields("split.count").get("split.count", 1)
    if files not in (0, 1):
        raise ValueError(f"split.count: expected a file that is not split, not {files} parts")

    for name in ("token_embd.weight", "output_norm.weight"):
        if name not in file.tensors:
            raise ValueError(f"{name}: this tensor is missing")


def check_other_fields(llama: dict[str, Any], head_width: int) -> None:
    """Raise for a field that changes the computation in a way that is not supported."""
    known = {*FIELDS, *OPTIONAL_FIELDS, *HARMLESS_FIELDS}
    neutral = {**NEUTRAL, "rope.dimension_count": head_width, "attention.value_length": head_width}

    for name, value in llama.items():
        if name in known or not value or value == neutral.get(name):
            continue

        raise ValueError(
            f"llama.{name}: {value!r} is not supported here; "
            f"expected {neutral.get(name, 'no such field')}"
        )


def rotary_to_hf(factors: Tensor, base: float, head_width: int) -> dict[str, Any]:
    """Return rope_parameters for the frequency factors of llama.cpp; only Llama 3's are known."""
    if bool((factors == 1).all()):
        return {}

    scaling = RotaryScaling(factor=float(factors.max()))
    frequencies = 1.0 / base ** (torch.arange(0, head_width, 2) / head_width)
    expected = frequencies / stretch(frequencies, scaling)
    if factors.shape != expected.shape or not torch.allclose(expected, factors, rtol=1e-4):
        raise ValueError(
            f"{ROTARY_FACTORS}: expected the factors of Llama 3's stretched rotary positions"
        )

    return hf_llama.scaling_to_hf(scaling)


def weights_to_hf(fields: Fields, tensors: dict[str, Any], allow_nonfinite: bool) -> Weights:
    """Return the tensors under the names of `transformers`; each is dequantised when read."""
    heads = fields.whole("num_attention_heads", 1)
    rotary_heads = {"attn_q": heads, "attn_k": fields.whole("num_key_value_heads", heads)}
    read = {}

    for name, tensor in tensors.items():
        if name != ROTARY_FACTORS:
            module = name.rpartition(".")[0].rpartition(".")[2]  # attn_q of blk.0.attn_q.weight
            read[name_to_hf(name)] = partial(dequantized, tensor, rotary_heads.get(module, 0))

    return Weights(read, fields.origin, allow_nonfinite=allow_nonfinite)


def name_to_hf(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    *block, part = stem.split(".")
    if len(block) == 2 and block[0] == "blk" and part in BLOCK_NAMES:
        return f"model.layers.{block[1]}.{BLOCK_NAMES[part]}.{kind}"
    if not block and part in NAMES:
        return f"{NAMES[part]}.{kind}"

    raise ValueError(f"{name}: a Llama has no such tensor")


def dequantized(tensor: Any, permuted_heads: int = 0) -> Tensor:
    """Return the tensor as float32, with the rows of queries and keys in our order."""
    plain = np.asarray(tensor.data)  # every view of a numpy.memmap is slow
    try:
        array = require("gguf").dequantize(plain, tensor.tensor_type)
    except NotImplementedError as error:
        raise ValueError(f"{tensor.tensor_type.name} numbers cannot be read ({error})") from error

    x = torch.from_numpy(np.array(array, dtype=np.float32))  # a copy, not a view of the file
    if not permuted_heads:
        return x
    if x.shape[0] % (2 * permuted_heads):
        raise ValueError(
            f"expected pairs of rows for {permuted_heads} heads, not {x.shape[0]} rows"
        )

    # llama.cpp puts the two dimensions of a rotary pair side by side; ours are half a head apart.
    return x.unflatten(0, (permuted_heads, -1, 2)).transpose(1, 2).flatten(0, 2)  # (rows, ...)
