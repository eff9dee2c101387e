"""A linear probe learns linear targets, a hidden layer learns XOR, and probes are independent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from qkv.insight.probing.activations import Activations, ProbeData
from qkv.insight.probing.linear_probe import (
    UNKNOWN,
    BestWeights,
    FittedProbe,
    Probes,
    ProbeTraining,
    fit,
    moments,
    pools,
)

E = 6


class GivenActivations(Activations):
    """Activations from a tensor (L, n, E), two vectors for each text."""

    together = True

    def __init__(self, vectors: Tensor, targets: np.ndarray, block: int = 64) -> None:
        self.vectors = vectors
        positions = [np.array([0, 1])] * (len(targets) // 2)
        self.texts = ProbeData([np.array([1, 2])] * len(positions), positions, targets)
        self.layers = tuple(map(str, range(len(vectors))))
        self.blocks = self.texts.blocks(block)

    def read(self, block: int, layers: Sequence[str]) -> Tensor:
        span = self.span(block)
        chosen = [self.layers.index(layer) for layer in layers]
        return self.vectors[chosen, span.start : span.stop]


def fit_halves(x: Tensor, targets: np.ndarray, classes: int, **how: Any) -> FittedProbe:
    """Train on the first half, validate on the second."""
    half = len(targets) // 2
    parts = [
        GivenActivations(x[:, :half], targets[:half]),
        GivenActivations(x[:, half:], targets[half:]),
    ]
    return fit(parts[0], parts[1], [(targets[:half], targets[half:])], classes, **how)


def accuracies(fitted: FittedProbe, x: Tensor, targets: np.ndarray) -> list[float]:
    """The accuracy of each layer's first probe."""
    return [
        float((predicted == torch.from_numpy(targets)).float().mean())
        for predicted in fitted.predict(x)[:, 0, 0]
    ]


def test_a_linear_map_is_found_by_a_linear_probe() -> None:
    every, linear = 10 * torch.randn(4000, E), torch.randn(E, 4)
    first, second = (every @ linear).topk(2).values.unbind(1)
    clear = every[(first - second).argsort(descending=True)[:1500]][
        torch.randperm(1500)
    ]  # from the borders
    x = torch.stack([3 + clear, torch.randn(1500, E)])  # unrelated to the targets
    targets = (clear @ linear).argmax(-1).numpy()
    fitted = fit_halves(
        x, targets, 4, learning=ProbeTraining(epochs=12, rate=0.05, weight_decay=0.0)
    )
    informative, random = accuracies(fitted, x, targets)
    assert informative == 1
    assert random < 0.7


def test_numbers_are_those_of_least_squares() -> None:
    x = torch.randn(1, 2000, E) * torch.tensor([1.0, 10, 100, 1, 1, 1]) + 5
    targets = (x[0] @ torch.tensor([3.0, 2, 1, 0, 0, 5]) + 7 + torch.randn(2000)).double().numpy()
    fitted = fit_halves(
        x, targets, 0, learning=ProbeTraining(epochs=25, rate=0.05, weight_decay=0.0, patience=60)
    )
    half = np.column_stack([x[0, :1000].double().numpy(), np.ones(1000)])
    best = half @ np.linalg.lstsq(half, targets[:1000], rcond=None)[0]
    predicted = fitted.predict(x[:, :1000])[0, 0, 0].numpy()
    assert np.abs(predicted - best).max() < 0.01 * targets.std()


def test_xor_takes_a_hidden_layer() -> None:
    x = torch.randn(1, 2000, E)
    targets = ((x[0, :, 0] > 0) ^ (x[0, :, 1] > 0)).long().numpy()
    hidden = fit_halves(x, targets, 2, learning=ProbeTraining(hidden=16, epochs=12, rate=0.02))
    linear = fit_halves(x, targets, 2, learning=ProbeTraining(epochs=12, rate=0.02))
    assert accuracies(hidden, x, targets)[0] > 0.95
    assert accuracies(linear, x, targets)[0] < 0.6


@pytest.mark.parametrize("hidden", [0, 8])
def test_probes_trained_together_equal_those_trained_alone(hidden: int) -> None:
    """Layers and seeds are independent, also with early stopping."""
    x, learning = (
        torch.randn(3, 800, E),
        ProbeTraining(hidden=hidden, epochs=6, patience=2, rate=0.1),
    )
    one, other = ((x[0, :, dimension] > 0).long().numpy() for dimension in (0, 1))
    training, validation = (
        GivenActivations(x[:, :400], one[:400]),
        GivenActivations(x[:, 400:], one[400:]),
    )
    sets = [(targets[:400], targets[400:]) for targets in (one, other)]
    together = fit(training, validation, sets, 2, seeds=(0, 1), learning=learning)
    alone = fit(training, validation, sets, 2, layers=["2"], seeds=(1,), learning=learning)
    outputs = together.probes(together.standardise(x).unsqueeze(1))[2, 1]
    assert_close(
        outputs, alone.probes(alone.standardise(x[2:]).unsqueeze(1))[0, 0], rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("hidden", [0, 8])
def test_the_initial_weights_of_a_seed_do_not_depend_on_other_probes(hidden: int) -> None:
    one, two = (Probes(1, (3, 4), targets, E, 2, hidden) for targets in (1, 2))
    x = torch.randn(1, 2, 5, E)
    assert_close(one(x)[:, :, 0], two(x)[:, :, 0])
    assert not torch.allclose(two(x)[:, :, 0], two(x)[:, :, 1])


def test_each_probe_keeps_its_best_weights() -> None:
    probes = Probes(1, (0, 1), 1, E, 2)
    best = BestWeights(probes, patience=2)
    losses = [
        (3.0, 3.0),
        (2.0, 4.0),
        (2.5, 5.0),
        (1.0, 0.0),
        (0.5, 0.0),
    ]  # the second probe has stopped before its 0
    still_training = []
    for moment, (first, second) in enumerate(losses):
        with torch.no_grad():
            probes.first.fill_(moment)
        still_training.append(best.update(torch.tensor([[[first], [second]]])))
    best.restore()
    assert probes.first[0, :, 0, 0].tolist() == [4, 0]
    assert still_training == [True] * 5
    worse = torch.tensor([[[9.0], [0.0]]])
    assert [best.update(worse) for _ in range(2)] == [
        True,
        False,
    ]  # the first stops after two epochs


def test_an_unknown_class_is_left_out_of_validation() -> None:
    x = torch.randn(1, 400, E)
    targets = (x[0, :, 0] > 0).long().numpy()
    targets[300:310] = UNKNOWN
    fitted = fit_halves(x, targets, 2, learning=ProbeTraining(epochs=10, rate=0.02))
    assert accuracies(fitted, x[:, :200], targets[:200])[0] > 0.9


def test_vectors_are_standardised() -> None:
    x = 1000 + 0.01 * torch.randn(2, 500, E, dtype=torch.float64)
    x[1, :, 0] = 7  # constant
    source = GivenActivations(x.float(), np.zeros(500, dtype=np.int64))
    mean, deviation = moments(source, source.layers)
    exact = x.float().double()
    assert_close(mean[:, 0], exact.mean(1).float())
    assert_close(deviation[0, 0], exact[0].std(0, correction=0).float(), rtol=1e-2, atol=0)
    assert deviation[1, 0, 0] == 1


def test_every_epoch_visits_every_block_once() -> None:
    source = GivenActivations(
        torch.zeros(1, 70_000, 1), np.zeros(70_000, dtype=np.int64), block=4096
    )
    visits = [[block for pool in pools(source, epoch, 1) for block in pool] for epoch in range(2)]
    assert sorted(visits[0]) == sorted(visits[1]) == list(range(len(source.blocks)))
    assert visits[0] != visits[1]
    assert max(len(pool) for pool in pools(source, 0, 1)) * 4096 <= 16384


@pytest.mark.parametrize(("field", "value"), [("hidden", -1), ("batch", 0), ("epochs", 0)])
def test_invalid_settings_are_refused(field: str, value: int) -> None:
    with pytest.raises(ValueError, match=rf"{field}: .*not {value}"):
        ProbeTraining(**{field: value})  # type: ignore[arg-type]
