"""Gradient x input is exact for a linear model, and equals finite differences for others."""

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
from qkv.models.model import backbone_of
from qkv.nn.hooks import add_hook, capture
from support.families import bert, gpt, rnn, transformer, words


def side(ids: Tensor) -> Side:
    return Side(tuple(ids.tolist()), tuple(map(str, ids.tolist())), ())


def reading(T: int = 5, S: int | None = None) -> Reading:
    return Reading(side(words(T)), None if S is None else side(words(S)))


class Linear(nn.Module):
    """A linear stack: every position is a weighted sum of all embeddings."""

    def __init__(self, T: int) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.randn(T, T, dtype=torch.float64))

    def forward(self, x: Tensor, positions: Tensor, **options: Any) -> Tensor:
        return self.mix @ x


def test_in_a_linear_model_it_is_the_share_of_each_token_in_the_logit() -> None:
    model, read = gpt(position="none"), reading()
    model.stack = Linear(5)  # type: ignore[assignment]
    result = contributions(model, read)
    ids = torch.tensor(read.text.ids)
    logits = model(ids.unsqueeze(0))[0]  # (T, V)
    predicted = logits.argmax(-1)
    weight = model.embedding.token.weight
    share = model.stack.mix * (weight[predicted] @ weight[ids].T)  # (T, S)
    assert_close(result.text, share.detach().float())
    assert_close(result.text.sum(1), logits.max(-1).values.detach().float())
    assert_close(
        attribution(model, read), (share.abs() / share.abs().sum(1, keepdim=True)).detach().float()
    )


def by_differences(model: Any, read: Reading, position: int, side: int) -> list[float]:
    """The change of the logit when one token's embedding is scaled a little."""
    backbone = backbone_of(model)
    arguments = module.ids_of(model, read)

    def logit(token: int | None, size: float) -> Tensor:
        calls = 0

        def grow(value: Tensor, *_: Any) -> Tensor:
            nonlocal calls
            calls += 1
            if token is None or calls - 1 != side:
                return value
            value = value.clone()
            value[:, token] *= 1 + size
            return value

        with torch.no_grad(), add_hook(backbone, "*embedding.output", grow):
            hidden = backbone_of(model).hidden(**arguments)
            return backbone.logits(hidden)[0, position]

    top = int(logit(None, 0).argmax())
    sides = [read.text] if read.source is None else [read.source, read.text]
    slopes = []
    for token in range(len(sides[side].ids)):
        up, down = (float(logit(token, size)[top]) for size in (1e-5, -1e-5))
        slopes.append((up - down) / 2e-5)
    return slopes


@pytest.mark.parametrize("family", ["gpt", "llama", "bert"])
def test_it_equals_finite_differences(family: str) -> None:
    families = {
        "gpt": gpt,
        "bert": bert,
        "llama": lambda: gpt(position="rotary", norm="rms", activation="swiglu"),
    }
    model, read = families[family](), reading()
    result = contributions(model, read)
    assert result.source is None
    for position in range(5):
        expected = by_differences(model, read, position, 0)
        assert result.text[position].tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("kind", [{}, {"tied": "two", "source_vocabulary": 13}])
def test_both_sides_of_a_translator(kind: dict[str, Any]) -> None:
    model, read = transformer(**kind), reading(4, 6)
    result = contributions(model, read)
    assert result.source is not None
    assert (result.text.shape, result.source.shape) == ((4, 4), (4, 6))
    for position in (0, 3):
        for side, part in enumerate((result.source, result.text)):
            expected = by_differences(model, read, position, side)
            assert part[position].tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert_close(
        attribution(model, read), result.source.abs() / result.source.abs().sum(1, keepdim=True)
    )
    assert_close(attribution(model, read, of="text").sum(1), torch.ones(4))


@pytest.mark.parametrize("attention", ["additive", "none"])
def test_both_sides_of_an_rnn(attention: str) -> None:
    model, read = rnn(attention=attention), reading(3, 4)
    result = contributions(model, read)
    assert result.source is not None
    assert (result.text.shape, result.source.shape) == ((3, 3), (3, 4))
    weight = model.source_embedding.weight
    assert read.source is not None
    source = torch.tensor([read.source.ids])
    target = torch.tensor([read.text.ids])
    top = int(model(source, target)[0, 2].argmax())
    for token, id in enumerate(source[0].tolist()):
        # A token that occurs twice has one embedding.
        positions = (source[0] == id).nonzero()[:, 0].tolist()
        with torch.no_grad():
            logits = []
            for size in (1e-5, -1e-5):
                before = weight[id].clone()
                weight[id] *= 1 + size
                logits.append(float(model(source, target)[0, 2, top]))
                weight[id] = before
        slope = float(result.source[2, positions].sum())
        expected = (logits[0] - logits[1]) / 2e-5
        assert slope == pytest.approx(expected, rel=1e-4, abs=1e-5), token


def test_later_tokens_of_a_causal_model_contribute_nothing() -> None:
    result = contributions(gpt(), reading()).text
    assert not result.triu(1).any()
    assert (result.tril() != 0).sum() == 15
    assert contributions(bert(), reading()).text.triu(1).any()


def test_some_positions_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    model, read = bert(), reading()
    whole = attribution(model, read)
    monkeypatch.setattr(module, "TOKENS", 10)  # two positions at a time
    assert_close(attribution(model, read), whole)
    assert_close(attribution(model, read, [3, 1]), whole[[3, 1]])
    assert all(parameter.grad is None for parameter in model.parameters())
    with capture(model, "embedding.output") as captured:  # the hooks are removed
        model(words(1, 3))
    assert captured["embedding.output"].requires_grad


@pytest.mark.parametrize(
    ("task", "pooling"), [("classify", "mean"), ("classify", "first"), ("tag", "first")]
)
def test_the_prediction_of_a_task_model_is_explained(task: Any, pooling: Any) -> None:
    backbone, read = bert(pooler=False, next_sentence=False, mlm_head=False), reading()
    head = HeadConfig(
        task=task, labels=("a", "b", "c"), pooling=pooling, delimiter=1, extract=1, padding=0
    )
    model = TaskModel(TaskModelConfig(backbone=backbone.config, head=head)).double().eval()
    model.backbone.load_state_dict(backbone.state_dict())
    nn.init.normal_(model.head.weight)
    result = contributions(model, read).text
    assert result.shape == (5, 5)
    ids = torch.tensor([read.text.ids])
    positions = torch.zeros(1, 1, dtype=torch.int64)
    if task == "tag":
        positions = torch.arange(5).unsqueeze(0)

    def score(token: int, size: float) -> Tensor:
        grow = torch.ones(1, 5, 1, dtype=torch.float64)
        grow[0, token] += size
        with (
            torch.no_grad(),
            add_hook(model, "backbone.embedding.output", lambda value, name: value * grow),
        ):
            return model(ids, target_positions=positions)[0]  # (M, C)

    top = score(0, 0).argmax(-1)
    for token in range(5):
        slope = (score(token, 1e-5) - score(token, -1e-5)) / 2e-5  # (M, C)
        expected = slope.gather(1, top.unsqueeze(1))[:, 0].expand(5).float()
        assert_close(result[:, token], expected, rtol=1e-4, atol=1e-5)


def test_invalid_requests_are_refused() -> None:
    with pytest.raises(ValueError, match=r"attribution: .*encoder only"):
        attribution(bert(mlm_head=False), reading())
    with pytest.raises(ValueError, match=r"positions: .*not 5"):
        attribution(gpt(), reading(), [5])
    with pytest.raises(ValueError, match=r"of: .*no source"):
        attribution(gpt(), reading(), of="source")
