"""qkv fill: predictions for masks, as bars and as JSON; bad input."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path

import pytest

from qkv import artifact
from qkv.generation.fill import fill
from qkv.models import BERT
from support.command_fixtures import Qkv


def test_guesses_and_bars(qkv: Qkv, models: Path) -> None:
    model, tokenizer = artifact.load(models / "bert")
    assert isinstance(model, BERT)
    assert tokenizer is not None
    text = "the [mask] sat on the [mask]."
    expected = fill(model, tokenizer, text, top=3)
    printed = qkv("fill", models / "bert", text, "--top", 3)
    first, *one, second, a, b, c = printed.out.splitlines()
    assert (first, second) == ("mask 1", "mask 2")
    lines = [*one, a, b, c]
    for line, guess in zip(lines, chain.from_iterable(expected), strict=True):
        assert line.split()[:2] == [guess.text, f"{guess.probability:.1%}"]

    printed = qkv("fill", models / "bert", "--json", "--top", 3, typed=text)
    masks = [json.loads(line) for line in printed.out.splitlines()]
    assert [mask["mask"] for mask in masks] == [1, 2]
    probabilities = [guess["probability"] for guess in masks[0]["guesses"]]
    assert probabilities == pytest.approx([guess.probability for guess in expected[0]])


@pytest.mark.parametrize(
    ("arguments", "typed", "message"),
    [
        (["bert", "no mask"], "", "text: there is no mask"),
        (["bert"], "", "text: it is empty"),
        (["bert", "[mask]", "--top", "0"], "", "top: expected 1 or more, not 0"),
        (
            ["bert", "[mask]" + " cat" * 20],
            "",
            "text: 23 tokens are more than the model's context of 16",
        ),
        (["gpt", "[mask]"], "", "use qkv generate, or qkv chat"),
        (["one", "[mask]"], "", "use qkv translate"),
    ],
)
def test_bad_input(qkv: Qkv, models: Path, arguments: list[str], typed: str, message: str) -> None:
    printed = qkv("fill", models / arguments[0], *arguments[1:], typed=typed)
    assert printed.refused
    assert message in printed.error
    assert printed.error.count("\n") == 1
    assert printed.out == ""
