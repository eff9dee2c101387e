"""Patching equals whole forward passes that replace one activation at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from qkv.insight.inspect import upper_layers
from qkv.insight.inspect.activation_patching import patch
from qkv.insight.inspect.model_input import Reading, Side, logits
from qkv.models import HeadConfig, TaskModel, TaskModelConfig
from qkv.nn.hooks import add_hook, capture
from support.families import bert, gpt, rnn, transformer, words
from support.shape_checks import unchecked


def side(ids: list[int]) -> Side:
    return Side(tuple(ids), tuple(f"w{id}" for id in ids), ())


def prompts(translator: bool = False) -> tuple[Reading, Reading]:
    """Two prompts that differ in two tokens."""
    clean = words(5).tolist()
    other = [clean[0], (clean[1] + 1) % 13, clean[2], (clean[3] + 5) % 13, clean[4]]
    if not translator:
        return Reading(side(clean)), Reading(side(other))
    target = side(words(3).tolist())
    return Reading(target, side(clean)), Reading(target, side(other))


def patched_logits(
    model: Any, clean: Reading, corrupted: Reading, point: str, count: int, position: int
) -> Tensor:
    """The logits (count, V) after patching each token or head (the second dimension) in turn."""
    with capture(model, point) as captured, unchecked():
        logits(model, clean)
    rows = []
    for index in range(count):

        def replace(value: Tensor, name: str, index: int = index) -> Tensor:
            value = value.clone()
            value[:, index] = captured[point][:, index]
            return value

        with add_hook(model, point, replace), unchecked():
            rows.append(logits(model, corrupted)[0, position])
    return torch.stack(rows)


@pytest.mark.parametrize(
    ("make", "stack", "kind", "point", "at", "count"),
    [
        (gpt, "stack", None, "after", "residual", 5),
        (gpt, "stack", None, "attention.heads", "heads", 4),
        (gpt, "stack", None, "feed_forward.hidden", "feed_forward", 5),
        (bert, "stack", None, "after", "residual", 5),
        (bert, "stack", None, "attention.heads", "heads", 4),
        (transformer, "encoder", None, "after", "residual", 5),
        (transformer, "encoder", "encoder", "attention.heads", "heads", 4),
        (transformer, "decoder", "decoder", "feed_forward.hidden", "feed_forward", 3),
        (transformer, "decoder", "cross", "cross_attention.heads", "heads", 4),
    ],
)
def test_every_activation_equals_a_whole_forward_pass(
    make: Any, stack: str, kind: str | None, point: str, at: Any, count: int
) -> None:
    model = make()
    clean, corrupted = prompts(make is transformer)
    position = 2
    with torch.no_grad():
        clean_logits = logits(model, clean)[0, position]  # (V,)
        corrupted_logits = logits(model, corrupted)[0, position]
        layers = []
        for layer in range(2):
            name = f"{stack}.blocks.{layer}.{point}"
            layers.append(patched_logits(model, clean, corrupted, name, count, position))
        patched = torch.stack(layers)  # (L, N, V)
    for against in (7, None):

        def score(values: Tensor, against: int | None = against) -> Tensor:
            if against is None:
                return values.softmax(-1)[..., 4]
            return values[..., 4] - values[..., against]

        result = patch(model, clean, corrupted, 4, against, at, place=position, kind=kind)
        assert result.restored.shape == (2, count)
        high, low = score(clean_logits), score(corrupted_logits)
        expected = ((score(patched) - low) / (high - low)).float()
        assert_close(result.restored, expected, rtol=1e-5, atol=1e-6)
        assert [result.clean, result.corrupted] == pytest.approx([float(high), float(low)])
        assert result.measure == ("probability" if against is None else "difference")


def test_at_the_last_layer_the_answer_position_restores_all() -> None:
    model, (clean, corrupted) = gpt(), prompts()
    result = patch(model, clean, corrupted)
    assert_close(result.restored[-1], torch.tensor([0.0, 0, 0, 0, 1]))
    last = logits(model, clean)[0, -1].detach()
    assert result.answer == int(last.argmax())
    assert result.clean == pytest.approx(float(last.softmax(-1).max()))


def test_equal_tokens_restore_nothing_in_the_first_layer() -> None:
    result = patch(gpt(), *prompts(), 1, 2)
    # Token 0 has seen no token that differs.
    assert_close(result.restored[0, [0]], torch.zeros(1), atol=1e-6, rtol=0)


def test_in_several_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    model = gpt()
    calls: list[tuple[int, int]] = []
    clean, corrupted = prompts()
    whole = patch(model, clean, corrupted, 1, 2).restored
    monkeypatch.setattr(upper_layers, "TOKENS", 10)  # two at once
    chunked = patch(
        model, clean, corrupted, 1, 2, progress=lambda done, total: calls.append((done, total))
    ).restored
    assert_close(chunked, whole)
    assert calls == [(1, 2), (2, 2)]


def test_prompts_and_sites_that_do_not_fit_are_refused() -> None:
    model, (clean, corrupted) = gpt(), prompts()
    with pytest.raises(ValueError, match=r"corrupted: .*same"):
        patch(model, clean, clean, 1, 2)
    longer = Reading(side([*corrupted.text.ids, 3]))
    with pytest.raises(ValueError, match=r"corrupted: .*6 tokens .*clean one 5") as error:
        patch(model, clean, longer)
    assert " | ".join(longer.text.tokens) in str(error.value)
    assert " | ".join(clean.text.tokens) in str(error.value)
    with pytest.raises(ValueError, match=r"place: .*BERT"):
        patch(bert(), clean, corrupted)
    with pytest.raises(ValueError, match=r"place: .*not 5"):
        patch(model, clean, corrupted, place=5)
    with pytest.raises(ValueError, match=r"kind: .*not cross"):
        patch(model, clean, corrupted, kind="cross")
    with pytest.raises(ValueError, match=r"kind: .*heads"):
        patch(transformer(), *prompts(True), kind="cross")
    with pytest.raises(ValueError, match=r"model: .*RNN"):
        patch(rnn(), *prompts(True))
    with pytest.raises(ValueError, match=r"model: .*predicts none"):
        patch(bert(mlm_head=False), clean, corrupted, place=1)
    head = HeadConfig(task="classify", labels=("a", "b"), delimiter=1, extract=1, padding=0)
    with pytest.raises(ValueError, match=r"model: .*predicts none"):
        patch(TaskModel(TaskModelConfig(backbone=model.config, head=head)), clean, corrupted)
