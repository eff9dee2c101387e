"""What is captured is what eager attention says, in every family, and nothing more is kept than was
asked for.
"""

from __future__ import annotations

import math
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from qkv.insight.inspect import capture as capturing
from qkv.insight.inspect.alignment import alignment
from qkv.insight.inspect.capture import attention_sites, capture_attention, unmasked
from qkv.insight.inspect.model_input import read
from qkv.models import GPT
from qkv.nn.hooks import capture
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
UNPLAIN = ("alibi", "window", "strided", "fixed", "relative")  # scores that q.k alone does not give


def by_hand(seen: dict[str, Tensor], at: str, causal: bool) -> Tensor:
    """softmax(q k^T / sqrt(D)) of the recorded queries and keys, head by head, row by row."""
    query, key = seen[f"{at}.query"][0], seen[f"{at}.key"][0]
    H, T, D = query.shape
    weights = torch.zeros(H, T, key.shape[1], dtype=query.dtype)
    for head in range(H):
        for t in range(T):
            last = t + 1 if causal else key.shape[1]
            scores = torch.stack(
                [query[head, t] @ k for k in key[head * len(key) // H, :last]]
            ) / math.sqrt(D)
            weights[head, t, :last] = (scores - scores.max()).exp() / (
                scores - scores.max()
            ).exp().sum()
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
    with capture(model, "*") as seen, torch.no_grad():
        model(torch.tensor([ids]))
    (found,) = capture_attention(model, reading(ids))
    assert (found.kind, found.depth, found.heads, found.causal) == ("self", 2, 4, make is gpt)
    for layer, weights in found.layers.items():
        at = f"stack.blocks.{layer}.attention"
        assert_close(weights, seen[f"{at}.weights"][0].float())
        value = seen[f"{at}.value"][0].repeat_interleave(4 // seen[f"{at}.value"].shape[1], dim=0)
        assert_close(weights.double() @ value, seen[f"{at}.heads"][0], rtol=0, atol=1e-5)
        if not any(name in kind for name in UNPLAIN):
            assert_close(weights.double(), by_hand(seen, at, make is gpt), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "kind", [kind for kind in TRANSFORMER_KINDS if not kind.startswith("activation")]
)
def test_weights_of_a_translator(kind: str) -> None:
    model = transformer(**TRANSFORMER_KINDS[kind])
    source, target = words(S, vocabulary=7).tolist(), words(T).tolist()
    with capture(model, "*") as seen, torch.no_grad():
        model(torch.tensor([source]), torch.tensor([target]))
    found = capture_attention(model, reading(target, source))
    assert [
        (each.kind, each.causal, len(each.rows.ids), len(each.columns.ids)) for each in found
    ] == [
        ("encoder", False, S, S),
        ("decoder", True, T, T),
        ("cross", False, T, S),
    ]
    for each, place in zip(found, attention_sites(model), strict=True):
        for layer, weights in each.layers.items():
            at = place.point.format(layer)
            assert_close(weights, seen[f"{at}.weights"][0].float())
            if not any(name in kind for name in UNPLAIN):
                assert_close(weights.double(), by_hand(seen, at, each.causal), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "kind", [kind for kind in RNN_KINDS if "none" not in kind and kind != "other source"]
)
def test_weights_of_an_rnn(kind: str) -> None:
    model, source, target = rnn(**RNN_KINDS[kind]), words(S).tolist(), words(T).tolist()
    (found,) = capture_attention(model, reading(target, source))
    assert (found.kind, found.depth, found.heads) == ("cross", 1, 1)
    state = model.start(torch.tensor([source]))
    for t, word in enumerate(target):
        query = state.hidden[0][-1]  # (1, E): what asks before the word is read
        scores = model.similarity()(query.unsqueeze(1), state.key)[0, 0]
        assert_close(found.layers[0][0, t].double(), scores.softmax(-1), rtol=0, atol=1e-6)
        model.decode(torch.tensor([[word]]), state)
    with pytest.raises(ValueError, match=r"attention: this RNN has none"):
        capture_attention(rnn(attention="none"), reading(target, source))


@pytest.mark.parametrize("make", [transformer, rnn])
def test_a_row_of_cross_attention_is_the_word_that_was_chosen_there(make: Any) -> None:
    """As the alignment has it: one matrix, whoever shows it."""
    tokenizer = train("words", ["the cats chase mice", "mice ran"], 80)
    model = make(vocabulary=tokenizer.vocabulary).float().eval()
    text = read(model, tokenizer, source="the cats chase mice", target="mice ran the")
    found = capture_attention(model, text)[-1]
    assert found.rows.tokens == ("mice", "ran", "the", tokenizer.token(tokenizer.end))
    source, said = (torch.tensor([ids]) for ids in (text.source.ids, found.rows.ids))
    rows = torch.cat(list(found.layers.values())).mean(0)  # (H, T, S) each -> (T, S)
    assert_close(rows, alignment(model, source, said, start=tokenizer.start))


@pytest.mark.parametrize("family", ["gpt", "bert"])
def test_weights_below_a_head(family: str) -> None:
    """A model that reads its first word alone for its answer is looked at as a whole."""
    model, tokenizer = small_tuned("classify", family)
    text = read(model, tokenizer, "the cat sat on the mat")
    (found,) = capture_attention(model, text)
    (backbone,) = capture_attention(model.backbone, text)
    assert found.layers[1].shape == (2, len(text.text.ids), len(text.text.ids))
    assert_close(found.layers[1], backbone.layers[1])


def test_one_layer_keeps_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the others no weights are made, and when the overview asks for them, each is gone before
    the next comes.
    """
    model, text = gpt(depth=5), reading(words(T).tolist())
    made: list[weakref.ref[Tensor]] = []
    alive: list[int] = []

    def watching(hear: Any) -> Any:
        def heard(self: Any, layer: int, weights: Tensor, name: str) -> None:
            alive.append(sum(each() is not None for each in made))
            made.append(weakref.ref(weights))
            hear(self, layer, weights, name)

        return heard

    monkeypatch.setattr(capturing.Finding, "hear", watching(capturing.Finding.hear))
    (whole,) = capture_attention(model, text)
    made.clear(), alive.clear()
    (found,) = capture_attention(model, text, layers=[2], overview=False)
    assert len(made) == 1
    assert list(found.layers) == [2]
    assert found.overview.shape[0] == 0
    assert_close(found.layers[2], whole.layers[2])
    made.clear(), alive.clear()
    (found,) = capture_attention(model, text, layers=[-1])
    assert len(made) == 5
    assert alive == [0, 0, 0, 0, 0]
    assert list(found.layers) == [4]
    assert_close(found.overview, whole.overview)


def test_what_is_kept_holds_nothing_else() -> None:
    """Not a view of something larger, and no graph."""
    (found,) = capture_attention(gpt().float(), reading(words(T).tolist()))
    for weights in found.layers.values():
        assert weights.untyped_storage().nbytes() == weights.nbytes
        assert not weights.requires_grad


def test_all_heads_at_a_glance() -> None:
    model = gpt(position="rotary")
    (found,) = capture_attention(model, reading(words(150).tolist()))
    assert found.overview.shape == (2, 4, 64, 64)
    weights = found.layers[1][2]
    for row, column in ((0, 0), (17, 3), (63, 62)):
        tall, wide = (slice(i * 150 // 64, -(-(i + 1) * 150 // 64)) for i in (row, column))
        assert found.overview[1, 2, row, column] == weights[tall, wide].max()


def test_entropy_and_distance_of_known_patterns() -> None:
    even, before = torch.full((8, 8), 1 / 8), torch.eye(8).roll(-1, 1)
    before[0] = torch.eye(8)[1]
    weights = torch.stack([even, torch.eye(8), before])
    assert_close(capturing.entropy(weights), torch.tensor([3.0, 0.0, 0.0]))
    apart = torch.tensor([[abs(q - k) for k in range(8)] for q in range(8)]).float().mean()
    assert_close(capturing.distance(weights, "self"), torch.tensor([float(apart), 0.0, 1.0]))
    assert capturing.distance(weights, "cross").isnan().all()


def test_without_its_mask_a_gpt_sees_later_words() -> None:
    model, text = gpt(), reading(words(T).tolist())
    (masked,) = capture_attention(model, text)
    with unmasked(model):
        (free,) = capture_attention(model, text)
        assert not free.causal
    lower = free.layers[0].tril()
    assert_close(
        lower / lower.sum(-1, keepdim=True), masked.layers[0]
    )  # the same scores, fewer words
    assert capture_attention(model, text)[0].causal
    assert type(model).mask is GPT.mask
    with pytest.raises(ValueError, match=r"mask: only a GPT's"), unmasked(bert()):
        pass


def test_dropout_is_off_and_the_mode_comes_back() -> None:
    model, text = gpt(attention_dropout=0.5, dropout=0.5), reading(words(T).tolist())
    quiet = capture_attention(model, text)[0].layers[1]
    model.train()
    assert_close(capture_attention(model, text)[0].layers[1], quiet)
    assert model.training
    assert not any(part.listeners for part in model.modules() if hasattr(part, "listeners"))


def test_the_last_layer_of_each_stack() -> None:
    model = transformer(depth=3, decoder_depth=2)
    found = capture_attention(model, reading(words(T).tolist(), words(S).tolist()), layers=[-1])
    assert [list(each.layers) for each in found] == [[2], [1], [1]]


def test_twice_without_its_mask_is_once() -> None:
    model, text = gpt(), reading(words(T).tolist())
    with unmasked(model):
        with unmasked(model):
            pass
        assert not capture_attention(model, text)[0].causal
    assert capture_attention(model, text)[0].causal


def test_layers_that_are_not_there() -> None:
    with pytest.raises(ValueError, match=r"layer: expected 0 to 1, or -1 for the last, not 2"):
        capture_attention(gpt(), reading([1, 2]), layers=[2])
