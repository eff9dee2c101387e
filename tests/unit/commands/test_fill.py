from __future__ import annotations

import json
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
    for line, guess in zip(
        [*one, a, b, c], [guess for guesses in expected for guess in guesses], strict=True
    ):
        assert line.split()[:2] == [guess.text, f"{guess.probability:.1%}"]
    said = [
        json.loads(line)
        for line in qkv("fill", models / "bert", "--json", "--top", 3, typed=text).out.splitlines()
    ]
    assert [each["mask"] for each in said] == [1, 2]
    assert [guess["probability"] for guess in said[0]["guesses"]] == pytest.approx(
        [guess.probability for guess in expected[0]]
    )


@pytest.mark.parametrize(
    ("words", "typed", "message"),
    [
        (
            ["bert", "no mask"],
            "",
            "text: there is no mask in it to fill; write [mask] where a word is missing",
        ),
        (["bert"], "", "text: it is empty; expected a text with [mask] where a word is missing"),
        (["bert", "[mask]", "--top", "0"], "", "top: expected 1 or more, not 0"),
        (
            ["bert", "[mask]" + " cat" * 20],
            "",
            "text: 23 tokens are more than the model's context of 16",
        ),
        (["gpt", "[mask]"], "", "a GPT goes on from a text: use qkv generate, or qkv chat"),
        (
            ["one", "[mask]"],
            "",
            "a Transformer of encoder and decoder translates: use qkv translate",
        ),
    ],
)
def test_bad_input(qkv: Qkv, models: Path, words: list[str], typed: str, message: str) -> None:
    printed = qkv("fill", models / words[0], *words[1:], typed=typed)
    assert printed.refused
    assert message in printed.error
    assert printed.error.count("\n") == 1
    assert printed.out == ""
