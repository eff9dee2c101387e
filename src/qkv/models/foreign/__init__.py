"""Weights of other libraries: read into our models, and our models written for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from qkv.models.bert import BERTConfig
from qkv.models.build import Config, Model, uncompiled
from qkv.models.described import refuse_adapters, refuse_undescribed
from qkv.models.foreign import bert, folder, gpt2, llama, marian
from qkv.models.foreign.fields import Fields, SpecialIds
from qkv.models.foreign.gguf import read_gguf
from qkv.models.foreign.rule import Format, assemble, spread
from qkv.models.gpt import GPTConfig
from qkv.models.transformer import TransformerConfig
from qkv.models.tuned import TunedConfig

__all__ = ["read_folder", "read_gguf", "write_folder"]

FORMATS: dict[str, Format[Any]] = {
    "gpt2": gpt2.FORMAT,
    "llama": llama.FORMAT,
    "bert": bert.FORMAT,
    "marian": marian.FORMAT,
}


def read_folder(path: Path | str, *, dtype: torch.dtype | None = torch.float32) -> Model:
    """A model from a folder that `transformers` wrote; dtype None keeps the file's own numbers. Dropout is off."""
    path = Path(path)
    fields = Fields(folder.open_config(path), str(path / folder.CONFIG))
    try:
        format = format_in(fields)
        fields.no_surprises()
    except ValueError as error:
        raise ValueError(f"{fields.origin}: {error}") from error
    return assemble(format, fields, folder.open_weights(path), dtype)


def format_in(fields: Fields) -> Format[Any]:
    name, classes = fields.values.get("model_type"), fields.values.get("architectures") or []
    if not isinstance(classes, list):
        raise ValueError(f"architectures: expected a list, not {classes!r}")
    if name is None:  # files of 2019 have only the class
        name = next((key for key, format in FORMATS.items() if set(classes) & set(format.architectures)), None)
    if name not in FORMATS:
        raise ValueError(f"model_type: expected one of {', '.join(FORMATS)}, not {name!r}")
    format = FORMATS[name]
    for found in classes:
        if found not in format.architectures:
            raise ValueError(f"architectures: expected one of {', '.join(format.architectures)}, not {found!r}")
    return format


def write_folder(
    model: Model,
    path: Path | str,
    *,
    tokenizer: Path | str | None = None,
    max_shard_bytes: int = folder.SHARD_BYTES,
    begin_id: int | None = None,
    end_id: int | None = None,
    pad_id: int | None = None,
) -> None:
    """A folder that `transformers` loads unchanged.

    `tokenizer` is a tokenizer.json or a folder with one. The ids are for its generate(); a translator's padding is the
    vocabulary's last id unless given, and its decoder begins with `begin_id`, or else with padding.
    """
    model = uncompiled(model)
    config = model.config
    format = format_out(config)
    refuse_adapters(model)
    refuse_undescribed(model)
    ids = SpecialIds(begin_id, end_id, pad_id)
    ids.check(config.vocabulary)
    values = format.config_out(config, ids)
    tensors = spread(format, model)
    values["dtype"] = str(next(model.parameters()).dtype).removeprefix("torch.")
    if values["architectures"][0] in format.bare:
        tensors = {name.removeprefix(format.prefix): tensor for name, tensor in tensors.items()}
    tokenizer = None if tokenizer is None else Path(tokenizer)
    folder.write(Path(path), values, tensors, tokenizer=tokenizer, max_shard_bytes=max_shard_bytes)


def format_out(config: Config) -> Format[Any]:
    if isinstance(config, GPTConfig):
        if config.position not in ("learned", "rotary"):
            raise ValueError(f"position: expected learned (GPT-2) or rotary (Llama), not {config.position}")
        return gpt2.FORMAT if config.position == "learned" else llama.FORMAT
    if isinstance(config, BERTConfig):
        return bert.FORMAT
    if isinstance(config, TransformerConfig):
        return marian.FORMAT
    if isinstance(config, TunedConfig):
        raise ValueError(
            "model: a head of ours has no place in their format; write model.body, or save it with qkv.save"
        )
    raise ValueError("model: transformers has no format for an RNN; save it as an artifact instead")
