"""Convert weights: read models of `transformers` and GGUF files, and write for `transformers`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from qkv.models.consistency import check_consistent, refuse_adapters
from qkv.models.convert import hf_bert, hf_folder, hf_gpt2, hf_llama, hf_marian
from qkv.models.convert.config_fields import Fields, SpecialIds
from qkv.models.convert.detect_family import detect_family
from qkv.models.convert.gguf_model import read_gguf
from qkv.models.convert.hf_format import Format, model_from_hf, weights_to_hf
from qkv.models.convert.hf_tokenizer import TokenizerExport
from qkv.models.gpt import GPTConfig
from qkv.models.model import Model, uncompiled
from qkv.models.registry import Config
from qkv.models.task_model import TaskModelConfig
from qkv.text.tokenizer import Tokenizer

__all__ = ["read_folder", "read_gguf", "write_folder"]

FORMATS: dict[str, Format[Any]] = {
    module.FORMAT.model_type: module.FORMAT for module in (hf_gpt2, hf_llama, hf_bert, hf_marian)
}


def read_folder(
    path: Path | str, *, dtype: torch.dtype | None = torch.float32, allow_nonfinite: bool = False
) -> Model:
    """Read a model from a folder that `transformers` wrote.

    Args:
        path: The folder with config.json and safetensors; pickles are never opened.
        dtype: The dtype of the weights; None keeps that of the file.
        allow_nonfinite: Load NaN and infinite weights instead of raising.

    Returns:
        The model in evaluation mode (dropout off).

    Raises:
        ValueError: If the folder is damaged, or describes a model that is not supported.
    """
    path = Path(path)
    fields = Fields(hf_folder.open_config(path), str(path / hf_folder.CONFIG))
    weights = hf_folder.open_weights(path, allow_nonfinite=allow_nonfinite)

    try:
        format = format_from_hf(fields, weights)
        fields.refuse_unsupported()
    except ValueError as error:
        raise ValueError(f"{fields.origin}: {error}") from error

    return model_from_hf(format, fields, weights, dtype)


def format_from_hf(fields: Fields, tensor_names: Iterable[str]) -> Format[Any]:
    """Return the format that the config names by model_type or by its class.

    A folder of 2019 may have neither; its tensors' names decide.
    """
    family = fields.values.get("model_type")
    classes = fields.values.get("architectures") or []
    if not isinstance(classes, list):
        raise ValueError(f"architectures: expected a list, not {classes!r}")

    if family is None and classes:
        family = family_of_classes(classes)
    if family is None:
        family = detect_family(fields.values, tensor_names)
    if not isinstance(family, str) or family not in FORMATS:
        raise ValueError(f"model_type: expected one of {', '.join(FORMATS)}, not {family!r}")

    format = FORMATS[family]
    for class_name in classes:
        if class_name not in format.architectures:
            raise ValueError(
                f"architectures: expected one of {', '.join(format.architectures)}, "
                f"not {class_name!r}"
            )

    return format


def family_of_classes(classes: list[Any]) -> str:
    families: dict[str, str] = {}
    for family, format in FORMATS.items():
        families.update(dict.fromkeys(format.architectures, family))

    for class_name in classes:
        if isinstance(class_name, str) and class_name in families:
            return families[class_name]

    raise ValueError(f"architectures: expected one of {', '.join(families)}, not {classes!r}")


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
    """Write a folder that `transformers` loads unchanged.

    Args:
        model: A model that one of the formats can express.
        path: A folder without a model.
        tokenizer: The tokenizer that the model was loaded or trained with, or its file or folder;
            AutoTokenizer then gives the ids that our model reads. Without one, AutoTokenizer
            raises an error that says that it is missing.
        max_shard_bytes: Size above which the weights are split into several files.
        begin_id: The first id of a sequence, for their generate(); by default the tokenizer's. A
            translator's decoder starts with it, or else with padding.
        end_id: The last id of a sequence; by default the tokenizer's.
        pad_id: The id of padding; by default the tokenizer's, or a translator's last id.

    Raises:
        ValueError: If `transformers` has no format for the model, or the folder is taken.
    """
    model = uncompiled(model)
    config = model.config
    format = format_for(config)
    refuse_adapters(model)
    check_consistent(model)

    # The config, with the ids of the tokenizer.
    export = TokenizerExport(tokenizer, config)
    ids = export.special_ids(SpecialIds(begin_id, end_id, pad_id))
    ids.check(config.vocabulary)
    values = format.config_to_hf(config, ids)
    values["dtype"] = str(next(model.parameters()).dtype).removeprefix("torch.")

    # The weights; a class that is the inner model alone has names without the prefix.
    tensors = weights_to_hf(format, model)
    if values["architectures"][0] in format.bare:
        tensors = {name.removeprefix(format.prefix): tensor for name, tensor in tensors.items()}

    hf_folder.write(
        Path(path),
        values,
        tensors,
        write_tokenizer=export.write,
        max_shard_bytes=max_shard_bytes,
    )


def format_for(config: Config) -> Format[Any]:
    """Return the format that a model of ours is written in."""
    if isinstance(config, GPTConfig) and config.position not in ("learned", "rotary"):
        raise ValueError(
            f"position: expected learned (GPT-2) or rotary (Llama), not {config.position}"
        )
    if isinstance(config, GPTConfig) and config.position == "rotary":
        return hf_llama.FORMAT

    for format in FORMATS.values():
        if isinstance(config, format.config):
            return format

    if isinstance(config, TaskModelConfig):
        raise ValueError(
            "model: transformers has no format for our task heads; "
            "write model.backbone, or save it with qkv.save"
        )

    raise ValueError("model: transformers has no format for an RNN; save it as an artifact instead")
