"""Averages of weights against the plain loops that define them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from qkv.training.average import ExponentialAverage, mean_of
from qkv.training.resilience.checkpoint_writer import Checkpoints


def test_the_exponential_moving_average_equals_a_plain_loop() -> None:
    model = nn.Linear(3, 2).double()
    average = ExponentialAverage(model, decay=0.9)
    expected = {name: weight.detach().numpy().copy() for name, weight in model.named_parameters()}
    for step in range(200):
        with torch.no_grad():
            for weight in model.parameters():
                weight += torch.randn_like(weight)
        average.update(model, step)
        decay = min(0.9, (1 + step) / (10 + step))
        for name, weight in model.named_parameters():
            expected[name] = decay * expected[name] + (1 - decay) * weight.detach().numpy()
        for name, mean in average.weights.items():
            np.testing.assert_allclose(mean.numpy(), expected[name], rtol=1e-12, atol=1e-12)


def test_the_average_is_in_place_only_inside_the_context() -> None:
    model = nn.Linear(3, 2)
    average = ExponentialAverage(model, decay=0.9)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    average.weights = {name: torch.full_like(weight, 7.0) for name, weight in before.items()}

    def use() -> None:
        with average.in_place(model):
            assert all((weight == 7).all() for weight in model.parameters())
            raise RuntimeError("halfway")

    with pytest.raises(RuntimeError, match="halfway"):
        use()
    assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())
    assert all((weight == 7).all() for weight in average.weights.values())


def test_the_mean_of_the_last_checkpoints(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    saved = [torch.randn(50) * 10**step for step in range(4)]
    for step, weight in enumerate(saved):
        checkpoints.save(
            step, {"model/a": weight, "model/b.model/": weight[:3], "optimizer/a": weight}, {}
        )
    mean = mean_of(checkpoints.last(3), "model/")
    assert mean.keys() == {"a", "b.model/"}
    arrays = [weight.numpy().astype(np.float64) for weight in saved[1:]]
    expected = np.mean(arrays, axis=0).astype(np.float32)
    np.testing.assert_array_equal(mean["a"].numpy(), expected)
    np.testing.assert_array_equal(mean["b.model/"].numpy(), expected[:3])
