"""What a run with adapters leaves behind: the merged model, ready for use, and beside it the adapters alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from qkv import artifact
from qkv.checkpoint import ADAPTER, absolute
from qkv.models.build import Config
from qkv.models.foreign.peft import write_adapter
from qkv.nn.lora import merge
from qkv.text import Tokenizer
from qkv.training.tune_config import TuneConfig


def save_adapted(
    config: Config,
    tune: TuneConfig,
    tokenizer: Tokenizer,
    weights: Mapping[str, Tensor],
    out: Path,
) -> None:
    assert tune.adapters is not None
    model = artifact.adapted_model(config, tune.adapters, weights)
    write_adapter(model, out / ADAPTER, base=absolute(tune.model), replace=True)
    merge(model)
    artifact.save(model, out, tokenizer=tokenizer, replace=True)
