"""The pre-trained model that fine-tuning starts from, and defaults that depend on it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, NamedTuple

from qkv import artifact
from qkv.models.model import Model
from qkv.text import Tokenizer
from qkv.training.finetune.finetune_config import FinetuneConfig
from qkv.training.systems.distributed import device_named

GPU_MULTIPLE = 16
"""On a GPU lengths are padded to a multiple of this, so that shapes recur and CUDA graphs apply."""
RATES = {"everything": 5e-5, "last": 1e-4, "adapters": 5e-4, "head": 3e-3}
"""Highest learning rates for a width of 768."""
SCRATCH_RATE = 3e-4


class Pretrained(NamedTuple):
    """A pre-trained model, its tokenizer and the checksum of its weights."""

    model: Model
    tokenizer: Tokenizer
    checksum: str


def open_pretrained(name: str) -> Pretrained:
    model, tokenizer = artifact.load(name)
    tokenizer = tokenizer or artifact.tokenizer_of(name)
    return Pretrained(model, tokenizer, artifact.checksum(model.state_dict()))


def task_fingerprint(
    pretrained: Pretrained, sources: Mapping[str, str], tokenizer: Tokenizer
) -> str:
    """Checksum of weights, data and tokenizer; file names may change when a run is resumed."""
    facts = [pretrained.checksum, list(sources.values()), tokenizer.fingerprint]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def padding_id(tokenizer: Tokenizer) -> int:
    """The id that fills shorter rows; it is masked, so without a padding token any id will do."""
    if tokenizer.padding is not None:
        return tokenizer.padding

    return tokenizer.end or 0


def length_multiple(device: str | None) -> int:
    """What the lengths of rows are padded to a multiple of."""
    if device_named(device).type == "cuda":
        return GPU_MULTIPLE

    return 1


def with_dropout(config: Any, tune: FinetuneConfig) -> Any:
    """A model's configuration with the requested dropout; none in a frozen backbone."""
    dropout = tune.dropout
    if tune.train == "head":
        dropout = 0.0
    if dropout is None:
        return config

    names = {field.name for field in fields(config)} & {"dropout", "attention_dropout"}

    return replace(config, **dict.fromkeys(names, dropout))


def default_rate(tune: FinetuneConfig, width: int) -> float:
    """The highest learning rate by default: one that suits most tasks, scaled by the width."""
    rate = RATES[tune.train]
    if tune.scratch:
        rate = SCRATCH_RATE

    return rate * math.sqrt(768 / width)
