"""Gradient times input: of a linear model each token's exact share; of others, what finite
differences say.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from qkv.insight.inspect import attribution as module
from qkv.insight.inspect.attribution import attribution, contributions
from qkv.insight.inspect.model_input import Reading, Side
from qkv.models import HeadConfig, TaskModel, TaskModelConfig
from qkv.models.registry import backbone_of
from qkv.nn.hooks import add_hook, capture
from support.families import bert, gpt, rnn, transformer, words


def side(ids: Tensor) -> Side:
    return Side(tuple(ids.tolist()), tuple(map(str, ids.tolist())), ())


def reading(T: int = 5, S: int | None = None) -> Reading:
    return Reading(side(words(T)), None if S is None else side(words(S)))


class Linear(nn.Module):
    """In place of a stack: every place is a weighted sum of all, so that the logits are linear in
    the vectors.
    """

    def __init__(self, T: int) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.randn(T, T, dtype=torch.float64))

    def forward(self, x: Tensor, positions: Tensor, **how: Any) -> Tensor:
        return self.mix @ x


def test_of_a_linear_model_it_is_each_tokens_share_of_the_logit() -> None:
    model, read = gpt(position="none"), reading()
    model.stack = Linear(5)  # type: ignore[assignment]
    found = contributions(model, read)
    ids = torch.tensor(read.text.ids)
    logits = model(ids.unsqueeze(0))[0]  # (T, V)
    said = logits.argmax(-1)
    weight = model.embedding.token.weight
    share = model.stack.mix * (
        weight[said] @ weight[ids].T
    )  # (T, S): of the token that is said at t, by token s
    assert_close(found.text, share.detach().float())
    assert_close(
        found.text.sum(1), logits.max(-1).values.detach().float()
    )  # and together they are the logit
    assert_close(
        attribution(model, read), (share.abs() / share.abs().sum(1, keepdim=True)).detach().float()
    )


def by_differences(model: Any, read: Reading, place: int, vector: int) -> list[float]:
    """How the logit changes when one token's vector grows by a little of itself."""
    backbone, found = backbone_of(model), []
    given = module.ids_of(model, read)

    def logit(which: int | None, size: float) -> tuple[Tensor, int]:
        calls = 0

        def grow(value: Tensor, *_: Any) -> Tensor:
            nonlocal calls
            calls += 1
            if which is None or calls - 1 != vector:
                return value
            value = value.clone()
            value[:, which] *= 1 + size
            return value

        with torch.no_grad(), add_hook(backbone, "*embedding.output", grow):
            out = backbone.forced(**given) if read.source is not None else backbone.hidden(**given)
            scores = backbone.logits(out)[0, place]
        return scores, calls

    top = int(logit(None, 0)[0].argmax())
    sides = [read.source, read.text] if read.source is not None else [read.text]
    for token in range(len(sides[vector].ids)):  # type: ignore[union-attr]
        up, down = (float(logit(token, size)[0][top]) for size in (1e-5, -1e-5))
        found.append((up - down) / 2e-5)
    return found


@pytest.mark.parametrize("family", ["gpt", "llama", "bert"])
def test_as_finite_differences_say(family: str) -> None:
    made = {
        "gpt": gpt,
        "bert": bert,
        "llama": lambda: gpt(position="rotary", norm="rms", activation="swiglu"),
    }[family]
    model, read = made(), reading()
    found = contributions(model, read)
    assert found.source is None
    for place in range(5):
        assert found.text[place].tolist() == pytest.approx(
            by_differences(model, read, place, 0), rel=1e-4, abs=1e-5
        )


@pytest.mark.parametrize("kind", [{}, {"tied": "two", "source_vocabulary": 13}])
def test_of_a_translator_both_parts(kind: dict[str, Any]) -> None:
    model, read = transformer(**kind), reading(4, 6)
    found = contributions(model, read)
    assert found.source is not None
    assert (found.text.shape, found.source.shape) == ((4, 4), (4, 6))
    for place in (0, 3):
        for vector, part in enumerate((found.source, found.text)):
            expected = by_differences(model, read, place, vector)
            assert part[place].tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert_close(
        attribution(model, read), found.source.abs() / found.source.abs().sum(1, keepdim=True)
    )
    assert_close(attribution(model, read, of="text").sum(1), torch.ones(4))


@pytest.mark.parametrize("attention", ["additive", "none"])
def test_of_an_rnn_too(attention: str) -> None:
    model, read = rnn(attention=attention), reading(3, 4)
    found = contributions(model, read)
    assert found.source is not None
    assert (found.text.shape, found.source.shape) == ((3, 3), (3, 4))
    weight = model.source_embedding.weight
    source, target = (
        torch.tensor([part.ids]) for part in (read.source, read.text) if part is not None
    )
    top = int(model(source, target)[0, 2].argmax())
    for token, id in enumerate(source[0].tolist()):
        alone = (
            (source[0] == id).nonzero()[:, 0].tolist()
        )  # the vector of a word that comes twice is one
        with torch.no_grad():
            each = []
            for size in (1e-5, -1e-5):
                kept = weight[id].clone()
                weight[id] *= 1 + size
                each.append(float(model(source, target)[0, 2, top]))
                weight[id] = kept
        expected = (each[0] - each[1]) / 2e-5
        assert float(found.source[2, alone].sum()) == pytest.approx(expected, rel=1e-4, abs=1e-5), (
            token
        )


def test_no_word_hangs_on_a_later_one() -> None:
    found = contributions(gpt(), reading()).text
    assert not found.triu(1).any()
    assert (found.tril() != 0).sum() == 15
    assert contributions(bert(), reading()).text.triu(1).any()


def test_some_places_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    model, read = bert(), reading()
    whole = attribution(model, read)
    monkeypatch.setattr(module, "TOKENS", 10)  # two places at a time
    assert_close(attribution(model, read), whole)
    assert_close(attribution(model, read, [3, 1]), whole[[3, 1]])
    assert all(parameter.grad is None for parameter in model.parameters())
    with capture(model, "embedding.output") as seen:  # nobody listens any more
        model(words(1, 3))
    assert seen["embedding.output"].requires_grad


@pytest.mark.parametrize(
    ("task", "pooling"), [("classify", "mean"), ("classify", "first"), ("tag", "first")]
)
def test_a_fine_tuned_model_explains_its_answer(task: Any, pooling: Any) -> None:
    backbone, read = bert(pooler=False, next_sentence=False, mlm_head=False), reading()
    head = HeadConfig(
        task=task, labels=("a", "b", "c"), pooling=pooling, delimiter=1, extract=1, padding=0
    )
    model = TaskModel(TaskModelConfig(backbone=backbone.config, head=head)).double().eval()
    model.backbone.load_state_dict(backbone.state_dict())
    nn.init.normal_(model.head.weight)
    found = contributions(model, read).text
    assert found.shape == (5, 5)
    ids = torch.tensor([read.text.ids])
    places = torch.arange(5).unsqueeze(0) if task == "tag" else torch.zeros(1, 1, dtype=torch.int64)

    def score(token: int, size: float) -> Tensor:
        grow = torch.ones(1, 5, 1, dtype=torch.float64)
        grow[0, token] += size
        with (
            torch.no_grad(),
            add_hook(model, "backbone.embedding.output", lambda value, name: value * grow),
        ):
            return model(ids, places=places)[0]  # (M, C)

    top = score(0, 0).argmax(-1)
    for token in range(5):
        slope = (score(token, 1e-5) - score(token, -1e-5)) / 2e-5  # (M, C)
        expected = slope.gather(1, top.unsqueeze(1))[:, 0].expand(5).float()
        assert_close(found[:, token], expected, rtol=1e-4, atol=1e-5)


def test_what_cannot_be_explained_is_refused() -> None:
    with pytest.raises(ValueError, match="attribution: this BERT is an encoder only"):
        attribution(bert(mlm_head=False), reading())
    with pytest.raises(ValueError, match="places: expected 0 to 4, not 5"):
        attribution(gpt(), reading(), [5])
    with pytest.raises(ValueError, match="of: there is no source"):
        attribution(gpt(), reading(), of="source")
