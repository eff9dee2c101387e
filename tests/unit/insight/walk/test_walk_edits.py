"""A head under edits is what a plain computation of the same edits gives, in the whole model."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from qkv.insight.inspect.attention_edits import Edit, apply_edits
from qkv.insight.inspect.model_input import hidden, logits
from qkv.insight.walk.head_walk import HeadWalk, walk_head
from qkv.insight.walk.walk_edits import WalkEdits
from qkv.insight.walk.walk_effects import WalkEffects, walk_effects
from qkv.nn.hooks import add_hook, capture
from qkv.nn.position import rotary_angles, rotate
from qkv.text import train
from support.families import bert, gpt, rnn, transformer, words
from support.readings import reading

T, S = 6, 5
TOKENIZER = train("words", ["a b c d e f g h i"], 13)
LAYER, HEAD = 0, 2
AT = f"stack.blocks.{LAYER}.attention"


def of(model: Any, **edits: Any) -> tuple[HeadWalk, WalkEffects, Any]:
    """The plain walk of a head, its effects under edits, and the text."""
    torch.manual_seed(1)
    ids = words(T).tolist()
    text = reading(ids, words(S).tolist() if model.has_source else None)
    head = HEAD if model.stacks else 0
    plain = walk_head(model, text, TOKENIZER, layer=LAYER, head=head)
    name = (None, LAYER, head)
    return plain, walk_effects(model, text, TOKENIZER, name, WalkEdits(**edits), top=13), text


def distribution(model: Any, text: Any, position: int = -1) -> Tensor:
    with torch.no_grad():
        return logits(model, text)[0, position].softmax(-1)


def with_weights(model: Any, text: Any, weights: Tensor) -> Tensor:
    """The prediction of the last position with other weights of the head."""

    def replace(value: Tensor, name: str) -> Tensor:
        value = value.clone()
        value[0, HEAD] = weights
        return value

    with add_hook(model, f"{AT}.weights", replace):
        return distribution(model, text)


def shown(effects: WalkEffects) -> Tensor:
    """The probabilities after the edits, by id."""
    assert effects.next is not None
    probabilities = torch.zeros(13, dtype=torch.float64)
    for token in effects.next.tokens:
        probabilities[token.id] = token.after
    return probabilities


def softmax_of(plain: HeadWalk, divisor: float, visible: Tensor) -> Tensor:
    raw = plain.equation.query @ plain.equation.key.T
    return (raw / divisor).masked_fill(~visible, -math.inf).softmax(-1)


@pytest.mark.parametrize("make", [gpt, bert])
def test_another_divisor(make: Any) -> None:
    model = make(position="rotary", kv_heads=2)
    plain, effects, text = of(model, divisor=1.0)
    expected = softmax_of(plain, 1.0, plain.visible)
    assert_close(effects.walk.weights, expected, rtol=0, atol=1e-9)
    assert_close(shown(effects), with_weights(model, text, expected), rtol=0, atol=1e-9)
    assert effects.walk.equation.divisor == 1
    handed_on = effects.walk.weights @ plain.equation.value
    assert_close(handed_on, effects.walk.output, rtol=0, atol=1e-9)


def test_the_mask_lifted_and_keys_swapped() -> None:
    model = gpt()
    plain, effects, text = of(model, lift_mask=True)
    everything = torch.ones(T, T, dtype=torch.bool)
    expected = softmax_of(plain, 2.0, everything)
    assert_close(effects.walk.weights, expected, rtol=0, atol=1e-9)
    assert bool(effects.walk.visible.all())
    assert_close(shown(effects), with_weights(model, text, expected), rtol=0, atol=1e-9)

    plain, effects, text = of(model, swap_keys=[(0, 3)])
    raw = (plain.equation.query @ plain.equation.key.T)[:, [3, 1, 2, 0, 4, 5]]
    expected = (raw / 2.0).masked_fill(~plain.visible, -math.inf).softmax(-1)
    assert_close(effects.walk.weights, expected, rtol=0, atol=1e-9)
    assert_close(shown(effects), with_weights(model, text, expected), rtol=0, atol=1e-9)


def test_weights_as_given() -> None:
    model = gpt()
    row = [0.5, 0.25, 0.0, 0.25, 0.0, 0.0]
    plain, effects, text = of(model, weights={5: row})
    expected = plain.weights.clone()
    expected[5] = torch.tensor(row)
    assert_close(effects.walk.weights, expected, rtol=0, atol=1e-12)
    assert_close(shown(effects), with_weights(model, text, expected), rtol=0, atol=1e-9)


@pytest.mark.parametrize("position", [40, -13])
def test_a_moved_token_of_rotary_positions_keeps_its_vector(position: int) -> None:
    plain, effects, _ = of(gpt(position="rotary"), move={1: position})
    rotary = plain.equation.rotary
    assert rotary is not None
    angles = rotary_angles(torch.tensor([[position]]), 4)
    key = rotate(rotary.key[None, None, 1:2], angles)[0, 0, 0]
    assert_close(effects.walk.equation.key[1], key, rtol=0, atol=1e-6)
    score = plain.equation.query @ key / 2
    assert_close(effects.walk.scores[1:, 1], score[1:], rtol=0, atol=1e-6)
    assert_close(effects.walk.scores[2:, 2], plain.scores[2:, 2], rtol=0, atol=1e-9)


@pytest.mark.parametrize("position", ["alibi", "relative"])
def test_a_moved_token_of_a_bias(position: str) -> None:
    plain, effects, _ = of(gpt(position=position), move={1: 3})
    before, after = plain.equation.bias, effects.walk.equation.bias
    assert before is not None
    assert after is not None
    if position == "alibi":  # at the position of token 3 it has the bias of token 3
        assert_close(after[:, 1], before[:, 3], rtol=0, atol=1e-6)
    else:
        assert_close(after[4, 1], before[4, 3], rtol=0, atol=1e-6)
    assert_close(after[:, [0, 2, 3, 4, 5]], before[:, [0, 2, 3, 4, 5]], rtol=0, atol=1e-6)


def test_a_moved_token_of_learned_positions_is_read_at_its_new_place() -> None:
    model = gpt(position="learned")
    plain, effects, text = of(model, move={1: 9})
    positions = torch.tensor([[0, 9, 2, 3, 4, 5]])
    with capture(model, f"{AT}.key") as captured, torch.no_grad():
        model.hidden(torch.tensor([list(text.text.ids)]), positions=positions)
    assert_close(effects.walk.equation.key[1], captured[f"{AT}.key"][0, HEAD, 1])
    assert_close(effects.walk.equation.key[2:], plain.equation.key[2:])
    with pytest.raises(ValueError, match="move: expected a position of 0 to 15, not 16"):
        of(model, move={1: 16})


@pytest.mark.parametrize("make", [gpt, bert, transformer, rnn])
def test_strength_0_is_a_head_switched_off_and_no_edit_is_the_model(make: Any) -> None:
    model = make()
    plain, effects, text = of(model)
    assert_close(effects.walk.weights, plain.weights, rtol=0, atol=0)
    assert effects.next is not None
    assert effects.next.position == T - 1
    assert [token.before for token in effects.next.tokens] == [
        token.after for token in effects.next.tokens
    ]
    assert_close(shown(effects), distribution(model, text), rtol=0, atol=1e-12)

    _, effects, _ = of(model, strength=0.0)
    kind = "cross" if model.has_source else None
    with apply_edits(model, [Edit(LAYER, HEAD if model.stacks else 0, kind=kind)]):
        expected = distribution(model, text)
    assert_close(shown(effects), expected, rtol=0, atol=1e-12)
    assert not effects.walk.output.any()


@pytest.mark.parametrize("attention", ["additive", "general", "dot", "scaled_dot"])
def test_an_rnn_under_edits(attention: str) -> None:
    model = rnn(attention=attention)
    plain, effects, text = of(model, divisor=0.5, weights={2: [0.0, 0.0, 1.0, 0.0, 0.0]})
    first = plain.equation.raw_scores()[0] / 0.5  # later queries depend on the first weights
    assert_close(effects.walk.weights[0], first.softmax(-1), rtol=0, atol=1e-9)
    assert effects.walk.weights[2].tolist() == [0.0, 0.0, 1.0, 0.0, 0.0]
    handed_on = effects.walk.weights @ plain.equation.value
    assert_close(handed_on, effects.walk.output, rtol=0, atol=1e-9)
    assert not torch.equal(shown(effects), distribution(model, text))
    with pytest.raises(ValueError, match="move: an RNN has no positions"):
        of(model, move={0: 1})


def test_an_encoder_predicts_nothing_and_wrong_edits_are_refused() -> None:
    model = bert(mlm_head=False)
    _, effects, _ = of(model, divisor=1.0)
    assert effects.next is None
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"divisor": 0.0}, "divisor: expected a number above 0, not 0.0"),
        ({"weights": {0: [1.0]}}, "weights: expected 6 numbers for token 0"),
        ({"swap_keys": [(0, 6)]}, "swap_keys: expected a token of 0 to 5, not 6"),
        ({"move": {0: -1}}, "move: expected a position of 0 to 15, not -1"),
        ({"strength": math.inf}, "strength: expected a finite number"),
    ]
    for edits, message in wrong:
        with pytest.raises(ValueError, match=message):
            of(model, **edits)


def test_hooks_are_removed() -> None:
    model = gpt()
    _, _, text = of(model, divisor=1.0, strength=0.5)
    with torch.no_grad():
        before = hidden(model, text)
    of(model, lift_mask=True, move={})
    with torch.no_grad():
        assert torch.equal(before, hidden(model, text))
