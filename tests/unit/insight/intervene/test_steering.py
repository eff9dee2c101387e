"""Steering equals a forward pass by hand, block by block, with the direction added."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.generation.generate import generate
from qkv.insight.inspect.attention_edits import Edit, apply_edits
from qkv.insight.inspect.model_input import ids_of, logits, read
from qkv.insight.intervene.edit_effects import edit_effects
from qkv.insight.intervene.steering import Steering, steer, steering_direction
from qkv.nn.attention.mask import Causal
from qkv.text import train
from support.families import bert, gpt, rnn, transformer
from support.sentences import SENTENCES

TOKENIZER = train("words", SENTENCES, 80)
TEXT = "the cat sat on the mat"
PLUS = "cats chase mice"
MINUS = "the teacher said"
SIZE: dict[str, Any] = {"vocabulary": TOKENIZER.vocabulary}


def residuals_by_hand(model: Any, ids: list[int], added: dict[int, Tensor]) -> list[Tensor]:
    """The residual stream after each block in float64, with directions added after some."""
    positions = torch.arange(len(ids)).unsqueeze(0)
    x = model.embedding(torch.tensor([ids]), positions)
    x = model.stack.position.add(x, positions)
    rotary = model.stack.position.angles(positions)
    streams = []
    for layer, block in enumerate(model.stack.blocks):
        x = block(x, mask=Causal(), rotary=rotary)
        if layer in added:
            x = x + added[layer]
        streams.append(x)

    return streams


@pytest.mark.parametrize("position", ["learned", "rotary"])
def test_the_direction_and_its_sum_equal_a_pass_by_hand(position: str) -> None:
    model = gpt(**SIZE, position=position).double()
    with torch.no_grad():
        direction = steering_direction(model, TOKENIZER, PLUS, MINUS, layer=0)
        means = []
        for prompt in (PLUS, MINUS):
            ids = list(read(model, TOKENIZER, prompt).text.ids)
            means.append(residuals_by_hand(model, ids, {})[0][0, 1:].mean(0))
        assert torch.allclose(direction, means[0] - means[1], atol=1e-12)

        reading = read(model, TOKENIZER, TEXT)
        plain = logits(model, reading)
        with steer(model, direction, layer=0, strength=0.0):
            assert torch.equal(logits(model, reading), plain)
        with steer(model, direction, layer=0, strength=1.5):
            steered = logits(model, reading)
        assert torch.equal(logits(model, reading), plain)  # it has ended

        last = residuals_by_hand(model, list(reading.text.ids), {0: 1.5 * direction})[-1]
        if model.stack.norm is not None:
            last = model.stack.norm(last)
        assert torch.allclose(steered, model.logits(last), atol=1e-10)
        assert not torch.allclose(steered, plain, atol=0.01)


def test_effects_of_steering_and_edits_together() -> None:
    model = gpt(**SIZE)
    reading = read(model, TOKENIZER, TEXT)
    direction = steering_direction(model, TOKENIZER, PLUS, MINUS, layer=1)
    steering = Steering(1, direction, 2.0)
    edits = [Edit.read("0.1=0.5")]
    result = edit_effects(model, TOKENIZER, reading, edits, length=4, steering=steering)
    with torch.no_grad():
        before = logits(model, reading)[0].double()
        with apply_edits(model, edits), steer(model, direction, 1, 2.0):
            after = logits(model, reading)[0].double()
            ids = ids_of(model, reading)["ids"][0]
            cached = generate(model, ids, length=4, temperature=0, end=TOKENIZER.end)

    expected = after.log_softmax(-1)[:-1].gather(1, ids[1:].unsqueeze(1))[:, 0]
    assert result.logprobs_after is not None
    assert result.logprobs_before is not None
    assert result.logprobs_after.tolist() == pytest.approx(expected.tolist(), abs=1e-5)
    assert -float(result.logprobs_before.mean()) == pytest.approx(result.loss_before, abs=1e-5)
    assert result.next_before is not None
    assert result.next_after is not None
    assert result.next_before.tolist() == pytest.approx(before[-1].softmax(-1).tolist(), abs=1e-5)
    assert result.next_after.tolist() == pytest.approx(after[-1].softmax(-1).tolist(), abs=1e-5)
    assert result.text_after == TOKENIZER.decode(cached)
    assert result.changes == ("0.1=0.5", "steered after layer 1 with strength 2")


def test_an_encoder_is_steered_at_all_its_tokens() -> None:
    model = bert(**SIZE)
    reading = read(model, TOKENIZER, TEXT)
    direction = steering_direction(model, TOKENIZER, PLUS, MINUS, layer=0)
    effects = edit_effects(model, TOKENIZER, reading, [], steering=Steering(0, direction))
    assert (effects.moved > 0).all()


def test_wrong_arguments() -> None:
    model = gpt(**SIZE)
    with pytest.raises(ValueError, match="layer: expected 0 to 1, not 2"):
        steering_direction(model, TOKENIZER, PLUS, MINUS, layer=2)
    with pytest.raises(ValueError, match="minus: it is empty; expected a prompt"):
        steering_direction(model, TOKENIZER, PLUS, " ", layer=0)
    with pytest.raises(ValueError, match="plus: 40 tokens are more than the model's context"):
        steering_direction(model, TOKENIZER, "the " * 40, MINUS, layer=0)
    with (
        pytest.raises(ValueError, match=r"the model's width, not \(3,\)"),
        steer(model, torch.ones(3), 0),
    ):
        pass
    width = model.config.width
    with (
        pytest.raises(ValueError, match="strength: expected a finite number, not inf"),
        steer(model, torch.ones(width), 0, float("inf")),
    ):
        pass
    with pytest.raises(ValueError, match="a translator cannot be steered"):
        steering_direction(transformer(**SIZE), TOKENIZER, PLUS, MINUS, layer=0)
    with pytest.raises(ValueError, match="an RNN has no residual stream"):
        steering_direction(rnn(**SIZE), TOKENIZER, PLUS, MINUS, layer=0)
