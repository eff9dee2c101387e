"""Saving a run with LoRA adapters: the merged model, and the adapters in PEFT's format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from qkv import artifact
from qkv.checkpoint import ADAPTER, absolute
from qkv.models.convert.peft import write_adapter
from qkv.models.registry import Config
from qkv.nn.lora import merge_adapters
from qkv.text import Tokenizer
from qkv.training.finetune.finetune_config import FinetuneConfig


def save_adapted(
    config: Config,
    tune: FinetuneConfig,
    tokenizer: Tokenizer,
    weights: Mapping[str, Tensor],
    out: Path,
) -> None:
    """Write the adapters to out/adapter, and the model with the adapters merged to out."""
    assert tune.adapters is not None
    model = artifact.adapted_model(config, tune.adapters, weights)
    write_adapter(model, out / ADAPTER, base=absolute(tune.model), replace=True)
    merge_adapters(model)
    artifact.save(model, out, tokenizer=tokenizer, replace=True)
