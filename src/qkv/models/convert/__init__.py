"""Weights of other libraries: read into our models, and our models written for them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from qkv.models.bert import BERTConfig
from qkv.models.consistency import check_consistent, refuse_adapters
from qkv.models.convert import hf_bert, hf_folder, hf_gpt2, hf_llama, hf_marian
from qkv.models.convert.config_fields import Fields, SpecialIds
from qkv.models.convert.detect_family import recognise
from qkv.models.convert.gguf_model import read_gguf
from qkv.models.convert.hf_tokenizer import TokenizerOut
from qkv.models.convert.weight_rules import Format, assemble, spread
from qkv.models.gpt import GPTConfig
from qkv.models.registry import Config, Model, uncompiled
from qkv.models.task_model import TaskModelConfig
from qkv.models.transformer import TransformerConfig
from qkv.text.tokenizer import Tokenizer

__all__ = ["read_folder", "read_gguf", "write_folder"]

FORMATS: dict[str, Format[Any]] = {
    "gpt2": hf_gpt2.FORMAT,
    "llama": hf_llama.FORMAT,
    "bert": hf_bert.FORMAT,
    "marian": hf_marian.FORMAT,
}


def read_folder(
    path: Path | str, *, dtype: torch.dtype | None = torch.float32, allow_nonfinite: bool = False
) -> Model:
    """A model from a folder that `transformers` wrote; dtype None keeps the file's own numbers.
    Dropout is off, and weights that are NaN or infinite are refused unless they are allowed."""
    path = Path(path)
    fields = Fields(hf_folder.open_config(path), str(path / hf_folder.CONFIG))
    weights = hf_folder.open_weights(path, allow_nonfinite=allow_nonfinite)

    try:
        format = format_in(fields, weights)
        fields.no_surprises()
    except ValueError as error:
        raise ValueError(f"{fields.origin}: {error}") from error

    return assemble(format, fields, weights, dtype)


def format_in(fields: Fields, names: Iterable[str]) -> Format[Any]:
    """The format that the config names, by model_type or by its class; a file of 2019 may have
    neither, and is known by the names of its tensors."""
    name, classes = fields.values.get("model_type"), fields.values.get("architectures") or []
    if not isinstance(classes, list):
        raise ValueError(f"architectures: expected a list, not {classes!r}")

    if name is None and classes:
        known = {each: key for key, format in FORMATS.items() for each in format.architectures}
        found = [known[each] for each in classes if isinstance(each, str) and each in known]
        if not found:
            raise ValueError(f"architectures: expected one of {', '.join(known)}, not {classes!r}")

        name = found[0]

    if name is None:
        name = recognise(fields.values, names)

    if not isinstance(name, str) or name not in FORMATS:
        raise ValueError(f"model_type: expected one of {', '.join(FORMATS)}, not {name!r}")

    format = FORMATS[name]

    for found in classes:
        if found not in format.architectures:
            raise ValueError(
                f"architectures: expected one of {', '.join(format.architectures)}, not {found!r}"
            )

    return format


def write_folder(
    model: Model,
    path: Path | str,
    *,
    tokenizer: Tokenizer | Path | str | None = None,
    max_shard_bytes: int = hf_folder.SHARD_BYTES,
    begin_id: int | None = None,
    end_id: int | None = None,
    pad_id: int | None = None,
) -> None:
    """A folder that `transformers` loads unchanged.

    `tokenizer` is the one that the model was loaded or trained with, or its file or folder;
    AutoTokenizer then gives the ids that our model reads, and without one it says that none is
    there. The ids are for its generate(): those of the tokenizer unless given. A translator's
    padding is the vocabulary's last id if neither says another, and its decoder begins with
    `begin_id`, or else with padding.
    """
    model = uncompiled(model)
    config = model.config
    format = format_out(config)
    refuse_adapters(model)
    check_consistent(model)
    written = TokenizerOut(tokenizer, config)
    ids = written.ids(SpecialIds(begin_id, end_id, pad_id))
    ids.check(config.vocabulary)
    values = format.config_out(config, ids)
    tensors = spread(format, model)
    values["dtype"] = str(next(model.parameters()).dtype).removeprefix("torch.")
    if values["architectures"][0] in format.bare:
        tensors = {name.removeprefix(format.prefix): tensor for name, tensor in tensors.items()}

    hf_folder.write(
        Path(path), values, tensors, tokenizer=written.write, max_shard_bytes=max_shard_bytes
    )


def format_out(config: Config) -> Format[Any]:
    if isinstance(config, GPTConfig):
        if config.position not in ("learned", "rotary"):
            raise ValueError(
                f"position: expected learned (GPT-2) or rotary (Llama), not {config.position}"
            )

        return hf_gpt2.FORMAT if config.position == "learned" else hf_llama.FORMAT

    if isinstance(config, BERTConfig):
        return hf_bert.FORMAT
    if isinstance(config, TransformerConfig):
        return hf_marian.FORMAT
    if isinstance(config, TaskModelConfig):
        raise ValueError(
            "model: a head of ours has no place in their format; write model.body, or save it with qkv.save"
        )

    raise ValueError("model: transformers has no format for an RNN; save it as an artifact instead")
