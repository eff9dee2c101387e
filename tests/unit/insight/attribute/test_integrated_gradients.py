"""Integrated gradients sum to the change of the score, and equal a plain Riemann sum."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from qkv.insight.attribute.integrated_gradients import integrated_gradients
from qkv.insight.inspect.model_input import logits
from qkv.models import HeadConfig, TaskModel, TaskModelConfig
from support.families import bert, gpt, rnn, rnn_lm, transformer, words
from support.readings import reading
from support.shape_checks import unchecked


@pytest.mark.parametrize(
    ("make", "baseline"),
    [(gpt, "mean"), (gpt, 3), (bert, "zeros"), (transformer, "mean"), (rnn, "zeros"), (rnn_lm, 2)],
)
def test_contributions_sum_to_the_change_of_the_score(make: Any, baseline: Any) -> None:
    model = make()
    source = words(4).tolist() if make in (transformer, rnn) else None
    read = reading(words(5).tolist(), source)
    with unchecked():
        result = integrated_gradients(
            model, read, 2, 4, 6, baseline=baseline, steps=800, tolerance=5e-4
        )
    row = logits(model, read)[0, 2].detach()
    assert result.score == pytest.approx(float(row[4] - row[6]))
    assert abs(result.score - result.baseline) > 0.01
    assert abs(result.gap) < 1e-3 * max(1, abs(result.score - result.baseline))
    assert (result.source is None) == (source is None)


def test_it_equals_a_plain_riemann_sum() -> None:
    model = gpt(position="learned")
    ids = torch.tensor([[3, 1, 4, 1]])
    weight = model.embedding.token.weight.detach()
    start = weight.mean(0).expand(4, -1)
    end = weight[ids[0]]
    n = 2000
    total = torch.zeros(4, 16, dtype=torch.float64)

    def score(points: Tensor) -> Tensor:
        x = points + model.embedding.position(torch.arange(4).unsqueeze(0))
        x = model.stack(x, torch.arange(4).unsqueeze(0), mask=model.mask())
        return model.logits(x)[:, -1, 5]

    with unchecked():
        for first in range(0, n, 500):
            share = ((torch.arange(first, first + 500).double() + 0.5) / n).view(-1, 1, 1)
            points = (start + share * (end - start)).requires_grad_()
            (gradient,) = torch.autograd.grad(score(points).sum(), points)
            total += gradient.sum(0) / n
    expected = (total * (end - start)).sum(-1).float()
    result = integrated_gradients(model, reading([3, 1, 4, 1]), -1, 5, steps=2000, tolerance=1e-5)
    assert_close(result.text, expected, rtol=1e-4, atol=1e-4)
    assert result.baseline == pytest.approx(float(score(start.unsqueeze(0)).detach()))


def test_the_answer_of_a_task_model() -> None:
    head = HeadConfig(task="classify", labels=("a", "b"), delimiter=1, extract=1, padding=0)
    model = TaskModel(TaskModelConfig(backbone=gpt().config, head=head)).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    result = integrated_gradients(model, reading([2, 5, 3, 1]), 0, steps=600, tolerance=1e-4)
    assert result.target in (0, 1)
    assert result.position == 3  # a GPT's head reads the last token
    assert abs(result.gap) < 1e-3


def test_numbers_out_of_range_are_refused() -> None:
    read = reading([1, 2, 3])
    with pytest.raises(ValueError, match=r"steps: expected 2 or more"):
        integrated_gradients(gpt(), read, steps=1)
    with pytest.raises(ValueError, match=r"position: expected 0 to 2"):
        integrated_gradients(gpt(), read, 3)
    with pytest.raises(ValueError, match=r"target: expected 0 to 12, not 13"):
        integrated_gradients(gpt(), read, 0, 13)
    with pytest.raises(ValueError, match=r"baseline: expected mean, zeros or a token id from 0"):
        integrated_gradients(gpt(), read, baseline=99)
    with pytest.raises(ValueError, match=r"encoder only"):
        integrated_gradients(bert(mlm_head=False), read)
