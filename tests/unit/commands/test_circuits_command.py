"""qkv circuits: the numbers of the library as tables, a figure and JSON; bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qkv import artifact
from qkv.insight.circuits.circuit_scores import circuit_scores
from qkv.insight.circuits.token_circuits import token_circuits
from support.command_fixtures import Qkv


def test_all_heads(qkv: Qkv, models: Path, tmp_path: Path) -> None:
    model, _ = artifact.load(models / "gpt")
    scores = circuit_scores(model)
    plot = tmp_path / "circuits.svg"
    printed = qkv("circuits", models / "gpt", "--plot", plot)
    assert printed.code == 0, printed.error
    layer, head, score = scores.strongest("copying", 1)[0]
    assert f"{layer}.{head}\u00a0{score:+.2f}" in printed.out
    assert "Circuits of heads" in plot.read_text()

    values = json.loads(qkv("circuits", models / "bert", "--json").out)
    assert len(values["copying"][0]) == 2
    assert values["composition"] == {}  # post-norm


def test_one_head(qkv: Qkv, models: Path) -> None:
    model, tokenizer = artifact.load(models / "chat")
    assert tokenizer is not None
    flags = ["--layer", "0", "--head", "1", "--top", "4"]
    values = json.loads(qkv("circuits", models / "chat", *flags, "--json").out)
    tokens = [id for id in range(tokenizer.vocabulary) if id not in tokenizer.special]
    expected = token_circuits(model, 0, 1, tokens, distance=1)
    for name, circuit in (("qk", expected.qk), ("ov", expected.ov)):
        best = circuit.largest(1)[0]
        found = values[name][0]
        assert (found["first"], found["second"]) == (best.first, best.second)
        assert found["value"] == pytest.approx(best.value, abs=1e-5)

    printed = qkv("circuits", models / "gpt", *flags, "--token", "e")
    assert printed.code == 0, printed.error
    assert "layer 0, head 1: copying" in printed.out
    assert "attending to" in printed.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gpt", "--layer", "0"], "head: give --layer and --head together"),
        (["gpt", "--layer", "1", "--head", "0"], "layer: expected 0 to 0, not 1"),
        (["gpt", "--layer", "0", "--head", "2"], "head: expected 0 to 1, not 2"),
        (["gpt", "--token", "e"], "token: it is about one head"),
        (["gpt", "--top", "0"], "top: expected 1 or more"),
        (["gpt", "--kind", "cross"], "kind: expected one of self"),
    ],
)
def test_bad_input(qkv: Qkv, models: Path, arguments: list[str], message: str) -> None:
    printed = qkv("circuits", models / arguments[0], *arguments[1:])
    assert printed.refused
    assert message in printed.error
