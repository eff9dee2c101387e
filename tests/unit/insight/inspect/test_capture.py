"""Captured attention equals eager attention in every architecture; only what is asked is kept."""

from __future__ import annotations

import math
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from qkv.insight.inspect import capture as module
from qkv.insight.inspect.alignment import alignment
from qkv.insight.inspect.capture import capture_attention, unmasked
from qkv.insight.inspect.model_input import read
from qkv.models import GPT
from qkv.models.sites import attention_sites
from qkv.nn.hooks import capture, has_hooks
from qkv.text import train
from support.families import (
    BERT_KINDS,
    GPT_KINDS,
    RNN_KINDS,
    TRANSFORMER_KINDS,
    bert,
    gpt,
    rnn,
    transformer,
    words,
)
from support.readings import reading
from support.small_task_models import small_tuned

T, S = 7, 5
OTHER_SCORES = ("alibi", "window", "strided", "fixed", "relative")  # not q.k alone


def by_hand(captured: dict[str, Tensor], at: str, causal: bool) -> Tensor:
    """softmax(q k^T / sqrt(D)) of the captured queries and keys, head by head, row by row."""
    query = captured[f"{at}.query"][0]
    key = captured[f"{at}.key"][0]
    H, T, D = query.shape
    weights = torch.zeros(H, T, key.shape[1], dtype=query.dtype)
    for head in range(H):
        for t in range(T):
            last = t + 1 if causal else key.shape[1]
            scores = torch.stack(
                [query[head, t] @ k for k in key[head * len(key) // H, :last]]
            ) / math.sqrt(D)
            powers = (scores - scores.max()).exp()
            weights[head, t, :last] = powers / powers.sum()
    return weights


@pytest.mark.parametrize(
    ("make", "kind"),
    [(gpt, kind) for kind in GPT_KINDS if not kind.startswith("activation")]
    + [(bert, kind) for kind in BERT_KINDS if not kind.startswith("activation")],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_weights_of_a_stack(make: Any, kind: str) -> None:
    model = make(**(GPT_KINDS if make is gpt else BERT_KINDS)[kind])
    ids = words(T).tolist()
    with capture(model, "*") as captured, torch.no_grad():
        model(torch.tensor([ids]))
    (result,) = capture_attention(model, reading(ids))
    assert (result.kind, result.depth, result.heads, result.causal) == ("self", 2, 4, make is gpt)
    for layer, weights in result.layers.items():
        at = f"stack.blocks.{layer}.attention"
        assert_close(weights, captured[f"{at}.weights"][0].float())
        value = captured[f"{at}.value"][0].repeat_interleave(
            4 // captured[f"{at}.value"].shape[1], dim=0
        )
        assert_close(weights.double() @ value, captured[f"{at}.heads"][0], rtol=0, atol=1e-5)
        if not any(name in kind for name in OTHER_SCORES):
            assert_close(weights.double(), by_hand(captured, at, make is gpt), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "kind", [kind for kind in TRANSFORMER_KINDS if not kind.startswith("activation")]
)
def test_weights_of_a_translator(kind: str) -> None:
    model = transformer(**TRANSFORMER_KINDS[kind])
    source, target = words(S, vocabulary=7).tolist(), words(T).tolist()
    with capture(model, "*") as captured, torch.no_grad():
        model(torch.tensor([source]), torch.tensor([target]))
    result = capture_attention(model, reading(target, source))
    shapes = []
    for attention in result:
        rows, columns = len(attention.rows.ids), len(attention.columns.ids)
        shapes.append((attention.kind, attention.causal, rows, columns))
    assert shapes == [("encoder", False, S, S), ("decoder", True, T, T), ("cross", False, T, S)]
    for attention, site in zip(result, attention_sites(model), strict=True):
        for layer, weights in attention.layers.items():
            at = site.point.format(layer)
            assert_close(weights, captured[f"{at}.weights"][0].float())
            if not any(name in kind for name in OTHER_SCORES):
                expected = by_hand(captured, at, attention.causal)
                assert_close(weights.double(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "kind", [kind for kind in RNN_KINDS if "none" not in kind and kind != "other source"]
)
def test_weights_of_an_rnn(kind: str) -> None:
    model, source, target = rnn(**RNN_KINDS[kind]), words(S).tolist(), words(T).tolist()
    (result,) = capture_attention(model, reading(target, source))
    assert (result.kind, result.depth, result.heads) == ("cross", 1, 1)
    state = model.start(torch.tensor([source]))
    for t, id in enumerate(target):
        query = state.hidden[0][-1]  # (1, E): the state before the token is read
        scores = model.score_function()(query.unsqueeze(1), state.key)[0, 0]
        assert_close(result.layers[0][0, t].double(), scores.softmax(-1), rtol=0, atol=1e-6)
        model.decode(torch.tensor([[id]]), state)
    with pytest.raises(ValueError, match=r"attention: .*none"):
        capture_attention(rnn(attention="none"), reading(target, source))


@pytest.mark.parametrize("make", [transformer, rnn])
def test_a_row_of_cross_attention_is_the_predicted_token(make: Any) -> None:
    """The rows equal those of the alignment."""
    tokenizer = train("words", ["the cats chase mice", "mice ran"], 80)
    model = make(vocabulary=tokenizer.vocabulary).float().eval()
    text = read(model, tokenizer, source="the cats chase mice", target="mice ran the")
    result = capture_attention(model, text)[-1]
    assert result.rows.tokens == ("mice", "ran", "the", tokenizer.token(tokenizer.end))
    source = torch.tensor([text.source.ids])
    predicted = torch.tensor([result.rows.ids])
    rows = torch.cat(list(result.layers.values())).mean(0)  # (H, T, S) each -> (T, S)
    assert_close(rows, alignment(model, source, predicted, start=tokenizer.start))


@pytest.mark.parametrize("family", ["gpt", "bert"])
def test_weights_of_a_task_model(family: str) -> None:
    """All positions of a task model are captured, also if its head pools the first token."""
    model, tokenizer = small_tuned("classify", family)
    text = read(model, tokenizer, "the cat sat on the mat")
    (result,) = capture_attention(model, text)
    (backbone,) = capture_attention(model.backbone, text)
    assert result.layers[1].shape == (2, len(text.text.ids), len(text.text.ids))
    assert_close(result.layers[1], backbone.layers[1])


def test_one_layer_keeps_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other layers form no weights; with the overview each is freed before the next is formed."""
    model, text = gpt(depth=5), reading(words(T).tolist())
    formed: list[weakref.ref[Tensor]] = []
    alive: list[int] = []
    store = module.SiteCapture.store

    def watched(self: Any, weights: Tensor, name: str, layer: int) -> None:
        alive.append(sum(reference() is not None for reference in formed))
        formed.append(weakref.ref(weights))
        store(self, weights, name, layer)

    monkeypatch.setattr(module.SiteCapture, "store", watched)
    (whole,) = capture_attention(model, text)
    formed.clear()
    alive.clear()
    (result,) = capture_attention(model, text, layers=[2], overview=False)
    assert len(formed) == 1
    assert list(result.layers) == [2]
    assert result.overview.shape[0] == 0
    assert_close(result.layers[2], whole.layers[2])
    formed.clear()
    alive.clear()
    (result,) = capture_attention(model, text, layers=[-1])
    assert len(formed) == 5
    assert alive == [0, 0, 0, 0, 0]
    assert list(result.layers) == [4]
    assert_close(result.overview, whole.overview)


def test_kept_weights_own_their_memory() -> None:
    """They are no view of a larger tensor, and have no graph."""
    (result,) = capture_attention(gpt().float(), reading(words(T).tolist()))
    for weights in result.layers.values():
        assert weights.untyped_storage().nbytes() == weights.nbytes
        assert not weights.requires_grad


def test_the_overview_is_max_pooled() -> None:
    model = gpt(position="rotary")
    (result,) = capture_attention(model, reading(words(150).tolist()))
    assert result.overview.shape == (2, 4, 64, 64)
    weights = result.layers[1][2]
    for row, column in ((0, 0), (17, 3), (63, 62)):
        tall, wide = (slice(i * 150 // 64, -(-(i + 1) * 150 // 64)) for i in (row, column))
        assert result.overview[1, 2, row, column] == weights[tall, wide].max()


def test_entropy_and_distance_of_known_patterns() -> None:
    uniform = torch.full((8, 8), 1 / 8)
    before = torch.eye(8).roll(-1, 1)
    before[0] = torch.eye(8)[1]
    weights = torch.stack([uniform, torch.eye(8), before])
    assert_close(module.entropy(weights), torch.tensor([3.0, 0.0, 0.0]))
    apart = torch.tensor([[abs(q - k) for k in range(8)] for q in range(8)]).float().mean()
    assert_close(module.distance(weights, "self"), torch.tensor([float(apart), 0.0, 1.0]))
    assert module.distance(weights, "cross").isnan().all()


def test_a_gpt_without_its_mask_attends_to_later_tokens() -> None:
    model, text = gpt(), reading(words(T).tolist())
    (masked,) = capture_attention(model, text)
    with unmasked(model):
        (free,) = capture_attention(model, text)
        assert not free.causal
    lower = free.layers[0].tril()
    # The same scores over fewer tokens
    assert_close(lower / lower.sum(-1, keepdim=True), masked.layers[0])
    assert capture_attention(model, text)[0].causal
    assert type(model).mask is GPT.mask
    with pytest.raises(ValueError, match=r"mask: .*GPT"), unmasked(bert()):
        pass


def test_dropout_is_off_and_the_mode_is_restored() -> None:
    model, text = gpt(attention_dropout=0.5, dropout=0.5), reading(words(T).tolist())
    expected = capture_attention(model, text)[0].layers[1]
    model.train()
    assert_close(capture_attention(model, text)[0].layers[1], expected)
    assert model.training
    assert not has_hooks(model)


def test_the_last_layer_of_each_stack() -> None:
    model = transformer(depth=3, decoder_depth=2)
    result = capture_attention(model, reading(words(T).tolist(), words(S).tolist()), layers=[-1])
    assert [list(attention.layers) for attention in result] == [[2], [1], [1]]


def test_unmasked_contexts_nest() -> None:
    model, text = gpt(), reading(words(T).tolist())
    with unmasked(model):
        with unmasked(model):
            pass
        assert not capture_attention(model, text)[0].causal
    assert capture_attention(model, text)[0].causal


def test_a_missing_layer_is_refused() -> None:
    with pytest.raises(ValueError, match=r"layer: .*not 2"):
        capture_attention(gpt(), reading([1, 2]), layers=[2])
