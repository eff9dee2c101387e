"""Surgery on models equals the equations without the part, and is undone afterwards."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from qkv.data.batches.batch import IGNORE, Batch
from qkv.lab.surgery import (
    free_running,
    proportional_weights,
    unmasked_training,
    unscaled,
    without_norm,
    without_residual,
)
from qkv.models.model import Model
from qkv.nn.hooks import capture
from qkv.training.objective import Objective
from support.families import E, H, V, bert, gpt, rnn, transformer, words

B, T, S, D = 2, 6, 5, E // H
Surgery = Callable[[Model], AbstractContextManager[None]]


def attention_of_first_layer(
    model: Any, surgery: Surgery, *inputs: Tensor, prefix: str = "stack.blocks.0.attention"
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Query, key and value as projected, and the result of the heads under surgery."""
    names = [f"{prefix}.{name}" for name in ("query", "key", "value", "heads")]
    with capture(model, *names) as captured, surgery(model):
        model(*inputs)

    return captured[names[0]], captured[names[1]], captured[names[2]], captured[names[3]]


def causal(scores: Tensor) -> Tensor:
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, -math.inf)


@pytest.mark.parametrize("model", [gpt(), gpt(kv_heads=2, position="rotary")])
def test_unscaled_scores_are_dot_products(model: Any) -> None:
    query, key, value, heads = attention_of_first_layer(model, unscaled, words(B, T))
    group = H // key.shape[1]
    scores = query @ key.repeat_interleave(group, 1).mT
    right = causal(scores).softmax(-1) @ value.repeat_interleave(group, 1)
    assert_close(heads, right)


def test_unscaled_leaves_the_bias_of_alibi() -> None:
    model = gpt(position="alibi")
    query, key, value, heads = attention_of_first_layer(model, unscaled, words(B, T))
    bias = model.stack.position.bias(query.device).materialise(T, T, query)
    assert_close(heads, causal(query @ key.mT + bias).softmax(-1) @ value)


def test_unscaled_multiplies_all_four_terms_of_relative_positions() -> None:
    model = gpt(position="relative")
    query, key, value, heads = attention_of_first_layer(model, unscaled, words(B, T))
    content, bias = model.stack.blocks[0].attention.relative(query, T)
    assert_close(heads, causal(content @ key.mT + bias * math.sqrt(D)).softmax(-1) @ value)


@pytest.mark.parametrize("kind", ["encoder.blocks.0.attention", "decoder.blocks.0.cross_attention"])
def test_proportional_weights_of_a_transformer_are_shares_of_positive_scores(kind: str) -> None:
    model = transformer()
    query, key, value, heads = attention_of_first_layer(
        model, proportional_weights, words(B, S), words(B, T), prefix=kind
    )
    scores = (query @ key.mT / math.sqrt(D)).relu()
    total = scores.sum(-1, keepdim=True)
    weights = torch.where(total > 0, scores / total, 0)
    assert_close(heads, weights @ value)


def test_proportional_weights_of_an_rnn_have_finite_gradients() -> None:
    model = rnn(attention="dot")
    with capture(model, "scores", "weights") as captured, proportional_weights(model):
        model(words(B, S), words(B, T)).sum().backward()

    scores = captured["scores"].relu()  # those before the hook
    total = scores.sum(-1, keepdim=True)
    assert_close(captured["weights"], torch.where(total > 0, scores / total, 0))
    assert (captured["scores"] < 0).any()
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()


def test_without_the_mask_every_token_sees_all_but_padding() -> None:
    model = gpt()
    query, key, value, heads = attention_of_first_layer(model, unmasked_training, words(B, T))
    assert_close(heads, (query @ key.mT / math.sqrt(D)).softmax(-1) @ value)

    ids = words(B, T)
    padding_mask = torch.arange(T) < torch.tensor([[T], [T - 2]])
    other = ids.where(padding_mask, (ids + 1) % V)
    with unmasked_training(model):
        before = model(ids, padding_mask=padding_mask)
        after = model(other, padding_mask=padding_mask)

    assert_close(before[padding_mask], after[padding_mask])


def test_without_the_mask_a_decoder_sees_later_tokens_also_in_training() -> None:
    model = transformer(dropout=0.0).train()
    source = words(B, S)
    target = words(B, T)
    other = target.clone()
    other[:, -1] = (other[:, -1] + 1) % V
    assert_close(model(source, target)[:, 0], model(source, other)[:, 0])
    with unmasked_training(model):
        assert not torch.isclose(model(source, target)[:, 0], model(source, other)[:, 0]).any()


@pytest.mark.parametrize("placement", ["before", "after"])
def test_without_residuals_a_block_is_its_sublayers(placement: str) -> None:
    model = gpt(norm_placement=placement, window=None)
    block = model.stack.blocks[0]
    x = torch.randn(B, T, E, dtype=torch.float64)

    attention_norm = block.attention_residual.norm
    feed_forward_norm = block.feed_forward_residual.norm
    if placement == "before":
        y, _ = block.attention(attention_norm(x))
        right = block.feed_forward(feed_forward_norm(y))
    else:
        y, _ = block.attention(x)
        right = feed_forward_norm(block.feed_forward(attention_norm(y)))

    with without_residual(model):
        assert_close(block(x), right)

    assert not torch.isclose(block(x), right).any()


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_without_norms_a_block_adds_its_sublayers(norm: str) -> None:
    model = gpt(norm=norm)
    block = model.stack.blocks[0]
    x = torch.randn(B, T, E, dtype=torch.float64)
    y = x + block.attention(x)[0]
    right = y + block.feed_forward(y)
    with without_norm(model):
        assert_close(block(x), right)
        assert_close(model.stack.norm(x), x)

    assert not torch.isclose(block(x), right).all()


def test_without_norms_and_residuals_together() -> None:
    model = gpt()
    block = model.stack.blocks[0]
    x = torch.randn(B, T, E, dtype=torch.float64)
    right = block.feed_forward(block.attention(x)[0])
    with without_norm(model), without_residual(model):
        assert_close(block(x), right)


SURGERIES: dict[str, Surgery] = {
    "unscaled": unscaled,
    "proportional": proportional_weights,
    "unmasked": unmasked_training,
    "residual": without_residual,
    "norm": without_norm,
}


@pytest.mark.parametrize("name", SURGERIES)
def test_surgery_trains_and_is_undone(name: str) -> None:
    model = gpt()
    ids = words(B, T)
    before = model(ids)
    batch = Batch(ids, words(B, T))

    with SURGERIES[name](model), SURGERIES[name](model):
        pass

    with SURGERIES[name](model):
        under = model(ids)
        Objective(model).train()(batch).backward()
        twin = copy.deepcopy(model)
        assert_close(twin(ids), under)

    assert not torch.isclose(before, under).all()
    assert_close(model.eval()(ids), before, rtol=0, atol=0)

    model.embedding.token.weight.data.zero_()
    assert not torch.isclose(twin(ids), model(ids)).all()  # the copy has its own parts


def test_surgery_needs_the_part() -> None:
    plain = rnn(attention="none")
    for surgery in (unscaled, without_residual, without_norm, proportional_weights):
        with pytest.raises(ValueError, match="model:"), surgery(plain):
            pass

    for model in (plain, bert()):
        with pytest.raises(ValueError, match="mask:"), unmasked_training(model):
            pass


# Teacher forcing


def own_predictions(model: Model, source: Tensor, first: Tensor) -> Tensor:
    """Inputs of free-running by whole passes, without a cache."""
    ids = first  # (B, 1)
    for _ in range(T - 1):
        best = model(source, ids)[:, -1].argmax(-1, keepdim=True)
        ids = torch.cat([ids, best], dim=1)

    return ids


@pytest.mark.parametrize("model", [rnn(), rnn(attention="none"), transformer()])
def test_free_running_feeds_the_models_own_predictions(model: Any) -> None:
    source = words(B, S)
    batch = Batch(words(B, T), words(B, T), source=source)
    own = free_running(model, batch)
    assert_close(own.ids, own_predictions(model, source, batch.ids[:, :1]))
    assert own.ids.ne(batch.ids).any()
    assert own.targets is batch.targets

    logits = model(source, own.ids)
    right = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), reduction="sum")
    assert_close(Objective(model)(own), right)


def test_the_gradient_of_free_running_is_that_of_single_steps() -> None:
    model = rnn()
    batch = Batch(words(B, T), words(B, T), source=words(B, S))
    Objective(model)(free_running(model, batch)).backward()
    actual = [parameter.grad.clone() for parameter in model.parameters()]

    model.zero_grad()
    state = model.start(batch.source)
    token = batch.ids[:, :1]
    loss = torch.zeros((), dtype=torch.float64)
    for position in range(T):
        logits = model.decode(token, state)[:, -1]
        loss = loss + F.cross_entropy(logits, batch.targets[:, position], reduction="sum")
        token = logits.argmax(-1, keepdim=True)

    loss.backward()
    for grad, parameter in zip(actual, model.parameters(), strict=True):
        assert_close(grad, parameter.grad)


def test_free_running_keeps_padding_and_the_mode_of_the_model() -> None:
    model = rnn().train()
    padding_mask = torch.arange(T) < torch.tensor([[T], [T - 3]])
    targets = words(B, T).where(padding_mask, IGNORE)
    batch = Batch(words(B, T), targets, padding_mask=padding_mask, source=words(B, S))
    own = free_running(model, batch)
    assert_close(own.ids[~padding_mask], batch.ids[~padding_mask])
    assert model.training


def test_free_running_of_a_gpt_continues_its_first_token() -> None:
    model = gpt()
    batch = Batch(words(B, T), words(B, T))
    ids = free_running(model, batch).ids
    assert_close(ids[:, 1:], model(ids)[:, :-1].argmax(-1))


def test_a_share_of_the_inputs_is_the_models_own() -> None:
    model = gpt()
    batch = Batch(words(8, 16), words(8, 16))
    generator = torch.Generator().manual_seed(1)
    assert_close(free_running(model, batch, share=0.0, generator=generator).ids, batch.ids)

    half = free_running(model, batch, share=0.5, generator=generator).ids
    predicted = model(half)[:, :-1].argmax(-1)
    own = half[:, 1:] == predicted
    reference = half[:, 1:] == batch.ids[:, 1:]
    assert (own | reference).all()
    assert 0.3 < own.double().mean() < 0.75


def test_free_running_says_what_it_cannot_do() -> None:
    batch = Batch(words(B, T), words(B, T))
    with pytest.raises(ValueError, match="generates"):
        free_running(bert(), batch)
    with pytest.raises(ValueError, match="probability"):
        free_running(gpt(), batch, share=1.5)
    with pytest.raises(ValueError, match="generator"):
        free_running(gpt(), batch, share=0.5)
    packed = Batch(words(B, T), words(B, T), documents=torch.zeros(B, T, dtype=torch.long))
    with pytest.raises(ValueError, match="batch:"):
        free_running(gpt(), packed)
