"""Which parameters are trained, that only those change, and the layers' learning rates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from qkv.models import (
    BERTConfig,
    GPTConfig,
    HeadConfig,
    RNNConfig,
    TaskModel,
    TaskModelConfig,
    TransformerConfig,
    build,
    count_parameters,
)
from qkv.models.task_model import backbone_for
from qkv.training.finetune.finetune_config import FinetuneConfig
from qkv.training.finetune.freeze import freeze
from qkv.training.finetune.task_objective import TaskObjective
from qkv.training.optimizer import Optimizers, layer_factors
from qkv.training.run_config import OptimizerConfig
from qkv.training.step import gradients_of
from support.small_training import ALONE
from unit.training.finetune.test_task_objective import random_examples

SIZE: dict[str, Any] = {
    "vocabulary": 17,
    "context": 16,
    "width": 16,
    "depth": 3,
    "heads": 2,
    "hidden": 24,
}
HEAD = HeadConfig(
    task="classify",
    labels=("a", "b", "c"),
    bias=True,
    dropout=0.0,
    start=1,
    delimiter=2,
    extract=3,
    padding=0,
)


def task_model(family: str, **options: Any) -> TaskModel:
    config: Any = GPTConfig(**SIZE, **options)
    head = HEAD
    if family == "bert":
        config = BERTConfig(**SIZE, **options)
        head = replace(HEAD, pooling="first")

    model = build(TaskModelConfig(backbone=backbone_for(config, pooler=True), head=head))
    assert isinstance(model, TaskModel)
    return model


def tuning(train: str, **options: Any) -> FinetuneConfig:
    usual: dict[str, Any] = {"model": "m", "task": "classify", "data": ("d",), "rank": 2}
    return FinetuneConfig(train=train, **(usual | options))  # type: ignore[arg-type]


def trained_names(model: torch.nn.Module) -> set[str]:
    return {name for name, weight in model.named_parameters() if weight.requires_grad}


def names_with(model: torch.nn.Module, *parts: str) -> set[str]:
    return {name for name, _ in model.named_parameters() if any(part in name for part in parts)}


# What is trained


@pytest.mark.parametrize("family", ["gpt", "bert"])
def test_which_parameters_are_trained(family: str) -> None:
    head = {"head.weight", "head.bias"}
    model = task_model(family)
    assert freeze(model, tuning("everything"), language_loss=False) == 1.0
    assert trained_names(model) == names_with(model, "")
    freeze(model, tuning("last", last=2), language_loss=False)
    assert trained_names(model) == head | names_with(
        model, "blocks.1.", "blocks.2.", "stack.norm", "pooler"
    )
    assert freeze(model, tuning("head"), language_loss=False) == 51 / count_parameters(model.config)
    assert trained_names(model) == head
    share = freeze(model, tuning("adapters", projections=("query", "value")), language_loss=False)
    trained = trained_names(model)
    assert trained == head | {name for name in trained if ".qkv.adapters." in name}
    assert len(trained) == 2 + 3 * 2 * 2  # three layers, query and value, A and B
    assert share == pytest.approx((51 + 3 * 2 * (2 * 16 + 16 * 2)) / count_parameters(model.config))


def test_the_output_layer_is_trained_only_with_a_language_loss() -> None:
    model = task_model("gpt", tied=False)
    freeze(model, tuning("everything"), language_loss=False)
    assert names_with(model, "") - trained_names(model) == {"backbone.head.weight"}
    freeze(model, tuning("everything"), language_loss=True)
    assert trained_names(model) == names_with(model, "")
    freeze(model, tuning("last", last=1), language_loss=False)
    assert "backbone.head.weight" not in trained_names(model)


def test_models_without_a_head() -> None:
    gpt = build(GPTConfig(**SIZE, tied=False))
    freeze(gpt, tuning("last", last=1, task="chat"), language_loss=True)
    assert trained_names(gpt) == names_with(gpt, "blocks.2.", "stack.norm", "head.")
    both = build(TransformerConfig(**SIZE))
    freeze(both, tuning("last", last=1, task="translate"), language_loss=True)
    assert trained_names(both) == names_with(both, "decoder.blocks.2.", "decoder.norm")
    freeze(both, tuning("adapters", task="translate"), language_loss=True)
    assert trained_names(both) == names_with(both, ".adapters.")
    assert any(name.startswith("encoder.") for name in trained_names(both))


def test_models_that_cannot_be_trained_in_part() -> None:
    with pytest.raises(ValueError, match=r"^last: .*3 layers"):
        freeze(task_model("gpt"), tuning("last", last=4), language_loss=False)
    rnn = build(RNNConfig(vocabulary=9, width=8))
    with pytest.raises(ValueError, match=r"^train: .*no blocks"):
        freeze(rnn, tuning("adapters", task="translate"), language_loss=True)


@pytest.mark.parametrize(
    ("options", "field", "keyword"),
    [
        ({"train": "head", "task": "chat"}, "train", "no head"),
        ({"metric": "accuracy", "task": "chat"}, "metric", "judged by its loss"),
        ({"train": "adapters", "rank": 0}, "rank", ""),
        ({"train": "adapters", "marks": "new"}, "marks", "learned"),
        ({"train": "head", "marks": "new"}, "marks", "learned"),
        ({"task": "translate", "context": 9}, "context", "whole sentences"),
        ({"train": "adapters", "scratch": True}, "scratch", "all be trained"),
        ({"numbers": True}, "numbers", "classify has classes"),
        ({"numbers": False, "task": "regress"}, "numbers", "always predicts a number"),
        ({"numbers": False, "task": "chat"}, "numbers", "no head"),
        ({"numbers": True, "task": "translate"}, "numbers", "no head"),
        ({"class_weights": ("balanced",), "task": "choice"}, "class_weights", "no classes"),
        ({"data": ()}, "data", "one source or more"),
        ({"held_out": 0.0}, "held_out", ""),
        ({"language": -1.0}, "language", "0 or more"),
        ({"examples": 0}, "examples", ""),
    ],
)
def test_invalid_configurations(options: dict[str, Any], field: str, keyword: str) -> None:
    with pytest.raises(ValueError, match=f"^{field}: .*{keyword}"):
        FinetuneConfig(**({"model": "m", "task": "classify", "data": ("d",)} | options))


# What changes in training


@pytest.mark.parametrize("train", ["everything", "last", "head", "adapters"])
@pytest.mark.parametrize("family", ["gpt", "bert"])
def test_only_trained_parameters_change(train: str, family: str) -> None:
    model = task_model(family).train()
    freeze(model, tuning(train, last=1), language_loss=False)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    objective = TaskObjective(model)
    optimizers = Optimizers(model, OptimizerConfig())
    for _ in range(3):
        gradients_of(objective, random_examples(model), ALONE)
        optimizers.set_rate(1e-2, 1e-2)
        optimizers.step(torch.zeros(()), torch.ones(()))
        optimizers.zero_gradients()

    changed = set()
    for name, weight in model.named_parameters():
        if not torch.equal(weight, before[name]):
            changed.add(name)

    unused = {"backbone.embedding.segment.weight"}  # a single text has one segment
    assert trained_names(model) - unused <= changed <= trained_names(model)


# Learning rates of layers


def test_every_layer_has_a_lower_rate_than_the_one_above() -> None:
    model = task_model("bert")
    optimizers = Optimizers(model, OptimizerConfig(layer_decay=0.5))
    optimizers.set_rate(0.8, 0.8)
    rates: dict[str, float] = {}
    for group in optimizers.optimizers[0].param_groups:
        for weight in group["params"]:
            rates[optimizers.names[weight]] = group["lr"]

    assert rates.keys() == trained_names(model)
    layers = {"blocks.2.": 0.4, "blocks.1.": 0.2, "blocks.0.": 0.1, "embedding": 0.05}
    for name, rate in rates.items():
        expected = 0.8
        for layer, layer_rate in layers.items():
            if layer in name:
                expected = layer_rate

        assert rate == pytest.approx(expected), name


def test_layer_rates_do_not_depend_on_what_is_frozen() -> None:
    model = task_model("gpt")
    whole = layer_factors(trained_names(model), 0.7)
    freeze(model, tuning("last", last=2), language_loss=False)
    assert layer_factors(trained_names(model), 0.7) == {
        name: whole[name] for name in trained_names(model)
    }
    assert set(layer_factors(trained_names(model), 1.0).values()) == {1.0}
