"""The contributions of tokens to an answer equal the slope of its score in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from qkv.data.batches.framing import Frame
from qkv.generation.classify import classify, example_of, score_examples
from qkv.insight.attribute import answer_attribution
from qkv.insight.attribute.answer_attribution import answer_contributions
from qkv.models import TaskModel
from support.small_task_models import ASKED, Small, alone, small_tuned

STEP = 1e-5


class Scaled:
    """A hook on the embedding that multiplies the vectors of one id."""

    def __init__(self, id: int, factor: float) -> None:
        self.id = id
        self.factor = factor

    def __call__(self, module: Any, inputs: Any, value: torch.Tensor) -> torch.Tensor:
        chosen = (inputs[0] == self.id).unsqueeze(-1)
        return torch.where(chosen, value * self.factor, value)


def slope(small: Small, text: Any, id: int) -> torch.Tensor:
    """The derivative of the scores by a factor of the embeddings of one id: (N,)."""
    found = []
    for sign in (1, -1):
        factor = 1 + sign * STEP
        hook = Scaled(id, factor)
        handle = small.model.backbone.embedding.register_forward_hook(hook)
        found.append(scores_of(small, text))
        handle.remove()

    return (found[0] - found[1]) / (2 * STEP)


def scores_of(small: Small, text: Any) -> torch.Tensor:
    """The score of the answer that the unchanged model gives: (N,)."""
    model = small.model
    frame = Frame(**model.config.frame)
    framed = frame.encode(small.tokenizer, [example_of(frame.task, text, "text")])
    with torch.no_grad():
        scores = score_examples(model, frame, framed, [0])[0]
    if model.config.head.numbers:
        scores = (scores - model.config.head.offset) / model.config.head.scale
    return scores.max(-1).values


@pytest.mark.parametrize("task", ["classify", "pair", "similarity", "choice", "tag", "regress"])
@pytest.mark.parametrize("family", ["bert", "gpt"])
def test_contributions_equal_slopes(task: str, family: str) -> None:
    small = small_tuned(task, family)
    double = Small(TaskModel(small.model.config).double().eval(), small.tokenizer)
    double.model.load_state_dict(small.model.state_dict())
    asked = ASKED[task][0]
    text: Any = asked[0] if len(asked) == 1 else list(asked)
    result = answer_contributions(double.model, small.tokenizer, text)
    assert result.shares.sum(-1).tolist() == pytest.approx([1.0] * len(result.shares))
    for id in set(result.ids):
        positions = [position for position, other in enumerate(result.ids) if other == id]
        expected = slope(double, text, id)[: len(result.contributions)]
        found = result.contributions[:, positions].sum(-1)
        assert found.tolist() == pytest.approx(expected.tolist(), abs=2e-4), id


def test_the_chosen_ending_is_explained() -> None:
    small = small_tuned("choice", "bert")
    texts = list(ASKED["choice"][0])
    answer = classify(small.model, small.tokenizer, [texts])[0]
    ids = answer_contributions(small.model, small.tokenizer, texts).ids
    ending = small.tokenizer.encode(texts[1 + answer.choice])
    assert list(ids[-1 - len(ending) : -1]) == ending
    assert answer.choice == int(alone(small, tuple(texts)).argmax())


def test_too_many_words() -> None:
    small = small_tuned("tag", "bert", context=256)
    with pytest.raises(ValueError, match=r"explain: expected 64 words or fewer, .* not 65 words"):
        answer_contributions(small.model, small.tokenizer, ["mice"] * 65)


def test_choices_have_a_bound_on_their_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    small = small_tuned("choice", "bert")
    monkeypatch.setattr(answer_attribution, "MAX_TOKENS", 6)
    with pytest.raises(ValueError, match="explain: expected 6 tokens or fewer in all choices"):
        answer_contributions(small.model, small.tokenizer, list(ASKED["choice"][0]))
