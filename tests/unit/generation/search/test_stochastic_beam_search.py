"""Stochastic beam search draws different sequences, each by its probability among the rest."""

from __future__ import annotations

import re
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from qkv.generation import row_seeds
from qkv.generation.sampling_params import NO_LIKELIEST
from qkv.generation.search.stochastic_beam_search import conditioned, stochastic_beam_search
from support.every_sequence import every_sequence
from support.families import gpt, rnn, transformer, words

V, START, END, LENGTH = 3, 1, 2, 3


def probabilities(
    model: Any, source: Tensor, temperature: float = 1.0
) -> dict[tuple[int, ...], float]:
    def scores(ids: Tensor) -> Tensor:
        with torch.no_grad():
            return (model(source.expand(len(ids), -1), ids)[:, -1] / temperature).log_softmax(-1)

    return every_sequence(scores, [START], END, LENGTH, V)


def inclusion(uniform_numbers: list[float], samples: int) -> list[float]:
    """The probability of each item to be among the first draws without replacement."""
    actual = [0.0] * len(uniform_numbers)
    for order in permutations(range(len(uniform_numbers)), samples):
        together, left = 1.0, 1.0
        for item in order:
            together *= uniform_numbers[item] / left
            left -= uniform_numbers[item]
        for item in order:
            actual[item] += together
    return actual


@pytest.mark.parametrize(("samples", "temperature"), [(1, 1.0), (2, 1.0), (3, 2.0)])
def test_each_sequence_is_drawn_as_often_as_without_replacement(
    samples: int, temperature: float
) -> None:
    model, source, rows = transformer(vocabulary=V), words(1, 4, vocabulary=V), 2000
    every = probabilities(model, source[0], temperature)
    texts = list(every)
    assert len(texts) == 15
    expected = inclusion([float(np.exp(total)) for total in every.values()], samples)
    drawn = stochastic_beam_search(
        model,
        source.expand(rows, -1),
        start=START,
        end=END,
        length=LENGTH,
        samples=samples,
        temperature=temperature,
        seed=0,
        batch=1000,
    )
    count = dict.fromkeys(texts, 0)
    for row in drawn:
        assert len({tuple(item.ids) for item in row}) == samples
        for item in row:
            count[tuple(item.ids)] += 1
            assert item.log_probability == pytest.approx(every[tuple(item.ids)], abs=1e-9)
    for text, uniform in zip(texts, expected, strict=True):
        deviation = (rows * uniform * (1 - uniform)) ** 0.5
        assert abs(count[text] - rows * uniform) < 4.5 * deviation + 1


def test_the_first_drawn_is_a_draw_by_probability_and_the_order_is_by_score() -> None:
    model, source, rows = rnn(vocabulary=V), words(1, 4, vocabulary=V), 2000
    every = probabilities(model, source[0])
    options: dict[str, Any] = {
        "start": START,
        "end": END,
        "length": LENGTH,
        "samples": 4,
        "seed": 1,
        "batch": 1000,
    }
    drawn = stochastic_beam_search(model, source.expand(rows, -1), **options)
    assert all(
        [item.score for item in row] == sorted((item.score for item in row), reverse=True)
        for row in drawn
    )
    for text, total in every.items():
        uniform = float(np.exp(total))
        count = sum(tuple(row[0].ids) == text for row in drawn)
        assert abs(count - rows * uniform) < 4.5 * (rows * uniform * (1 - uniform)) ** 0.5 + 1


def test_all_sequences_are_drawn_if_there_are_no_more() -> None:
    model, source = rnn(vocabulary=V), words(2, 4, vocabulary=V)
    for row in stochastic_beam_search(
        model, source, start=START, end=END, length=LENGTH, samples=40, seed=2
    ):
        assert len({tuple(item.ids) for item in row}) == len(row) == 15


@pytest.mark.parametrize("kind", ["transformer", "rnn", "gpt"])
def test_a_row_draws_the_same_without_its_neighbours_and_a_seed_reproduces(kind: str) -> None:
    model: Any = {"transformer": transformer, "rnn": rnn, "gpt": gpt}[kind]().float()
    source = [words(1, n)[0].tolist() for n in (5, 2, 4, 5, 1)]
    options: dict[str, Any] = {"end": END, "length": 6, "samples": 4} | (
        {} if kind == "gpt" else {"start": START}
    )
    together = drawn_ids(model, source, seed=3, **options)
    assert drawn_ids(model, source, seed=3, batch=2, **options) == together
    assert drawn_ids(model, source, seed=4, **options) != together
    for row, seed, its in zip(source, row_seeds(3, 5), together, strict=True):
        assert drawn_ids(model, [row], seed=[seed], **options) == [its]


def drawn_ids(*options: Any, **how: Any) -> list[list[list[int]]]:
    return [[item.ids for item in row] for row in stochastic_beam_search(*options, **how)]


def test_what_is_forbidden_is_not_drawn_and_no_end_comes_too_early() -> None:
    model, source = transformer(), words(3, 4)
    options: dict[str, Any] = {"start": START, "end": END, "length": 5, "samples": 6, "seed": 0}
    for row in stochastic_beam_search(model, source, minimum=3, forbidden=[0, 5, 8], **options):
        assert all(len(item.ids) >= 3 and not {0, 5, 8} & set(item.ids) for item in row)


def test_conditioned_sums_have_the_known_maximum_and_their_order() -> None:
    random = np.random.default_rng(0)
    sums = random.gumbel(size=(3, 50)) + random.normal(size=(3, 50)) * 5
    sums[1, 7] = -np.inf
    highest = np.array([[-3.0], [0.5], [20.0]])
    actual = conditioned(highest, sums)
    assert np.allclose(actual.max(1, keepdims=True), highest)
    assert (np.argsort(actual, 1) == np.argsort(sums, 1)).all()
    assert actual[1, 7] == -np.inf
    direct = -np.log(np.exp(-highest) - np.exp(-sums.max(1, keepdims=True)) + np.exp(-sums))
    assert np.allclose(actual, direct)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"samples": 0}, "samples: expected 1 to 1,024, not 0"),
        ({"samples": 1_000_000}, "samples: expected 1 to 1,024, not 1,000,000"),
        ({"temperature": 0.0}, "temperature: expected more than 0, not 0.0"),
        ({"temperature": float("nan")}, "temperature: expected more than 0, not nan"),
        ({"seed": -1}, "seed: expected 0 or more, not -1"),
        ({"seed": [1]}, "seed: expected one, or one for each of 2 rows, not 1"),
        ({"length": 0}, "length: expected 1 token or more, not 0"),
    ],
)
def test_a_wrong_question_is_refused_by_name(wrong: dict[str, Any], message: str) -> None:
    options = {"start": START, "end": END, "length": 5, "samples": 2} | wrong
    with pytest.raises(ValueError, match=message):
        stochastic_beam_search(rnn(), words(2, 3), **options)


def test_broken_weights_raise_the_error_of_every_decoder() -> None:
    broken = rnn()
    torch.nn.init.constant_(broken.bridge.weight, float("nan"))
    with pytest.raises(ValueError, match=re.escape(NO_LIKELIEST)):
        stochastic_beam_search(broken, words(2, 3), start=START, end=END, length=3, samples=2)
