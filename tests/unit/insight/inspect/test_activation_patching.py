"""One activation at a time, in whole forward passes: the fast way must find the same numbers."""

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
    """Two that differ in two words."""
    clean = words(5).tolist()
    other = [clean[0], (clean[1] + 1) % 13, clean[2], (clean[3] + 5) % 13, clean[4]]
    if not translator:
        return Reading(side(clean)), Reading(side(other))
    target = side(words(3).tolist())
    return Reading(target, side(clean)), Reading(target, side(other))


def naive(
    model: Any, clean: Reading, corrupted: Reading, point: str, count: int, place: int
) -> Tensor:
    """What is said when one row of the second dimension is the clean one: tokens, or heads. (count,
    V)
    """
    with capture(model, point) as seen, unchecked():
        logits(model, clean)
    said = []
    for which in range(count):

        def put(value: Tensor, name: str, which: int = which) -> Tensor:
            value = value.clone()
            value[:, which] = seen[point][:, which]
            return value

        with add_hook(model, point, put), unchecked():
            said.append(logits(model, corrupted)[0, place])
    return torch.stack(said)


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
def test_as_the_naive_way(
    make: Any, stack: str, kind: str | None, point: str, at: Any, count: int
) -> None:
    model, (clean, corrupted), place = make(), prompts(make is transformer), 2
    with torch.no_grad():
        right, wrong = (logits(model, each)[0, place] for each in (clean, corrupted))  # (V,)
        points = [f"{stack}.blocks.{layer}.{point}" for layer in range(2)]
        each = torch.stack(
            [naive(model, clean, corrupted, name, count, place) for name in points]
        )  # (L, N, V)
    for against in (7, None):

        def score(said: Tensor, against: int | None = against) -> Tensor:
            return (
                said.softmax(-1)[..., 4] if against is None else said[..., 4] - said[..., against]
            )

        found = patch(model, clean, corrupted, 4, against, at, place=place, kind=kind)
        assert found.restored.shape == (2, count)
        high, low = score(right), score(wrong)
        assert_close(
            found.restored, ((score(each) - low) / (high - low)).float(), rtol=1e-5, atol=1e-6
        )
        assert [found.clean, found.corrupted] == pytest.approx([float(high), float(low)])
        assert found.measure == ("probability" if against is None else "difference")


def test_at_the_last_layer_the_place_that_is_asked_is_all() -> None:
    model, (clean, corrupted) = gpt(), prompts()
    found = patch(model, clean, corrupted)
    assert_close(found.restored[-1], torch.tensor([0.0, 0, 0, 0, 1]))
    said = logits(model, clean)[0, -1].detach()
    assert found.answer == int(said.argmax())
    assert found.clean == pytest.approx(float(said.softmax(-1).max()))


def test_words_that_did_not_change_bring_nothing_back_at_the_bottom() -> None:
    found = patch(gpt(), *prompts(), 1, 2)
    assert_close(
        found.restored[0, [0]], torch.zeros(1), atol=1e-6, rtol=0
    )  # it reads no word that is another


def test_in_several_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    model, told = gpt(), []
    clean, corrupted = prompts()
    whole = patch(model, clean, corrupted, 1, 2).restored
    monkeypatch.setattr(upper_layers, "TOKENS", 10)  # two at once
    again = patch(
        model, clean, corrupted, 1, 2, progress=lambda done, all: told.append((done, all))
    ).restored
    assert_close(again, whole)
    assert told == [(1, 2), (2, 2)]


def test_bad_questions() -> None:
    model, (clean, corrupted) = gpt(), prompts()
    with pytest.raises(
        ValueError, match="corrupted: the answer is the same as after the clean prompt"
    ):
        patch(model, clean, clean, 1, 2)
    longer = Reading(side([*corrupted.text.ids, 3]))
    with pytest.raises(
        ValueError,
        match="corrupted: its text has 6 tokens and the clean one 5; each needs a counterpart",
    ) as error:
        patch(model, clean, longer)
    assert " | ".join(longer.text.tokens) in str(error.value)
    assert " | ".join(clean.text.tokens) in str(error.value)
    with pytest.raises(ValueError, match="place: a BERT says a word at every place"):
        patch(bert(), clean, corrupted)
    with pytest.raises(ValueError, match="place: expected 0 to 4, not 5"):
        patch(model, clean, corrupted, place=5)
    with pytest.raises(ValueError, match="kind: this model has self, not cross"):
        patch(model, clean, corrupted, kind="cross")
    with pytest.raises(ValueError, match="kind: cross-attention has heads alone"):
        patch(transformer(), *prompts(True), kind="cross")
    with pytest.raises(ValueError, match="model: an RNN has one attention"):
        patch(rnn(), *prompts(True))
    with pytest.raises(ValueError, match="model: patching asks for a word"):
        patch(bert(mlm_head=False), clean, corrupted, place=1)
    head = HeadConfig(task="classify", labels=("a", "b"), delimiter=1, extract=1, padding=0)
    with pytest.raises(ValueError, match="model: patching asks for a word"):
        patch(TaskModel(TaskModelConfig(backbone=model.config, head=head)), clean, corrupted)
