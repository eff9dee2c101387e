from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from qkv import artifact
from qkv.insight.inspect.activation_patching import patch
from qkv.insight.inspect.model_input import read
from qkv.models import RNN, RNNConfig
from support.command_fixtures import Qkv

CLEAN, OTHER = "the cat sat", "the sat cat"


@pytest.mark.parametrize("at", ["residual", "heads", "feed_forward"])
def test_what_comes_back(qkv: Qkv, models: Path, tmp_path: Path, at: str) -> None:
    model, tokenizer = artifact.load(models / "gpt")
    assert tokenizer is not None
    clean, corrupted = (read(model, tokenizer, text) for text in (CLEAN, OTHER))
    assert len(clean.text.ids) == len(corrupted.text.ids)
    (right,), (wrong,) = tokenizer.encode("a"), tokenizer.encode("e")
    expected = patch(model, clean, corrupted, right, wrong, at)  # type: ignore[arg-type]
    words = ["patch", models / "gpt", CLEAN, OTHER, "--answer", "a", "--against", "e", "--at", at]
    plot = tmp_path / "patch.svg"
    printed = qkv(*words, "--plot", plot)
    assert printed.code == 0, printed.error
    assert f"logit of a less that of e: clean {expected.clean:.3f}" in " ".join(printed.out.split())
    assert "Where the answer comes from" in plot.read_text()
    said = json.loads(qkv(*words, "--json").out)
    assert said["restored"] == [pytest.approx(row, abs=1e-5) for row in expected.restored.tolist()]
    assert (said["answer"], said["against"], said["measure"]) == ("a", "e", "difference")
    assert any("/" in token for token in said["tokens"])  # the one that is another


def test_a_bert_at_its_mask(qkv: Qkv, models: Path) -> None:
    said = qkv("patch", models / "bert", "the cat [mask] .", "the mat [mask] .", "--json")
    assert said.code == 0, said.error
    assert json.loads(said.out)["measure"] == "probability"
    last = json.loads(said.out)["restored"][-1]
    assert last[3] == pytest.approx(
        1, abs=0.02
    )  # [start] the cat [mask]; fresh weights differ by little more than rounding
    printed = qkv("patch", models / "bert", "the cat sat", "the mat sat")
    assert "clean: a BERT is asked for a masked word" in printed.error


@pytest.mark.parametrize(
    "how", [[], ["--kind", "decoder", "--target", "the dog"], ["--kind", "cross", "--at", "heads"]]
)
def test_a_translator(qkv: Qkv, models: Path, how: list[str]) -> None:
    printed = qkv("patch", models / "one", CLEAN, OTHER, *how)
    assert printed.code == 0, printed.error
    assert "probability of" in printed.out


def test_a_picture_of_strange_signs_can_be_read(qkv: Qkv, models: Path, tmp_path: Path) -> None:
    plot = tmp_path / "patch.svg"
    printed = qkv(
        "patch", models / "gpt", "the cat\x1b[0m", "the cat\x1b[1m", "--answer", "a", "--plot", plot
    )
    assert printed.code == 0, printed.error
    ElementTree.parse(plot)
    printed = qkv("patch", models / "gpt", "the cat\x1b", "the cat\x1b\x1b")
    assert printed.error.startswith("qkv: corrupted: its text has")
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
    said = "model: an RNN has no layers of heads, so nothing in it can be patched; expected another"
    assert printed.error == f"qkv: {said}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gpt", CLEAN, CLEAN], "corrupted: the answer is the same as after the clean prompt"),
        (["gpt", CLEAN, "the mat"], "tokens and the clean one"),
        (
            ["gpt", CLEAN, OTHER, "--answer", "qq"],
            "answer: expected one token, and 'qq' is 2: q | q",
        ),
        (["gpt", CLEAN, OTHER, "--answer", " the cat"], "and ' the cat' is 2: the | cat"),
        (["gpt", CLEAN, OTHER, "--against", "e"], "against: expected an answer, too"),
        (["gpt", CLEAN, OTHER, "--target", "e"], "target: only a translator has one; leave it out"),
        (["gpt", CLEAN, OTHER, "--kind", "cross"], "kind: this model has self, not cross"),
        (["one", CLEAN, OTHER, "--kind", "cross"], "kind: cross-attention has heads alone"),
        (
            ["gpt", CLEAN, OTHER, "--plot", "x.doc"],
            "plot: expected the name of a .png, .svg or .pdf file, not x.doc",
        ),
    ],
)
def test_bad_input(qkv: Qkv, models: Path, words: list[str], message: str) -> None:
    printed = qkv("patch", models / words[0], *words[1:])
    assert printed.refused
    assert message in printed.error
    assert printed.error.count("\n") == 1
    assert printed.out == ""
