"""Rollout and value-weighted attention equal plain loops over captured numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from qkv.insight.attribute.attention_flow import attention_rollout, value_weighted_attention
from qkv.insight.inspect.model_input import hidden
from qkv.nn.hooks import capture
from support.families import bert, gpt, rnn, transformer, words
from support.readings import reading


@pytest.mark.parametrize("make", [gpt, bert, transformer])
def test_rollout_is_the_product_of_mixed_layers(make: Any) -> None:
    model = make()
    source = words(6).tolist() if make is transformer else None
    read = reading(words(5).tolist(), source)
    kind = "decoder" if make is transformer else None
    stack = "decoder" if make is transformer else "stack"
    with torch.no_grad(), capture(model, f"{stack}.blocks.*.attention.weights") as seen:
        hidden(model, read)
    result = attention_rollout(model, read, kind=kind, residual=0.4)
    expected = torch.eye(5, dtype=torch.float64)
    for layer in range(2):
        mean = sum(seen[f"{stack}.blocks.{layer}.attention.weights"][0]) / 4
        expected = (0.6 * mean + 0.4 * torch.eye(5)) @ expected
        assert_close(result[layer], expected.float())
    assert_close(result.sum(-1), torch.ones(2, 5))


@pytest.mark.parametrize(
    ("make", "choices", "kind", "point"),
    [
        (gpt, {}, None, "stack.blocks.{}.attention"),
        (gpt, {"kv_heads": 2, "head_width": 6}, None, "stack.blocks.{}.attention"),
        (bert, {}, None, "stack.blocks.{}.attention"),
        (transformer, {}, "cross", "decoder.blocks.{}.cross_attention"),
    ],
)
def test_value_weighted_attention(make: Any, choices: Any, kind: str | None, point: str) -> None:
    model = make(**choices)
    source = words(4).tolist() if make is transformer else None
    read = reading(words(3).tolist(), source)
    with torch.no_grad(), capture(model, f"{point.format('*')}.*") as seen:
        hidden(model, read)
    result = value_weighted_attention(model, read, kind=kind)
    for layer in range(2):
        name = point.format(layer)
        weights = seen[f"{name}.weights"][0]
        value = seen[f"{name}.value"][0]
        matrix = model.get_submodule(name).output.weight.detach()  # (E, H * D)
        D = value.shape[-1]
        expected = torch.zeros(weights.shape)
        for head in range(4):
            of_head = matrix[:, head * D : (head + 1) * D]
            vectors = value[head * len(value) // 4]  # (S, D)
            for row in range(weights.shape[1]):
                for column in range(weights.shape[2]):
                    moved = float(weights[head, row, column]) * (of_head @ vectors[column])
                    expected[head, row, column] = float(moved.square().sum()) ** 0.5
        assert_close(result[layer], expected)


def test_what_cannot_be_rolled_out_is_refused() -> None:
    read = reading([1, 2], [3, 4])
    with pytest.raises(ValueError, match=r"kind: cross-attention has no rollout"):
        attention_rollout(transformer(), read, kind="cross")
    with pytest.raises(ValueError, match=r"kind: this model has self, not cross"):
        value_weighted_attention(gpt(), reading([1]), kind="cross")
    with pytest.raises(ValueError, match=r"RNN has one attention"):
        attention_rollout(rnn(), read)
    with pytest.raises(ValueError, match=r"residual: expected 0 to 1, not 2"):
        attention_rollout(gpt(), reading([1]), residual=2)
