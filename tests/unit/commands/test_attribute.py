"""qkv attribute: the numbers of the library, as bars, a map, a figure and JSON; bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qkv import artifact
from qkv.insight.attribute.integrated_gradients import integrated_gradients
from qkv.insight.attribute.logit_attribution import logit_attribution
from qkv.insight.inspect.model_input import read
from support.command_fixtures import Qkv

TEXT = "the cat sat"


def test_the_parts_of_a_logit(qkv: Qkv, models: Path, tmp_path: Path) -> None:
    model, tokenizer = artifact.load(models / "gpt")
    assert tokenizer is not None
    (a,) = tokenizer.encode("a")
    (e,) = tokenizer.encode("e")
    split = logit_attribution(model, read(model, tokenizer, TEXT), -1, a, e)
    flags = ["--token", "a", "--against", "e"]
    plot = tmp_path / "parts.svg"
    printed = qkv("attribute", models / "gpt", TEXT, *flags, "--top", "3", "--plot", plot)
    assert printed.code == 0, printed.error
    assert f"logit of a less that of e: {split.total:+.3f}" in printed.out
    assert split.strongest(1)[0][0] in printed.out
    assert printed.out.count("\n") == 5  # the sentence, three parts, the plot
    assert "What the logit is made of" in plot.read_text()
    values = json.loads(qkv("attribute", models / "gpt", TEXT, *flags, "--json").out)
    assert values["parts"] == pytest.approx(dict(split.parts()), abs=1e-6)


def test_the_contributions_of_tokens(qkv: Qkv, models: Path, tmp_path: Path) -> None:
    model, tokenizer = artifact.load(models / "gpt")
    assert tokenizer is not None
    found = integrated_gradients(model, read(model, tokenizer, TEXT), steps=8)
    flags = ["--method", "tokens", "--steps", "8"]
    plot = tmp_path / "tokens.svg"
    values = json.loads(
        qkv("attribute", models / "gpt", TEXT, *flags, "--json", "--plot", plot).out
    )
    assert values["contributions"] == pytest.approx(found.text.tolist(), abs=1e-6)
    assert "What each token contributes" in plot.read_text()
    printed = qkv("attribute", models / "one", "the cat", *flags, "--baseline", "zeros")
    assert printed.code == 0, printed.error
    assert "not accounted for" in " ".join(printed.out.split())


@pytest.mark.parametrize("method", ["rollout", "values"])
def test_maps_of_tokens(qkv: Qkv, models: Path, tmp_path: Path, method: str) -> None:
    plot = tmp_path / "map.svg"
    printed = qkv("attribute", models / "bert", TEXT, "--method", method, "--plot", plot)
    assert printed.code == 0, printed.error
    assert "layer 0" in printed.out
    assert plot.is_file()
    values = json.loads(qkv("attribute", models / "gpt", TEXT, "--method", method, "--json").out)
    rows = values["values"]
    assert len(rows) == len(values["rows"])
    if method == "rollout":
        assert [sum(row) for row in rows] == pytest.approx([1] * len(rows), abs=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bert", TEXT], "post-norm"),
        (["gpt", TEXT, "--token", "qq"], "token: expected one token"),
        (["gpt", TEXT, "--position", "99"], "position: expected 0 to"),
        (["gpt", TEXT, "--method", "rollout", "--layer", "1"], "layer: expected 0 to 0"),
        (["gpt", TEXT, "--method", "values", "--head", "2"], "head: expected 0 to 1, not 2"),
        (["gpt", TEXT, "--top", "0"], "top: expected 1 or more"),
        (["gpt", TEXT, "--target", "e"], "target: only a translator"),
    ],
)
def test_bad_input(qkv: Qkv, models: Path, arguments: list[str], message: str) -> None:
    printed = qkv("attribute", models / arguments[0], *arguments[1:])
    assert printed.refused
    assert message in printed.error
