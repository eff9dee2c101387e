"""The logit lens and the norms equal the plain equations in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from qkv.insight.inspect.capture import unmasked
from qkv.insight.inspect.logit_lens import logit_lens, next_tokens
from qkv.insight.inspect.model_input import hidden, ids_of
from qkv.insight.inspect.residual_norms import residual_norms
from qkv.nn.hooks import add_hook, capture
from qkv.text import train
from support.families import bert, gpt, rnn, transformer, words
from support.readings import reading
from support.shape_checks import unchecked

T, S = 6, 5
MODELS: dict[str, Any] = {
    "gpt": lambda: gpt(depth=11, position="rotary"),
    "gpt, norm after": lambda: gpt(norm_placement="after"),
    "bert": lambda: bert(),
    "translator": lambda: transformer(decoder_depth=3),
}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train("characters", ["abcdefg"], 100)


def texts(model: Any) -> Any:
    ids = words(T).tolist()
    return reading(ids, words(S).tolist() if hasattr(model, "encoder") else None)


@pytest.mark.parametrize("family", MODELS)
def test_the_output_layer_is_applied_to_every_layer(family: str, tokenizer: Any) -> None:
    model = MODELS[family]()
    text = texts(model)
    name = "decoder" if text.source else "stack"
    stack = getattr(model, name)
    with torch.no_grad(), capture(model, f"{name}.*") as captured:
        last = hidden(model, text)
    result = logit_lens(model, tokenizer, text, top=3)
    vocabulary = min(tokenizer.vocabulary, 13)
    layers = [
        captured[f"{name}.blocks.0.before"],
        *(captured[f"{name}.blocks.{i}.after"] for i in range(len(stack.blocks))),
    ]
    assert len(result) == len(layers)
    for layer, guesses in zip(layers, result, strict=True):
        normed = layer if stack.norm is None else stack.norm(layer)
        probability = model.logits(normed)[0].detach().softmax(-1)[:, :vocabulary]
        for t in range(T):
            expected = probability[t].sort(descending=True)
            assert [guess.id for guess in guesses[t]] == expected.indices[:3].tolist()
            values = torch.tensor([guess.probability for guess in guesses[t]])
            assert_close(values, expected.values[:3].float())
    final = model.logits(last)[0, :, :vocabulary].argmax(-1)
    assert [guesses[0].id for guesses in result[-1]] == final.tolist()
    assert result[-1] == next_tokens(model, tokenizer, text, top=3)


def test_an_rnn_has_one_layer(tokenizer: Any) -> None:
    model = rnn()
    text = reading(words(T).tolist(), words(S).tolist())
    assert logit_lens(model, tokenizer, text) == [next_tokens(model, tokenizer, text)]
    with pytest.raises(ValueError, match=r"layers: .*RNN"):
        residual_norms(model, text)


def test_many_positions_are_computed_in_chunks(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = gpt()
    text = texts(model)
    whole = next_tokens(model, tokenizer, text)
    monkeypatch.setattr("qkv.insight.inspect.logit_lens.POSITIONS_PER_CHUNK", 4)
    for one, other in zip(next_tokens(model, tokenizer, text), whole, strict=True):
        assert [guess.id for guess in one] == [guess.id for guess in other]


def test_an_encoder_without_a_token_head_has_no_lens(tokenizer: Any) -> None:
    model = bert(mlm_head=False)
    with pytest.raises(ValueError, match=r"lens: .*encoder only"):
        next_tokens(model, tokenizer, texts(model))
    assert residual_norms(model, texts(model)).gradient is None
    with pytest.raises(ValueError, match=r"top: .*not 0"):
        logit_lens(gpt(), tokenizer, texts(gpt()), top=0)


@pytest.mark.parametrize("family", MODELS)
def test_norms_and_the_gradient_by_finite_differences(family: str) -> None:
    """The norm of the gradient equals that of the slopes along each dimension."""
    model = MODELS[family]()
    text = texts(model)
    name = "decoder" if text.source else "stack"
    result = residual_norms(model, text)
    ids = torch.tensor(text.text.ids)

    def losses(layer: int, moved: torch.Tensor) -> torch.Tensor:
        """The loss after adding each row of `moved` (N, T, E) to a layer."""
        point = f"{name}.blocks.0.before" if layer == 0 else f"{name}.blocks.{layer - 1}.after"
        arguments = ids_of(model, text)
        rows = {name: row.expand(len(moved), -1) for name, row in arguments.items()}
        with (
            torch.no_grad(),
            unchecked(),
            add_hook(model, point, lambda value, name: value + moved),
        ):
            logits = model.logits(model.hidden(**rows))
        targets = ids
        if family != "bert":
            logits = logits[:, :-1]
            targets = ids[1:]
        return torch.stack([F.cross_entropy(row, targets) for row in logits])

    with torch.no_grad(), capture(model, f"{name}.blocks.*") as captured:
        hidden(model, text)
    assert_close(result.residual[0], captured[f"{name}.blocks.0.before"][0].norm(dim=-1).float())
    assert_close(result.residual[2], captured[f"{name}.blocks.1.after"][0].norm(dim=-1).float())
    assert result.gradient is not None
    assert len(result.gradient) == len(result.residual)
    for layer, position in ((0, 1), (1, 3), (2, 2)):
        width, step = 16, 1e-6
        moved = torch.zeros(width, T, width, dtype=torch.float64)
        moved[:, position] = step * torch.eye(width)
        above, below = losses(layer, torch.cat([moved, -moved])).chunk(2)
        slopes = (above - below) / (2 * step)
        assert_close(result.gradient[layer][position], slopes.norm().float(), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("family", MODELS)
def test_the_last_position_has_no_gradient(family: str) -> None:
    """It is NaN, not 0; a BERT predicts its last token, too."""
    model = MODELS[family]()
    result = residual_norms(model, texts(model)).gradient
    assert result is not None
    for layer in result:
        assert layer.isnan().tolist() == [False] * (T - 1) + [family != "bert"]
        assert layer[:-1].min() > 0


def test_without_its_mask_the_last_position_of_a_gpt_has_a_gradient() -> None:
    model = gpt()
    with unmasked(model):
        result = residual_norms(model, texts(model)).gradient
    assert result is not None
    assert [bool(layer[-1].isnan()) for layer in result] == [False, False, True]


def test_a_single_token_has_no_loss() -> None:
    assert residual_norms(gpt(), reading([3])).gradient is None
