"""The engine: requests join and leave at any step, and each says what it says alone."""

from __future__ import annotations

from typing import Any

import pytest

from models.families import GPT_KINDS, gpt
from qkv.generation import generate, row_seeds
from qkv.generation.choice import Choice
from qkv.models import GPT
from serving.engines import Steps

PROMPTS = [[1, 2, 3, 4, 5], [6], [7, 8, 9], [10, 11, 12, 1, 2, 3, 4], [6], [1, 2, 3, 4, 5, 6]]
MORE: dict[str, dict[str, Any]] = {"transformer-xl": {"position": "relative", "memory": 5, "context": 4}}


def model_of(kind: str) -> GPT:
    return gpt(**(GPT_KINDS | MORE)[kind])


@pytest.mark.parametrize("kind", [*GPT_KINDS, *MORE])
@pytest.mark.parametrize("choice", [Choice(temperature=0), Choice(top_k=9, repetition=1.2), Choice(minimum=5)])
def test_requests_that_come_and_go_do_not_mind_each_other(kind: str, choice: Choice) -> None:
    model = model_of(kind)
    steps = Steps(model, rows=4, tokens=3, cache=1 << 20)
    tickets = []
    for number, prompt in enumerate(PROMPTS):
        tickets.append(steps.ask(prompt, length=5 + number % 3, choice=choice, seed=number, ends=(6,)))
        steps.step(number % 3)
    steps.finish()
    for number, (prompt, ticket) in enumerate(zip(PROMPTS, tickets, strict=True)):
        alone = generate(model, [prompt], length=5 + number % 3, choice=choice, seed=row_seeds(number, 1), end=6)
        assert steps.ids(ticket) == alone
    assert steps.used == 0
