"""GGUF, the one-file format of hf_llama.cpp, for the Llama architecture; quantised tensors become
ordinary ones.

A file is read as Llama in other words: its fields and tensors get the names of hf_llama.py and take
the same way.
"""

from __future__ import annotations

import struct
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv import storage
from qkv.models.convert import hf_llama
from qkv.models.convert.config_fields import Fields
from qkv.models.convert.hf_folder import refuse_pickle
from qkv.models.convert.weight_rules import Weights, assemble
from qkv.models.registry import Model
from qkv.nn.position import RotaryScaling, stretch

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
    """A Llama from a GGUF file. Dropout is off; weights that are NaN or infinite are refused unless
    allowed.
    """
    path = Path(path)
    reader = open_gguf(path)
    tensors = {tensor.name: tensor for tensor in reader.tensors}

    try:
        fields = Fields(
            config_of({name: value_of(field) for name, field in reader.fields.items()}, tensors),
            str(path),
        )
        weights = weights_of(fields, tensors, allow_nonfinite)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error

    return assemble(hf_llama.FORMAT, fields, weights, dtype)


def library() -> Any:
    try:
        import gguf
    except ImportError:
        raise ImportError("a GGUF file is read with the package gguf: pip install gguf") from None

    return gguf


def open_gguf(path: Path) -> Any:
    refuse_pickle(path)
    storage.check_regular(path)
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file; expected a GGUF file")

    gguf = library()
    ARRAY, STRING = gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.STRING

    class Reader(gguf.GGUFReader):  # type: ignore[name-defined]
        """Refuses what lies past the end of the file, where its parent would go on with fewer
        numbers than it was told.

        It also passes over lists. They are the tokenizer's, and to make an array of every token
        takes seconds.
        """

        def _get(self, offset: Any, dtype: Any, count: Any = 1, *rest: Any, **named: Any) -> Any:
            if int(offset) + int(count) * np.dtype(dtype).itemsize > len(self.data):
                raise EOFError("the file is cut off")

            return super()._get(offset, dtype, count, *rest, **named)

        def _get_field_parts(self, offset: Any, kind: Any) -> Any:
            if kind != ARRAY:
                return super()._get_field_parts(offset, kind)

            member = gguf.GGUFValueType(self._get(offset, np.uint32)[0])
            count = int(self._get(offset + 4, np.uint64)[0])
            size = 12
            if member == STRING:
                data, length = memoryview(self.data), "<Q" if self.byte_order == "I" else ">Q"
                for _ in range(count):
                    size += 8 + struct.unpack_from(length, data, int(offset) + size)[0]
            else:
                size += count * np.dtype(self.gguf_scalar_to_np[member]).itemsize

            return size, [], [], [ARRAY]

    try:
        reader = Reader(path)
    except Exception as error:  # the library lets many kinds of error through for a damaged file
        raise ValueError(
            f"{path}: not a whole GGUF file ({error}); copy or download it again"
        ) from error

    if reader.byte_order != "I":
        raise ValueError(
            f"{path}: written for machines of the other byte order; convert it with hf_llama.cpp"
        )

    check_places(path, reader)

    return reader


def check_places(path: Path, reader: Any) -> None:
    """Tensors follow each other without gaps; a damaged place would give a tensor the numbers of
    another.
    """
    expected = int(reader.data_offset)
    for tensor in reader.tensors:
        if tensor.data_offset != expected:
            raise ValueError(
                f"{path}: {tensor.name} lies at byte {tensor.data_offset}, expected {expected}"
            )

        expected += -(-tensor.n_bytes // int(reader.alignment)) * int(reader.alignment)


def value_of(field: Any) -> Any:
    kind = field.types[0].name
    if kind == "ARRAY":
        # of tokens, merges or sizes that differ from layer to layer: never a value we use
        return "a list"

    part = field.parts[field.data[0]]
    return bytes(part).decode("utf-8", "replace") if kind == "STRING" else part.tolist()[0]


def config_of(found: dict[str, Any], tensors: dict[str, Any]) -> dict[str, Any]:
    """The file's fields in the words of `transformers`."""
    if found.get("general.architecture") != "llama":
        raise ValueError(
            f"general.architecture: expected llama, not {found.get('general.architecture')!r}"
        )
    if found.get("split.count", 1) not in (0, 1):
        raise ValueError(
            f"split.count: expected a file that is not split, not {found['split.count']} parts"
        )

    found = {
        name.removeprefix("llama."): value
        for name, value in found.items()
        if name.startswith("llama.")
    }

    for name in ("token_embd.weight", "output_norm.weight"):
        if name not in tensors:
            raise ValueError(f"{name}: this tensor is missing")

    if missing := sorted(FIELDS.keys() - found.keys()):
        raise ValueError(f"llama.{missing[0]}: this field is missing")

    values = {
        theirs: found[name]
        for name, theirs in {**FIELDS, **OPTIONAL_FIELDS}.items()
        if name in found
    }
    values["vocab_size"] = int(tensors["token_embd.weight"].shape[-1])
    values["tie_word_embeddings"] = "output.weight" not in tensors
    values["attention_bias"] = "blk.0.attn_q.bias" in tensors
    values["mlp_bias"] = "blk.0.ffn_up.bias" in tensors

    fields = Fields(values, "")
    head_width = fields.whole(
        "head_dim", fields.whole("hidden_size", 0) // max(1, fields.whole("num_attention_heads", 1))
    )
    neutral = {**NEUTRAL, "rope.dimension_count": head_width, "attention.value_length": head_width}

    for name, value in found.items():
        if name in {**FIELDS, **OPTIONAL_FIELDS} or name in HARMLESS_FIELDS or not value:
            continue
        if value != neutral.get(name):
            raise ValueError(
                f"llama.{name}: {value!r} is not supported here; expected {neutral.get(name, 'no such field')}"
            )

    if ROTARY_FACTORS in tensors:
        factors = numbers(tensors[ROTARY_FACTORS])
        values["rope_parameters"] = rotary_of(
            factors, fields.number("rope_theta", 10000.0), head_width
        )

    return values


def rotary_of(factors: Tensor, base: float, head_width: int) -> dict[str, Any]:
    """llama.cpp stores how much slower each wave turns; only Llama 3's way of stretching is known
    to us.
    """
    if bool((factors == 1).all()):
        return {}

    scaling = RotaryScaling(factor=float(factors.max()))
    speed = 1.0 / base ** (torch.arange(0, head_width, 2) / head_width)
    if factors.shape != speed.shape or not torch.allclose(
        speed / stretch(speed, scaling), factors, rtol=1e-4
    ):
        raise ValueError(
            f"{ROTARY_FACTORS}: expected the factors of Llama 3's stretched rotary positions"
        )

    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low,
        "high_freq_factor": scaling.high,
        "original_max_position_embeddings": scaling.original_context,
    }


def weights_of(fields: Fields, tensors: dict[str, Any], allow_nonfinite: bool) -> Weights:
    heads = fields.whole("num_attention_heads", 1)
    turned = {"attn_q": heads, "attn_k": fields.whole("num_key_value_heads", heads)}
    read = {}

    for name, tensor in tensors.items():
        if name == ROTARY_FACTORS:
            continue

        stem, _, kind = name.rpartition(".")
        *block, part = stem.split(".")
        if block[:1] == ["blk"] and len(block) == 2 and part in BLOCK_NAMES:
            new = f"model.layers.{block[1]}.{BLOCK_NAMES[part]}.{kind}"
        elif not block and part in NAMES:
            new = f"{NAMES[part]}.{kind}"
        else:
            raise ValueError(f"{name}: a Llama has no such tensor")

        read[new] = partial(numbers, tensor, turned.get(part, 0))

    return Weights(read, fields.origin, allow_nonfinite=allow_nonfinite)


def numbers(tensor: Any, turned_heads: int = 0) -> Tensor:
    """The tensor as float32; the rows of queries and keys brought back into our order."""
    try:
        plain = np.asarray(
            tensor.data
        )  # not a numpy.memmap, each of whose views costs as much as its numbers
        array = library().dequantize(plain, tensor.tensor_type)
    except NotImplementedError as error:
        raise ValueError(f"{tensor.tensor_type.name} numbers cannot be read ({error})") from error

    x = torch.from_numpy(
        np.array(array, dtype=np.float32)
    )  # a copy: the array may be a view of the file
    if not turned_heads:
        return x
    if x.shape[0] % (2 * turned_heads):
        raise ValueError(f"expected pairs of rows for {turned_heads} heads, not {x.shape[0]} rows")

    # hf_llama.cpp puts the two dimensions of a rotary pair side by side; ours are half a head
    # apart.
    return x.unflatten(0, (turned_heads, -1, 2)).transpose(1, 2).flatten(0, 2)  # (rows, ...)
