"""The history of heads is their patterns at each checkpoint, and the loss on repeated tokens."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from qkv.insight.heads.head_history import HeadHistory, head_history, repeated_loss
from qkv.insight.heads.head_patterns import head_patterns, repeated_tokens
from qkv.models import GPT, GPTConfig
from qkv.text import Tokenizer, train

TEXTS = ["the cat sat on the mat", "the mat"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train("words", TEXTS, 20)


def model_of(seed: int, tokenizer: Tokenizer) -> GPT:
    torch.manual_seed(seed)
    size = {"context": 12, "width": 8, "heads": 2, "depth": 2}
    return GPT(GPTConfig(vocabulary=tokenizer.vocabulary, **size)).eval()


def test_every_checkpoint_has_its_patterns(tokenizer: Tokenizer) -> None:
    models = {step: model_of(step, tokenizer) for step in (10, 20, 30)}
    done: list[int] = []
    (history,) = head_history(models.items(), tokenizer, TEXTS, done.append)
    assert history.steps == [10, 20, 30]
    assert done == [1, 2, 3]
    for number, model in enumerate(models.values()):
        (expected,) = head_patterns(model, tokenizer, TEXTS)
        for pattern, scores in expected.scores.items():
            assert_close(history.scores[pattern][number], scores)
        assert history.repeated is not None
        assert_close(history.repeated[number], repeated_loss(model, tokenizer))


def test_the_loss_on_repeated_tokens(tokenizer: Tokenizer) -> None:
    model = model_of(0, tokenizer)
    ids = repeated_tokens(model, tokenizer, 0)[0]["self"]
    n = ids.shape[1] // 2
    with torch.no_grad():
        probability = model(ids).softmax(-1)
    sums = [0.0, 0.0]
    for row in range(len(ids)):
        assert ids[row, :n].tolist() == ids[row, n:].tolist()
        for position in range(n - 1):
            for half in (0, 1):
                at = half * n + position
                sums[half] -= math.log(probability[row, at, ids[row, at + 1]])
    expected = torch.tensor(sums) / (len(ids) * (n - 1))
    assert_close(repeated_loss(model, tokenizer), expected, rtol=1e-5, atol=1e-5)


def test_where_a_head_grows_most() -> None:
    scores = torch.tensor([0.1, 0.2, 0.7, 0.8]).view(4, 1, 1) * torch.tensor([[1.0, 0.5]])
    history = HeadHistory("self", [0, 5, 10, 20], {"induction": scores}, {}, None)
    assert history.strongest("induction", 1) == [(0, 0)]
    assert history.steepest("induction") == (5, 10)
    falling = history._replace(scores={"induction": scores.flip(0)})
    assert falling.steepest("induction") is None


def test_without_checkpoints(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match=r"checkpoints: expected one or more"):
        head_history([], tokenizer, TEXTS)
