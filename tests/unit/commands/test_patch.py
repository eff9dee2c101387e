"""qkv patch: the numbers of the library, as a table, a figure and JSON; bad input."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from qkv import artifact
from qkv.insight.attribute.edge_patching import edge_attribution
from qkv.insight.attribute.gradient_patching import attribution_patch
from qkv.insight.inspect.activation_patching import patch
from qkv.insight.inspect.model_input import read
from qkv.models import RNN, RNNConfig
from support.command_fixtures import Qkv

CLEAN = "the cat sat"
OTHER = "the sat cat"


@pytest.mark.parametrize("at", ["residual", "heads", "feed_forward"])
def test_restored_answers(qkv: Qkv, models: Path, tmp_path: Path, at: str) -> None:
    model, tokenizer = artifact.load(models / "gpt")
    assert tokenizer is not None
    clean = read(model, tokenizer, CLEAN)
    corrupted = read(model, tokenizer, OTHER)
    assert len(clean.text.ids) == len(corrupted.text.ids)
    (right,) = tokenizer.encode("a")
    (wrong,) = tokenizer.encode("e")
    expected = patch(model, clean, corrupted, right, wrong, at)  # type: ignore[arg-type]
    arguments = [
        "patch",
        models / "gpt",
        CLEAN,
        OTHER,
        "--answer",
        "a",
        "--against",
        "e",
        "--at",
        at,
    ]

    plot = tmp_path / "patch.svg"
    printed = qkv(*arguments, "--plot", plot)
    assert printed.code == 0, printed.error
    assert f"logit of a less that of e: clean {expected.clean:.3f}" in " ".join(printed.out.split())
    assert "Where the answer comes from" in plot.read_text()
    values = json.loads(qkv(*arguments, "--json").out)
    for row, right_row in zip(values["restored"], expected.restored.tolist(), strict=True):
        assert row == pytest.approx(right_row, abs=1e-5)

    assert (values["answer"], values["against"], values["measure"]) == ("a", "e", "difference")
    assert any("/" in token for token in values["tokens"])  # where the prompts differ


def test_estimates_and_edges(qkv: Qkv, models: Path) -> None:
    model, tokenizer = artifact.load(models / "gpt")
    assert tokenizer is not None
    clean = read(model, tokenizer, CLEAN)
    corrupted = read(model, tokenizer, OTHER)
    (right,) = tokenizer.encode("a")
    (wrong,) = tokenizer.encode("e")
    expected = attribution_patch(model, clean, corrupted, right, wrong, "heads").restored
    arguments = ["patch", models / "gpt", CLEAN, OTHER, "--answer", "a", "--against", "e"]
    values = json.loads(qkv(*arguments, "--at", "heads", "--fast", "--json").out)
    assert values["estimated"] is True
    assert values["restored"][0] == pytest.approx(expected[0].tolist(), abs=1e-5)
    assert "estimated from one backward pass" in qkv(*arguments, "--fast").out

    printed = qkv(*arguments, "--edges", "3")
    assert printed.code == 0, printed.error
    assert printed.out.count(" → ") == 3
    values = json.loads(qkv(*arguments, "--edges", "3", "--json").out)
    (writer, reader, score) = edge_attribution(model, clean, corrupted, right, wrong).strongest(1)[
        0
    ]
    assert values["edges"][0]["score"] == pytest.approx(score, rel=1e-3)
    assert (values["edges"][0]["from"], values["edges"][0]["to"]) == (str(writer), str(reader))


def test_a_bert_at_its_mask(qkv: Qkv, models: Path) -> None:
    printed = qkv("patch", models / "bert", "the cat [mask] .", "the mat [mask] .", "--json")
    assert printed.code == 0, printed.error
    assert json.loads(printed.out)["measure"] == "probability"
    last = json.loads(printed.out)["restored"][-1]
    # Position 3 of [start] the cat [mask]; random weights differ by little more than rounding.
    assert last[3] == pytest.approx(1, abs=0.02)
    printed = qkv("patch", models / "bert", "the cat sat", "the mat sat")
    assert "clean: a BERT predicts a masked word" in printed.error


@pytest.mark.parametrize(
    "flags",
    [[], ["--kind", "decoder", "--target", "the dog"], ["--kind", "cross", "--at", "heads"]],
)
def test_a_translator(qkv: Qkv, models: Path, flags: list[str]) -> None:
    printed = qkv("patch", models / "one", CLEAN, OTHER, *flags)
    assert printed.code == 0, printed.error
    assert "probability of" in printed.out


def test_control_characters_do_not_break_the_picture(
    qkv: Qkv, models: Path, tmp_path: Path
) -> None:
    plot = tmp_path / "patch.svg"
    printed = qkv(
        "patch", models / "gpt", "the cat\x1b[0m", "the cat\x1b[1m", "--answer", "a", "--plot", plot
    )
    assert printed.code == 0, printed.error
    ElementTree.parse(plot)
    printed = qkv("patch", models / "gpt", "the cat\x1b", "the cat\x1b\x1b")
    assert printed.error.startswith("qkv: corrupted: ")
    assert "\x1b" not in printed.error


@pytest.mark.parametrize("target", [[], ["--target", "the dog"]])
def test_an_rnn_cannot_be_patched(
    qkv: Qkv, models: Path, tmp_path: Path, target: list[str]
) -> None:
    _, tokenizer = artifact.load(models / "one")
    assert tokenizer is not None
    artifact.save(
        RNN(RNNConfig(vocabulary=tokenizer.vocabulary, width=16)),
        tmp_path / "rnn",
        tokenizer=tokenizer,
    )
    printed = qkv("patch", tmp_path / "rnn", CLEAN, OTHER, *target)
    assert printed.refused
    assert printed.error.startswith("qkv: model: an RNN has no layers of heads")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gpt", CLEAN, CLEAN], "corrupted: the answer is the same"),
        (["gpt", CLEAN, "the mat"], "tokens"),
        (
            ["gpt", CLEAN, OTHER, "--answer", "qq"],
            "answer: expected one token, but 'qq' is 2: q | q",
        ),
        (["gpt", CLEAN, OTHER, "--answer", " the cat"], "' the cat' is 2: the | cat"),
        (["gpt", CLEAN, OTHER, "--against", "e"], "against: expected an answer"),
        (["gpt", CLEAN, OTHER, "--target", "e"], "target: only a translator has one"),
        (["gpt", CLEAN, OTHER, "--kind", "cross"], "kind: this model has self, not cross"),
        (["one", CLEAN, OTHER, "--kind", "cross"], "kind: cross-attention"),
        (["gpt", CLEAN, OTHER, "--edges", "0"], "edges: expected 1 or more, not 0"),
        (["one", CLEAN, OTHER, "--edges", "2"], "edges: an encoder-decoder"),
        (["gpt", CLEAN, OTHER, "--plot", "x.doc"], "plot: expected the name of a .png"),
    ],
)
def test_bad_input(qkv: Qkv, models: Path, arguments: list[str], message: str) -> None:
    printed = qkv("patch", models / arguments[0], *arguments[1:])
    assert printed.refused
    assert message in printed.error
    assert printed.error.count("\n") == 1
    assert printed.out == ""
