"""A head pattern that is defined outside the package is measured, printed and found by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from qkv.insight import head_patterns
from qkv.insight.heads.head_patterns import PATTERNS, head_pattern
from qkv.text import train
from support.command_fixtures import Qkv
from support.families import bert, gpt

TEXTS = ["the cat sat on the mat", "on the mat the cat sat"]
TOKENIZER = train("words", TEXTS, 40)


@pytest.fixture(autouse=True)
def second() -> Iterator[None]:
    """A pattern of one's own, for the duration of a test."""

    @head_pattern("second", "the second token")
    def second_token(ids: Tensor) -> Tensor:
        position = torch.arange(len(ids))
        return (position.unsqueeze(1) >= 2) & (position == 1)

    yield
    del PATTERNS["second"]


@pytest.mark.parametrize("make", [gpt, bert])
def test_it_is_the_weight_of_the_second_token(make: object) -> None:
    model = make(vocabulary=TOKENIZER.vocabulary, context=32)  # type: ignore[operator]
    (patterns,) = head_patterns(model, TOKENIZER, TEXTS)
    assert patterns.scores["second"].shape == patterns.scores["previous"].shape
    assert ((patterns.scores["second"] >= 0) & (patterns.scores["second"] <= 1)).all()
    assert patterns.strongest("second", 1)[0][2] == pytest.approx(
        float(patterns.scores["second"].max())
    )


def test_qkv_heads_prints_it(qkv: Qkv, models: Path) -> None:
    printed = qkv("heads", models / "gpt", "the cat sat on the mat")
    assert "the second token" in " ".join(printed.out.split())
    numbers = json.loads(qkv("heads", models / "gpt", "the cat sat on the mat", "--json").out)
    assert numbers["patterns"][0]["second"]["scores"]


def test_a_name_is_used_once() -> None:
    for name in ("second", "induction"):
        with pytest.raises(ValueError, match=rf"name: .*{name}"):
            head_pattern(name, "")
