"""A model family from outside the package is built, saved, loaded and generates as the others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qkv
from qkv.generation import generate
from qkv.models import Model, ModelConfig, build, configs, register_family, registry
from qkv.nn.cache import Cache
from qkv.nn.hooks import HookPoints


@dataclass(frozen=True, kw_only=True)
class BigramConfig(ModelConfig):
    """A table with the logits of the next token for every token."""

    vocabulary: int = 7


class Bigram(Model):
    """Predicts the next token from the last one alone."""

    predicts = "next"
    is_causal = True

    def __init__(self, config: BigramConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary, config.vocabulary)
        self.head = nn.Linear(config.vocabulary, config.vocabulary, bias=False)
        self.hooks = HookPoints("logits")

    @property
    def stacks(self) -> dict[str, Any]:
        return {}

    def hidden(self, ids: Tensor, **options: Any) -> Tensor:
        return self.embedding(ids)

    def start(self) -> Cache:
        return Cache()

    def decoder_hidden(self, ids: Tensor, *, state: Cache, **options: Any) -> Tensor:
        return self.hidden(ids)


@pytest.fixture(autouse=True)
def bigram(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "FAMILIES", dict(registry.FAMILIES))
    monkeypatch.setattr(configs, "CONFIGS", dict(configs.CONFIGS))
    monkeypatch.setattr(registry, "CONFIGS", configs.CONFIGS)
    register_family("bigram", BigramConfig, Bigram)


def test_it_is_built_saved_and_loaded(tmp_path: Path) -> None:
    model = build(BigramConfig(vocabulary=5)).eval()
    qkv.save(model, tmp_path / "bigram")
    again, _ = qkv.load(tmp_path / "bigram")
    assert type(again) is Bigram
    ids = torch.tensor([[0, 3, 4]])
    torch.testing.assert_close(again(ids), model(ids))


def test_it_generates() -> None:
    model = build(BigramConfig(vocabulary=5)).eval()
    with torch.no_grad():
        model.head.weight.copy_(torch.eye(5))
        model.embedding.weight.copy_(torch.eye(5).roll(1, dims=1))

    assert generate(model, torch.tensor([[3]]), length=4, temperature=0.0) == [[4, 0, 1, 2]]


def test_a_taken_name_and_another_class_are_refused() -> None:
    with pytest.raises(ValueError, match="name: there is a family gpt"):
        register_family("gpt", BigramConfig, Bigram)
    with pytest.raises(TypeError):
        register_family("linear", BigramConfig, nn.Linear)
