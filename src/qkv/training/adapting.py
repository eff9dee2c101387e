"""What a run with adapters leaves behind: the merged model, ready for use, and beside it the adapters alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from qkv import artifact
from qkv.models.build import Config, Model, body_of, with_weights
from qkv.models.foreign.peft import write_adapter
from qkv.nn.lora import AdapterConfig, attach, merge
from qkv.text import Tokenizer
from qkv.training.tune_config import TuneConfig

ADAPTER = "adapter"
"""The folder of the adapters, in the format of peft, inside the run's."""


def save_adapted(
    config: Config,
    tune: TuneConfig,
    tokenizer: Tokenizer,
    weights: Mapping[str, Tensor],
    out: Path,
) -> None:
    assert tune.adapters is not None
    model = adapted_model(config, tune.adapters, weights)
    base = str(Path(tune.model).resolve()) if Path(tune.model).exists() else tune.model
    write_adapter(model, out / ADAPTER, base=base, replace=True)
    merge(model)
    artifact.save(model, out, tokenizer=tokenizer, replace=True)


def adapted_model(config: Config, adapters: AdapterConfig, weights: Mapping[str, Tensor]) -> Model:
    """A model with adapters, from the weights of both."""
    own = {name: weights[name].detach().cpu().clone() for name in weights if ".adapters." not in name}
    model = with_weights(config, own)
    attach(body_of(model), adapters)
    missing = {name: tensor for name, tensor in weights.items() if name not in own}
    model.load_state_dict(missing, strict=False)
    return model
