"""GGUF, the one-file format of llama.cpp, for the Llama architecture; tensors are dequantised.

Fields and tensors get the names that `transformers` has for a Llama, and hf_llama.py reads them.
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
from qkv.models.convert.weight_rules import Weights, model_from_hf
from qkv.models.model import Model
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
    reader = open_gguf(path)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    metadata = {name: value_of(field) for name, field in reader.fields.items()}

    try:
        fields = Fields(config_to_hf(metadata, tensors), str(path))
        weights = weights_to_hf(fields, tensors, allow_nonfinite)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error

    return model_from_hf(hf_llama.FORMAT, fields, weights, dtype)


def gguf_library() -> Any:
    try:
        import gguf
    except ImportError:
        raise ImportError("a GGUF file is read with the package gguf: pip install gguf") from None

    return gguf


def open_gguf(path: Path) -> Any:
    """Open a file with a checked GGUFReader; every failure is a ValueError that names the file."""
    refuse_pickle(path)
    storage.check_regular(path)
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file; expected a GGUF file")

    reader_class = checked_reader(gguf_library())
    try:
        reader = reader_class(path)
    except Exception as error:  # a damaged file raises many kinds of error in the library
        raise ValueError(
            f"{path}: not a whole GGUF file ({error}); copy or download it again"
        ) from error

    if reader.byte_order != "I":
        raise ValueError(
            f"{path}: written for machines of the other byte order; convert it with llama.cpp"
        )

    check_offsets(path, reader)

    return reader


def checked_reader(gguf: Any) -> Any:
    """Return a subclass of GGUFReader that checks sizes and skips lists."""
    ARRAY = gguf.GGUFValueType.ARRAY
    STRING = gguf.GGUFValueType.STRING

    class Reader(gguf.GGUFReader):
        """Raises for data past the end of the file, which GGUFReader silently cuts short.

        It also skips lists: they are the tokenizer's, and an array for every token takes seconds.
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
            if member == STRING:
                size = self._size_of_strings(int(offset) + 12, count)
            else:
                size = count * np.dtype(self.gguf_scalar_to_np[member]).itemsize

            return 12 + size, [], [], [ARRAY]

        def _size_of_strings(self, first: int, count: int) -> int:
            data = memoryview(self.data)
            length_format = "<Q"
            if self.byte_order != "I":
                length_format = ">Q"

            size = 0
            for _ in range(count):
                size += 8 + struct.unpack_from(length_format, data, first + size)[0]

            return size

    return Reader


def check_offsets(path: Path, reader: Any) -> None:
    """Raise if tensors do not follow each other: a damaged offset points into another tensor."""
    expected = int(reader.data_offset)
    for tensor in reader.tensors:
        if tensor.data_offset != expected:
            raise ValueError(
                f"{path}: {tensor.name} lies at byte {tensor.data_offset}, expected {expected}"
            )

        expected += -(-tensor.n_bytes // int(reader.alignment)) * int(reader.alignment)


def value_of(field: Any) -> Any:
    kind = field.types[0].name
    if kind == "ARRAY":  # tokens, merges or sizes per layer: no value that is used here
        return "a list"

    part = field.parts[field.data[0]]
    if kind == "STRING":
        return bytes(part).decode("utf-8", "replace")

    return part.tolist()[0]


def config_to_hf(metadata: dict[str, Any], tensors: dict[str, Any]) -> dict[str, Any]:
    """Return the file's fields as `transformers` names them."""
    check_kind(metadata, tensors)
    llama = {}
    for name, value in metadata.items():
        if name.startswith("llama."):
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


def check_kind(metadata: dict[str, Any], tensors: dict[str, Any]) -> None:
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise ValueError(f"general.architecture: expected llama, not {architecture!r}")

    files = metadata.get("split.count", 1)
    if files not in (0, 1):
        raise ValueError(f"split.count: expected a file that is not split, not {files} parts")

    for name in ("token_embd.weight", "output_norm.weight"):
        if name not in tensors:
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

    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low,
        "high_freq_factor": scaling.high,
        "original_max_position_embeddings": scaling.original_context,
    }


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
        array = gguf_library().dequantize(plain, tensor.tensor_type)
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
