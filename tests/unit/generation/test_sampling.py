"""Tokens are drawn by their probability, and filtered tokens never."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from qkv.generation.sampling import UniformNumbers, distribution, draw, row_seeds, uniforms
from qkv.generation.sampling_params import BROKEN, SamplingParams, sample_tokens

HALVES = torch.tensor([0.05, 0.5, 0.15, 0.3], dtype=torch.float64)


def logits_of(probability: Tensor) -> Tensor:
    return probability.log().unsqueeze(0) + 7  # adding a constant changes nothing


def assert_distribution(expected: list[float], **filters: float | int) -> None:
    actual = distribution(logits_of(HALVES), **filters)[0]
    assert_close(actual, torch.tensor(expected, dtype=torch.float64))
    assert [p > 0 for p in actual.tolist()] == [
        p > 0 for p in expected
    ]  # exactly 0, not merely unlikely


def test_temperature_is_a_power_of_the_probabilities() -> None:
    for temperature in (0.25, 0.5, 1.0, 2.0):
        powers = HALVES ** (1 / temperature)
        assert_distribution((powers / powers.sum()).tolist(), temperature=temperature)


def test_top_k_keeps_the_likeliest() -> None:
    assert_distribution([0, 1, 0, 0], top_k=1)
    assert_distribution([0, 0.5 / 0.8, 0, 0.3 / 0.8], top_k=2)
    assert_distribution([0, 0.5 / 0.95, 0.15 / 0.95, 0.3 / 0.95], top_k=3)
    for all_of_them in (4, 5, 10**9):
        assert_distribution(HALVES.tolist(), top_k=all_of_them)


def test_top_k_keeps_no_more_among_equals() -> None:
    actual = distribution(torch.zeros(3, 9), top_k=4)
    assert (actual > 0).sum(1).tolist() == [4, 4, 4]
    assert_close(actual.amax(1), torch.full((3,), 0.25, dtype=torch.float64))


def test_top_p_keeps_the_fewest_that_reach_it() -> None:
    assert_distribution([0, 1, 0, 0], top_p=1e-9)  # the likeliest always stays
    assert_distribution([0, 1, 0, 0], top_p=0.49)
    assert_distribution([0, 0.5 / 0.8, 0, 0.3 / 0.8], top_p=0.51)
    assert_distribution([0, 0.5 / 0.95, 0.15 / 0.95, 0.3 / 0.95], top_p=0.81)
    assert_distribution(HALVES.tolist(), top_p=0.96)
    assert_distribution(HALVES.tolist(), top_p=1.0)


def test_top_p_counts_what_top_k_and_the_temperature_left() -> None:
    # Of the three likeliest the first two have 0.8 / 0.95 = 0.84 of the mass, of all four tokens
    # 0.8.
    assert_distribution([0, 0.5 / 0.8, 0, 0.3 / 0.8], top_k=3, top_p=0.83)
    # Squared: 0.25, 0.09, 0.0225, 0.0025 of 0.365, so that the first two have 0.93.
    assert_distribution([0, 0.25 / 0.34, 0, 0.09 / 0.34], temperature=0.5, top_p=0.9)


@given(
    st.lists(st.floats(-30, 30), min_size=1, max_size=8),
    st.integers(1, 9),
    st.floats(0.01, 1),
    st.floats(0.1, 5),
)
def test_filters_equal_their_definition(
    logits: list[float], top_k: int, top_p: float, temperature: float
) -> None:
    scores = torch.tensor([logits], dtype=torch.float64)
    actual = distribution(scores, temperature=temperature, top_k=top_k, top_p=top_p)[0].tolist()
    powers = sorted((math.exp((x - max(logits)) / temperature) for x in logits), reverse=True)[
        :top_k
    ]
    sums = [sum(powers[:n]) / sum(powers) for n in range(1, len(powers) + 1)]
    assume(all(abs(total - top_p) > 1e-9 for total in sums[:-1]))  # where rounding would decide
    remaining = powers[: 1 + sum(total < top_p for total in sums[:-1])]
    expected = [power / sum(remaining) for power in remaining] + [0.0] * (
        len(logits) - len(remaining)
    )
    assert sorted(actual, reverse=True) == pytest.approx(
        expected
    )  # equal tokens are interchangeable
    assert sum(p > 0 for p in actual) == len(remaining)


def test_temperature_0_takes_the_likeliest_and_the_first_of_equals() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0], [5.0, -math.inf, 0.0, 4.0]])
    for uniform in (1e-9, 0.5, 1.0):
        assert sample_tokens(
            logits, torch.full((2,), uniform), SamplingParams(temperature=0)
        ).tolist() == [1, 0]
        assert (
            sample_tokens(
                logits, torch.full((2,), uniform), SamplingParams(temperature=1e-300, top_k=1)
            ).tolist()[1]
            == 0
        )


def test_a_uniform_number_selects_a_token_by_its_probability() -> None:
    probability = torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0], dtype=torch.float64)
    expected = {1e-300: 1, 0.25: 1, 0.2500001: 3, 0.75: 3, 0.7500001: 4, 1.0: 4}
    actual = draw(
        probability.expand(len(expected), -1), torch.tensor(list(expected), dtype=torch.float64)
    )
    assert actual.tolist() == list(expected.values())


def test_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    """Pearson's chi-square: the bounds are exceeded once in a thousand times."""
    rows = 20_000
    uniform = uniforms(5, rows, 1)[:, 0]
    for size, bound in ((8, 24.3), (13, 32.9)):
        logits = torch.randn(1, size) * 2
        for fields in ({}, {"temperature": 2.0}, {"top_k": 5}, {"top_p": 0.9}):
            expected = rows * distribution(logits, **fields)[0]
            drawn = sample_tokens(logits.expand(rows, -1), uniform, SamplingParams(**fields))
            count = torch.bincount(drawn, minlength=size)
            present = expected > 0
            assert count[~present].sum() == 0
            assert ((count - expected)[present] ** 2 / expected[present]).sum() < bound


@pytest.mark.parametrize(
    "fields", [{}, {"top_k": 5}, {"top_p": 0.8}, {"top_k": 9, "top_p": 0.7, "min_p": 0.1}], ids=str
)
def test_kept_tokens_lie_on_the_line_in_the_order_of_their_ids(fields: dict[str, float]) -> None:
    logits = torch.randn(300, 40) * 2
    uniform = uniforms(2, 300, 1)[:, 0]
    drawn = sample_tokens(logits, uniform, SamplingParams(**fields))
    assert torch.equal(drawn, draw(distribution(logits, **fields), uniform))


def test_uniforms_of_tokens_and_rows_are_independent() -> None:
    uniform = uniforms(3, 200, 200)
    assert ((uniform > 0) & (uniform <= 1)).all()
    assert uniform.unique().numel() == uniform.numel()
    assert uniform.mean().item() == pytest.approx(0.5, abs=0.01)
    for one, two in pairwise(uniform):
        assert abs(torch.corrcoef(torch.stack([one, two]))[0, 1].item()) < 0.35
    other = uniforms(4, 200, 200)
    assert not torch.isin(other, uniform).any()  # the next seed is not the next row


def test_a_row_depends_on_its_seed_alone() -> None:
    uniform = uniforms(3, 5, 9)
    assert torch.equal(uniforms(3, 2, 4), uniform[:2, :4])
    assert torch.equal(uniforms(row_seeds(3, 5)[2:4], 2, 9), uniform[2:4])
    assert not torch.equal(uniforms(None, 5, 9), uniforms(None, 5, 9))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": -0.1}, "temperature: expected 0 .* or more, not -0.1"),
        ({"temperature": math.nan}, "temperature: expected 0 .* or more, not nan"),
        ({"temperature": math.inf}, "temperature: expected 0 .* or more, not inf"),
        ({"top_k": 0}, "top_k: expected 1 or more, not 0"),
        ({"top_p": 0.0}, "top_p: expected more than 0 and at most 1, not 0.0"),
        ({"top_p": 1.5}, "top_p: expected more than 0 and at most 1, not 1.5"),
        ({"min_p": 1.5}, "min_p: expected 0 to 1, not 1.5"),
        ({"repetition": 0.0}, "repetition: expected more than 0"),
        ({"presence": math.nan}, "presence: expected a number"),
        ({"minimum": -1}, "minimum: expected 0 tokens or more, not -1"),
        ({"forced": {-1: 3}}, "forced: expected positions from 0"),
    ],
)
def test_wrong_sampling_parameters_are_refused(fields: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SamplingParams(**fields)


@pytest.mark.parametrize("row", [[math.nan, 0.0], [-math.inf, -math.inf], [math.inf, 0.0]])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_logits_give_the_broken_token(row: list[float], temperature: float) -> None:
    tokens = sample_tokens(
        torch.tensor([[1.0, 2.0], row]), torch.ones(2), SamplingParams(temperature=temperature)
    )
    assert tokens[0] != BROKEN
    assert tokens[1] == BROKEN


def test_wrong_seeds_are_refused() -> None:
    with pytest.raises(ValueError, match="seed: expected 0 or more, not -1"):
        uniforms(-1, 2, 3)
    with pytest.raises(ValueError, match="seed: expected 0 or more, not -5"):
        uniforms([3, -5], 2, 3)
    with pytest.raises(ValueError, match="seed: expected one, or one for each of 2 rows, not 3"):
        uniforms([1, 2, 3], 2, 3)


def test_numbers_read_one_by_one_are_those_of_the_whole_row() -> None:
    """In any order, and again: a step that is repeated draws the same token."""
    (whole,) = uniforms([5], 1, 9).tolist()
    numbers = UniformNumbers(5)
    assert [numbers[position] for position in (0, 3, 1, 8, 8)] == [
        whole[position] for position in (0, 3, 1, 8, 8)
    ]
