"""Which parameters learn, that only those change, and how fast each layer's do."""

from __future__ import annotations

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
from unit.training.finetune.test_task_objective import made

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


def tuned(family: str, **choices: Any) -> TaskModel:
    config = BERTConfig(**SIZE, **choices) if family == "bert" else GPTConfig(**SIZE, **choices)
    head = HEAD if family == "gpt" else HeadConfig(**{**vars(HEAD), "pooling": "first"})
    model = build(TaskModelConfig(backbone=backbone_for(config, pooler=True), head=head))
    assert isinstance(model, TaskModel)
    return model


def asked(train: str, **choices: Any) -> FinetuneConfig:
    usual: dict[str, Any] = {"model": "m", "task": "classify", "data": ("d",), "rank": 2}
    return FinetuneConfig(train=train, **(usual | choices))  # type: ignore[arg-type]


def learning(model: torch.nn.Module) -> set[str]:
    return {name for name, weight in model.named_parameters() if weight.requires_grad}


def those(model: torch.nn.Module, *parts: str) -> set[str]:
    return {name for name, _ in model.named_parameters() if any(part in name for part in parts)}


# Which learn


@pytest.mark.parametrize("family", ["gpt", "bert"])
def test_which_parameters_learn(family: str) -> None:
    head = {"head.weight", "head.bias"}
    model = tuned(family)
    assert freeze(model, asked("everything"), language_loss=False) == 1.0
    assert learning(model) == those(model, "")
    freeze(model, asked("last", last=2), language_loss=False)
    assert learning(model) == head | those(model, "blocks.1.", "blocks.2.", "stack.norm", "pooler")
    assert freeze(model, asked("head"), language_loss=False) == 51 / count_parameters(model.config)
    assert learning(model) == head
    share = freeze(model, asked("adapters", projections=("query", "value")), language_loss=False)
    found = learning(model)
    assert found == head | {name for name in found if ".qkv.adapters." in name}
    assert len(found) == 2 + 3 * 2 * 2  # three layers, query and value, A and B
    assert share == pytest.approx((51 + 3 * 2 * (2 * 16 + 16 * 2)) / count_parameters(model.config))


def test_an_output_layer_learns_only_where_words_are_said() -> None:
    model = tuned("gpt", tied=False)
    freeze(model, asked("everything"), language_loss=False)
    assert those(model, "") - learning(model) == {"backbone.head.weight"}
    freeze(model, asked("everything"), language_loss=True)
    assert learning(model) == those(model, "")
    freeze(model, asked("last", last=1), language_loss=False)
    assert "backbone.head.weight" not in learning(model)


def test_without_a_head() -> None:
    gpt = build(GPTConfig(**SIZE, tied=False))
    freeze(gpt, asked("last", last=1, task="chat"), language_loss=True)
    assert learning(gpt) == those(gpt, "blocks.2.", "stack.norm", "head.")
    both = build(TransformerConfig(**SIZE))
    freeze(both, asked("last", last=1, task="translate"), language_loss=True)
    assert learning(both) == those(both, "decoder.blocks.2.", "decoder.norm")
    freeze(both, asked("adapters", task="translate"), language_loss=True)
    assert learning(both) == those(both, ".adapters.")
    assert any(name.startswith("encoder.") for name in learning(both))


def test_what_cannot_learn_so() -> None:
    with pytest.raises(ValueError, match=r"^last: the model has 3 layers, not 4"):
        freeze(tuned("gpt"), asked("last", last=4), language_loss=False)
    rnn = build(RNNConfig(vocabulary=9, width=8))
    with pytest.raises(
        ValueError, match=r"^train: an RNN has no blocks, so expected everything, not adapters"
    ):
        freeze(rnn, asked("adapters", task="translate"), language_loss=True)


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"train": "head", "task": "chat"}, "train: chat puts no head on the model"),
        ({"train": "adapters", "rank": 0}, "rank: "),
        ({"train": "adapters", "marks": "new"}, "marks: new tokens must be learned"),
        ({"train": "head", "marks": "new"}, "marks: new tokens must be learned"),
        ({"task": "translate", "context": 9}, "context: translate reads whole sentences"),
        ({"train": "adapters", "scratch": True}, "scratch: random weights must all be trained"),
        ({"numbers": True}, "numbers: classify has classes; expected similarity or regress"),
        (
            {"numbers": False, "task": "regress"},
            "numbers: what regress says is always a number; leave it out",
        ),
        (
            {"numbers": False, "task": "chat"},
            "numbers: chat puts no head on the model and has no use for it",
        ),
        ({"numbers": True, "task": "translate"}, "numbers: translate puts no head on the model"),
        (
            {"class_weights": ("balanced",), "task": "choice"},
            "class_weights: choice has no classes",
        ),
        ({"data": ()}, "data: expected one source or more"),
        ({"held_out": 0.0}, "held_out: "),
        ({"language": -1.0}, "language: expected 0 or more"),
        ({"examples": 0}, "examples: "),
    ],
)
def test_what_cannot_be_asked(choices: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}"):
        FinetuneConfig(**({"model": "m", "task": "classify", "data": ("d",)} | choices))


# What changes


@pytest.mark.parametrize("train", ["everything", "last", "head", "adapters"])
@pytest.mark.parametrize("family", ["gpt", "bert"])
def test_only_what_learns_changes(train: str, family: str) -> None:
    model = tuned(family).train()
    freeze(model, asked(train, last=1), language_loss=False)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    objective, optimizers = TaskObjective(model), Optimizers(model, OptimizerConfig())
    for _ in range(3):
        gradients_of(objective, made(model), ALONE)
        optimizers.set_rate(1e-2, 1e-2)
        optimizers.step(torch.zeros(()), torch.ones(()))
        optimizers.zero_gradients()
    changed = {
        name for name, weight in model.named_parameters() if not torch.equal(weight, before[name])
    }
    unread = (
        {"backbone.embedding.segment.weight"} if family == "bert" else set()
    )  # a single text has one kind
    assert learning(model) - unread <= changed <= learning(model)


# How fast


def test_each_layer_learns_slower_than_the_one_above_it() -> None:
    model = tuned("bert")
    optimizers = Optimizers(model, OptimizerConfig(layer_decay=0.5))
    optimizers.set_rate(0.8, 0.8)
    rates = {
        optimizers.names[weight]: group["lr"]
        for group in optimizers.optimizers[0].param_groups
        for weight in group["params"]
    }
    assert rates.keys() == learning(model)
    for name, rate in rates.items():
        blocks = {"blocks.2.": 0.4, "blocks.1.": 0.2, "blocks.0.": 0.1, "embedding": 0.05}
        assert rate == pytest.approx(
            next((of for part, of in blocks.items() if part in name), 0.8)
        ), name


def test_the_rates_of_layers_do_not_depend_on_which_are_frozen() -> None:
    model = tuned("gpt")
    whole = layer_factors(learning(model), 0.7)
    freeze(model, asked("last", last=2), language_loss=False)
    assert layer_factors(learning(model), 0.7) == {name: whole[name] for name in learning(model)}
    assert set(layer_factors(learning(model), 1.0).values()) == {1.0}
