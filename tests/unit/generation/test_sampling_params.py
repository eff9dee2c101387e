"""Penalties, forbidden and forced tokens, against plain loops and `transformers`."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from qkv.generation import SamplingParams, generate
from qkv.generation.sampling import distribution
from qkv.generation.sampling_params import TokenCounts, process_logits
from support.families import gpt, words

V = 13


def token_counts(prompt: list[list[int]], generated: list[list[int]]) -> TokenCounts:
    counts = TokenCounts(torch.tensor(prompt), None, V)
    for step in zip(*generated, strict=True):
        counts.add(torch.tensor(step))
    return counts


def test_penalties_equal_a_plain_loop() -> None:
    logits = torch.randn(2, V, dtype=torch.float64)
    prompt, generated = [[1, 2, 2], [3, 3, 4]], [[5, 5, 2, 7], [1, 1, 1, 1]]
    params = SamplingParams(repetition=1.7, presence=0.3, frequency=0.2)
    actual = process_logits(logits, params, token_counts(prompt, generated), position=4, ends=())
    for row in range(2):
        for token in range(V):
            expected = float(logits[row, token])
            if token in prompt[row] + generated[row]:
                expected = expected / 1.7 if expected > 0 else expected * 1.7
            times = generated[row].count(token)  # the prompt does not count here
            expected -= 0.3 * (times > 0) + 0.2 * times
            assert float(actual[row, token]) == pytest.approx(expected)


def test_padding_does_not_count_as_a_token_of_the_prompt() -> None:
    counts = TokenCounts(torch.tensor([[0, 0, 4]]), torch.tensor([[False, False, True]]), V)
    assert counts.in_prompt[0].nonzero().flatten().tolist() == [4]


def test_repetition_is_that_of_transformers() -> None:
    from transformers import RepetitionPenaltyLogitsProcessor

    logits = torch.randn(3, V)
    prompt, generated = torch.randint(V, (3, 4)), torch.randint(V, (3, 5))
    for penalty in (0.7, 1.2, 3.0):
        theirs = RepetitionPenaltyLogitsProcessor(penalty)(
            torch.cat([prompt, generated], dim=1), logits.clone()
        )
        counts = token_counts(prompt.tolist(), generated.tolist())
        assert_close(
            process_logits(logits, SamplingParams(repetition=penalty), counts, 5, ()), theirs
        )


@pytest.mark.parametrize(
    "filters",
    [
        {"min_p": 0.1},
        {"min_p": 0.6},
        {"top_k": 5, "min_p": 0.2},
        {"top_p": 0.8, "min_p": 0.3},
        {"top_k": 6, "top_p": 0.7},
    ],
)
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.8])
def test_filters_are_those_of_transformers(filters: dict[str, Any], temperature: float) -> None:
    from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    logits = 2 * torch.randn(20, V, dtype=torch.float64)
    theirs: Tensor = logits / temperature
    none = torch.zeros(20, 0, dtype=torch.long)
    if "top_k" in filters:
        theirs = TopKLogitsWarper(filters["top_k"])(none, theirs)
    if "top_p" in filters:
        theirs = TopPLogitsWarper(filters["top_p"])(none, theirs)
    if "min_p" in filters:
        theirs = MinPLogitsWarper(filters["min_p"])(none, theirs)
    assert_close(distribution(logits, temperature=temperature, **filters), theirs.softmax(-1))


def test_forbidden_tokens_never_come_and_forced_ones_always() -> None:
    model = gpt()
    rows = generate(
        model, words(6, 3), length=10, seed=1, forbidden=(3, 5, 8), forced={0: 11, 4: 2}
    )
    assert all({3, 5, 8}.isdisjoint(row) for row in rows)
    assert all(row[0] == 11 and row[4] == 2 for row in rows)
    free = generate(model, words(6, 3), length=10, seed=1)
    assert any({3, 5, 8} & set(row) for row in free)
    assert any(row[0] != 11 for row in free)


def test_no_sequence_ends_before_its_minimum() -> None:
    model, prompts = gpt(), words(40, 3)
    free = generate(model, prompts, length=12, seed=2, end=[4, 6])
    assert min(map(len, free)) < 5
    late = generate(model, prompts, length=12, seed=2, end=[4, 6], minimum=5)
    assert min(map(len, late)) >= 5
    assert all({4, 6}.isdisjoint(row) for row in late)


def test_a_repetition_penalty_makes_a_model_repeat_itself_less() -> None:
    model, prompts = gpt(), words(8, 3)
    plain = generate(model, prompts, length=12, temperature=0)
    varied = generate(model, prompts, length=12, temperature=0, presence=100.0)
    assert any(len(set(row)) < len(row) for row in plain)
    assert all(
        len(set(row)) == 12 for row in varied
    )  # thirteen tokens are enough for twelve different ones


def test_penalties_do_not_depend_on_neighbours() -> None:
    model, prompts = gpt(), [[1, 2, 3], [4], [5, 6]]
    options: dict[str, Any] = {
        "length": 9,
        "end": 7,
        "repetition": 1.5,
        "presence": 0.5,
        "frequency": 0.5,
    }
    together = generate(model, prompts, seed=[1, 2, 3], **options)
    assert together == [
        generate(model, [row], seed=[seed], **options)[0]
        for row, seed in zip(prompts, (1, 2, 3), strict=True)
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"forbidden": (13,)}, "forbidden: expected an id from 0 to 12, not 13"),
        ({"forced": {0: -1}}, "forced: expected an id from 0 to 12, not -1"),
        (
            {"forced": {0: 3}, "forbidden": (3,)},
            "forced: 3 at position 0 is forbidden",
        ),
        (
            {"forced": {0: 3}, "end": 3, "minimum": 2},
            "forced: position 0 ends the sequence",
        ),
        ({"forbidden": tuple(range(13))}, "forbidden: no token is left"),
        ({"forbidden": tuple(range(12)), "end": 12, "minimum": 1}, "forbidden: no token is left"),
        ({"samples": 0}, "samples: expected 1 or more, not 0"),
        (
            {"samples": 1_000_000},
            "samples: 1,000,000 of each of 2 prompts are more than 65,536 at once",
        ),
        ({"beyond": "cut"}, "beyond: expected refuse, slide or extend, not 'cut'"),
        ({"sampling_params": SamplingParams(), "top_k": 3}, "top_k: .*field of sampling_params"),
        ({"presence": math.inf}, "presence: expected a number"),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_sampling_parameters_that_contradict_are_refused(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        generate(gpt(), words(2, 3), length=5, **options)
