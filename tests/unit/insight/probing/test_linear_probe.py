"""A linear probe finds what is linear, a hidden layer finds the rest, and nobody learns from a
neighbour.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from qkv.insight.probing.activations import ProbeData
from qkv.insight.probing.linear_probe import (
    UNKNOWN,
    Best,
    Fitted,
    Learning,
    Probes,
    fit,
    moments,
    pools,
)

E = 6


class Given:
    """Vectors that nobody had to compute: (L, n, E), two a text."""

    together = True

    def __init__(self, vectors: Tensor, answers: np.ndarray, block: int = 64) -> None:
        self.vectors, self.layers = vectors, tuple(map(str, range(len(vectors))))
        places = [np.array([0, 1])] * (len(answers) // 2)
        self.texts = ProbeData([np.array([1, 2])] * len(places), places, answers)
        self.blocks = self.texts.blocks(block)

    def read(self, block: int, layers: Sequence[str]) -> Tensor:
        begin, end = (
            self.texts.begin(self.blocks[block].start),
            self.texts.ends[self.blocks[block].stop - 1],
        )
        return self.vectors[[self.layers.index(layer) for layer in layers], begin:end]


def taught(x: Tensor, answers: np.ndarray, classes: int, **how: Any) -> Fitted:
    """Learned from the first half, validated on the second."""
    half = len(answers) // 2
    parts = [Given(x[:, :half], answers[:half]), Given(x[:, half:], answers[half:])]
    return fit(parts[0], parts[1], [(answers[:half], answers[half:])], classes, **how)


def right(fitted: Fitted, x: Tensor, answers: np.ndarray) -> list[float]:
    """The accuracy of each layer's first probe."""
    return [
        float((each == torch.from_numpy(answers)).float().mean())
        for each in fitted.answers(x)[:, 0, 0]
    ]


def test_a_linear_map_is_found_by_a_linear_probe() -> None:
    every, linear = 10 * torch.randn(4000, E), torch.randn(E, 4)
    first, second = (every @ linear).topk(2).values.unbind(1)
    clear = every[(first - second).argsort(descending=True)[:1500]][
        torch.randperm(1500)
    ]  # from the borders
    x = torch.stack([3 + clear, torch.randn(1500, E)])  # which says nothing
    answers = (clear @ linear).argmax(-1).numpy()
    fitted = taught(x, answers, 4, learning=Learning(epochs=12, rate=0.05, weight_decay=0.0))
    knows, does_not = right(fitted, x, answers)
    assert knows == 1
    assert does_not < 0.7


def test_numbers_are_those_of_least_squares() -> None:
    x = torch.randn(1, 2000, E) * torch.tensor([1.0, 10, 100, 1, 1, 1]) + 5
    answers = (x[0] @ torch.tensor([3.0, 2, 1, 0, 0, 5]) + 7 + torch.randn(2000)).double().numpy()
    fitted = taught(
        x, answers, 0, learning=Learning(epochs=25, rate=0.05, weight_decay=0.0, patience=60)
    )
    half = np.column_stack([x[0, :1000].double().numpy(), np.ones(1000)])
    best = half @ np.linalg.lstsq(half, answers[:1000], rcond=None)[0]
    found = fitted.answers(x[:, :1000])[0, 0, 0].numpy()
    assert np.abs(found - best).max() < 0.01 * answers.std()


def test_xor_takes_a_hidden_layer() -> None:
    x = torch.randn(1, 2000, E)
    answers = ((x[0, :, 0] > 0) ^ (x[0, :, 1] > 0)).long().numpy()
    hidden = taught(x, answers, 2, learning=Learning(hidden=16, epochs=12, rate=0.02))
    linear = taught(x, answers, 2, learning=Learning(epochs=12, rate=0.02))
    assert right(hidden, x, answers)[0] > 0.95
    assert right(linear, x, answers)[0] < 0.6


@pytest.mark.parametrize("hidden", [0, 8])
def test_probes_that_learn_together_are_those_that_learn_alone(hidden: int) -> None:
    """Of other layers and of other seeds: each is as if it were alone, also when it stops early."""
    x, learning = torch.randn(3, 800, E), Learning(hidden=hidden, epochs=6, patience=2, rate=0.1)
    one, other = ((x[0, :, place] > 0).long().numpy() for place in (0, 1))
    training, validation = Given(x[:, :400], one[:400]), Given(x[:, 400:], one[400:])
    sets = [(answers[:400], answers[400:]) for answers in (one, other)]
    together = fit(training, validation, sets, 2, seeds=(0, 1), learning=learning)
    alone = fit(training, validation, sets, 2, layers=["2"], seeds=(1,), learning=learning)
    said = together.probes(together.standard(x).unsqueeze(1))[2, 1]
    assert_close(said, alone.probes(alone.standard(x[2:]).unsqueeze(1))[0, 0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("hidden", [0, 8])
def test_a_seed_begins_with_the_same_weights_whatever_is_learned_beside_it(hidden: int) -> None:
    one, two = (Probes(1, (3, 4), targets, E, 2, hidden) for targets in (1, 2))
    x = torch.randn(1, 2, 5, E)
    assert_close(one(x)[:, :, 0], two(x)[:, :, 0])
    assert not torch.allclose(two(x)[:, :, 0], two(x)[:, :, 1])


def test_each_probe_keeps_its_own_best_moment() -> None:
    probes = Probes(1, (0, 1), 1, E, 2)
    best = Best(probes, patience=2)
    losses = [
        (3.0, 3.0),
        (2.0, 4.0),
        (2.5, 5.0),
        (1.0, 0.0),
        (0.5, 0.0),
    ]  # the second one gave up before its 0
    going = []
    for moment, (first, second) in enumerate(losses):
        with torch.no_grad():
            probes.first.fill_(moment)
        going.append(best.hear(torch.tensor([[[first], [second]]])))
    best.put_back()
    assert probes.first[0, :, 0, 0].tolist() == [4, 0]
    assert going == [True] * 5
    worse = torch.tensor([[[9.0], [0.0]]])
    assert [best.hear(worse) for _ in range(2)] == [True, False]  # the first one gives up after two


def test_a_class_that_nobody_taught_is_left_out_of_validation() -> None:
    x = torch.randn(1, 400, E)
    answers = (x[0, :, 0] > 0).long().numpy()
    answers[300:310] = UNKNOWN
    fitted = taught(x, answers, 2, learning=Learning(epochs=10, rate=0.02))
    assert right(fitted, x[:, :200], answers[:200])[0] > 0.9


def test_vectors_are_standardised() -> None:
    x = 1000 + 0.01 * torch.randn(2, 500, E, dtype=torch.float64)
    x[1, :, 0] = 7  # which never changes
    source = Given(x.float(), np.zeros(500, dtype=np.int64))
    mean, deviation = moments(source, source.layers)
    exact = x.float().double()
    assert_close(mean[:, 0], exact.mean(1).float())
    assert_close(deviation[0, 0], exact[0].std(0, correction=0).float(), rtol=1e-2, atol=0)
    assert deviation[1, 0, 0] == 1


def test_every_epoch_visits_every_block_once() -> None:
    source = Given(torch.zeros(1, 70_000, 1), np.zeros(70_000, dtype=np.int64), block=4096)
    visits = [[block for pool in pools(source, epoch, 1) for block in pool] for epoch in range(2)]
    assert sorted(visits[0]) == sorted(visits[1]) == list(range(len(source.blocks)))
    assert visits[0] != visits[1]
    assert max(len(pool) for pool in pools(source, 0, 1)) * 4096 <= 16384


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"hidden": -1}, "hidden: expected 0 for a linear probe or the width of a layer, not -1"),
        ({"batch": 0}, "batch: expected 1 or more, not 0"),
        ({"epochs": 0}, "epochs: expected 1 or more, not 0"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Learning(**wrong)  # type: ignore[arg-type]
