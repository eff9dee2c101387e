"""What all fine-tuning has in common: the pre-trained model, and the task of training it on."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv import artifact
from qkv.checkpoint import ADAPTER, absolute
from qkv.models.convert.peft import write_adapter
from qkv.models.model import Model
from qkv.models.registry import Config, build
from qkv.models.variants.resize_vocabulary import with_vocabulary
from qkv.nn.lora import merge_adapters
from qkv.text import Tokenizer
from qkv.training.finetune.finetune_config import USUAL_WARMUP, FinetuneConfig, FinetuneRunConfig
from qkv.training.finetune.freeze import backward_fraction, count_trainable, freeze
from qkv.training.setup.training_task import TrainingData, TrainingTask, Workload
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

    def fingerprint(self, sources: Mapping[str, str]) -> str:
        """Checksum of weights, data and tokenizer; files may be renamed when a run is resumed."""
        facts = [self.checksum, list(sources.values()), self.tokenizer.fingerprint]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def with_special_tokens(self, names: Sequence[str], seed: int, **options: Any) -> Pretrained:
        """With new tokens, which enlarge the vocabulary; `options` are those of the tokenizer."""
        tokenizer = self.tokenizer.with_special_tokens(names, **options)
        vocabulary = max(self.model.config.vocabulary, tokenizer.vocabulary)
        larger = with_vocabulary(self.model, vocabulary, seed)
        return Pretrained(larger, tokenizer, self.checksum)


def open_pretrained(name: str) -> Pretrained:
    model, tokenizer = artifact.load(name)
    tokenizer = tokenizer or artifact.tokenizer_of(name)
    return Pretrained(model, tokenizer, artifact.checksum(model.state_dict()))


def seeded_model(config: Config, seed: int) -> Model:
    """A new model whose weights depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(config)


def tuned_task(
    tune: FinetuneConfig,
    run: FinetuneRunConfig,
    start: Pretrained,
    data: tuple[TrainingData, TrainingData],
    sources: Mapping[str, str],
    notes: Iterable[str],
    *,
    language_loss: bool = True,
    length: int | None = None,
    **options: Any,
) -> TrainingTask:
    """The task of training a model on, with what is frozen; `options` are other fields of it.

    `start` has the model and tokenizer as they are trained, with a new head and tokens.
    """
    model, tokenizer, _ = start
    trained_fraction = freeze(model, tune, language_loss=language_loss, seed=run.seed)
    config = model.config
    save = None
    if tune.adapters is not None:
        save = partial(save_adapted, config, tune, tokenizer)

    workload = Workload(
        output_fraction=float(language_loss),
        trained_fraction=trained_fraction,
        backward_fraction=backward_fraction(tune, config.depth),
        length=length,
    )

    return TrainingTask(
        config,
        tokenizer,
        *data,
        start.fingerprint(sources),
        workload,
        notes=(*tune.unused(), *notes),
        initial_model=lambda: model,
        save=save,
        steps=run.steps(data[0].steps_per_epoch),
        learning_rate=default_rate(tune, config.width),
        warmup=USUAL_WARMUP,
        trainable=count_trainable(model),
        **options,
    )


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


def padding_id(tokenizer: Tokenizer) -> int:
    """The id that fills shorter rows; it is masked, so without a padding token any id will do."""
    if tokenizer.padding is not None:
        return tokenizer.padding

    return tokenizer.end or 0


def length_multiple(device: str | None) -> int:
    """What the lengths of rows are padded to a multiple of."""
    return GPU_MULTIPLE if device_named(device).type == "cuda" else 1


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
    rate = SCRATCH_RATE if tune.scratch else RATES[tune.train]
    return rate * math.sqrt(768 / width)
