"""qkv look: every view of every family at the terminal, as a page and as a picture; bad input."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

from qkv import artifact
from qkv.insight.look import look
from qkv.models import GPT, RNN, GPTConfig, RNNConfig
from support.command_fixtures import Qkv

TEXT = "the cat sat on the mat"


@pytest.mark.parametrize(
    "view",
    ["walk", "model", "head", "heads", "lines", "next", "lens", "norms", "numbers", "attribution"],
)
@pytest.mark.parametrize("model", ["gpt", "bert", "one"])
def test_every_view_of_every_family(qkv: Qkv, models: Path, model: str, view: str) -> None:
    target = ["--target", "the cat ran"] if model == "one" else []
    printed = qkv("look", models / model, TEXT, *target, "--view", view)
    assert printed.code == 0, printed.error
    if view not in ("model", "heads", "norms", "numbers"):
        assert "cat" in printed.out


def test_numbers_at_the_terminal_are_the_weights(qkv: Qkv, models: Path) -> None:
    printed = qkv("look", models / "bert", "the cat sat", "--layer", "0", "--head", "1")
    weights = look(models / "bert", "the cat sat").attention[0].layers[0][1]
    rows = [line.split() for line in printed.out.splitlines() if line.split()[:1] == ["cat"]]
    cat = weights[weights.shape[0] - 3]
    assert rows[0][1:] == [f"{weight:.2f}" for weight in cat.tolist()]


def test_the_walk_of_a_chosen_head(qkv: Qkv, models: Path, tmp_path: Path) -> None:
    at = ["--view", "walk", "--layer", "0", "--head", "1", "--token", "1"]
    printed = qkv("look", models / "gpt", TEXT, *at)
    assert printed.out.startswith("Self-attention, layer 0, head 1: token 1, cat")
    assert "hidden" in printed.out
    open_mask = qkv("look", models / "gpt", TEXT, *at, "--mask", "none")
    assert "hidden" not in open_mask.out

    # A page opens with it.
    assert qkv("look", models / "gpt", TEXT, *at, "--out", tmp_path / "walk.html").code == 0
    page = (tmp_path / "walk.html").read_text(encoding="utf-8")
    assert 'id="qkv.walk.self.0.1"' in page
    assert '"view":"walk","kind":"self","layer":0,"head":1' in page
    refused = qkv("look", models / "gpt", TEXT, "--view", "walk", "--layer", "0", "--head", "9")
    assert refused.code != 0
    assert "head: expected 0 to" in refused.error


def test_the_own_translation_and_a_target(qkv: Qkv, models: Path) -> None:
    translated = qkv(
        "look", models / "one", "--source", "the cat sat", "--kind", "encoder", "--view", "head"
    )
    targeted = qkv(
        "look", models / "one", "--source", "the cat sat", "--target", "mice ran", "--view", "lines"
    )
    assert translated.code == targeted.code == 0
    assert "encoder" in translated.out
    assert "mice" in targeted.out


def test_an_rnn_with_attention(qkv: Qkv, models: Path, tmp_path: Path) -> None:
    tokenizer = artifact.load(models / "one").tokenizer
    model = RNN(RNNConfig(vocabulary=tokenizer.vocabulary, width=16))
    artifact.save(model, tmp_path / "rnn", tokenizer=tokenizer)
    assert "cat" in qkv("look", tmp_path / "rnn", "the cat sat").out
    assert qkv("look", tmp_path / "rnn", "the cat sat", "--out", tmp_path / "rnn.html").code == 0
    refused = qkv("look", tmp_path / "rnn", "the cat sat", "--view", "norms")
    assert refused.refused
    assert "an RNN has no residual stream" in refused.error


def test_files(qkv: Qkv, models: Path, tmp_path: Path) -> None:
    for ending in ("html", "png", "svg", "pdf", "safetensors"):
        out = tmp_path / f"look.{ending}"
        printed = qkv("look", models / "gpt", TEXT, "--out", out)
        assert printed.code == 0, printed.error
        assert str(out) in printed.out.replace("\n", "")
        assert out.stat().st_size > 500

    ElementTree.parse(tmp_path / "look.svg")
    assert_close(
        load_file(tmp_path / "look.safetensors")["self.0"],
        look(models / "gpt", TEXT).attention[0].layers[0],
    )


def test_words_are_joined(qkv: Qkv, models: Path) -> None:
    pieces = qkv("look", models / "gpt", "unbelievable cats", "--view", "lines")
    joined = qkv("look", models / "gpt", "unbelievable cats", "--view", "lines", "--words")
    assert len(joined.out.splitlines()) < len(pieces.out.splitlines())
    assert "unbelievable" in joined.out


def test_without_the_mask(qkv: Qkv, models: Path, tmp_path: Path) -> None:
    for mask in ("causal", "none"):
        assert (
            qkv(
                "look",
                models / "gpt",
                TEXT,
                "--mask",
                mask,
                "--out",
                tmp_path / f"{mask}.safetensors",
            ).code
            == 0
        )

    masked = load_file(tmp_path / "causal.safetensors")["self.0"]
    free = load_file(tmp_path / "none.safetensors")["self.0"]
    assert not masked.triu(1).any()
    assert (free > 0).all()
    assert "only a GPT's causal mask" in qkv("look", models / "bert", TEXT, "--mask", "none").error


def test_positions(qkv: Qkv, models: Path, tmp_path: Path) -> None:
    printed = qkv("look", models / "gpt", "--view", "positions")
    assert "learned positions" in printed.out
    assert (
        qkv("look", models / "one", "--view", "positions", "--out", tmp_path / "positions.svg").code
        == 0
    )
    ElementTree.parse(tmp_path / "positions.svg")


def test_text_from_a_file_and_through_a_pipe(qkv: Qkv, models: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    direct = qkv("look", models / "bert", TEXT)
    assert qkv("look", models / "bert", "--data", tmp_path / "text.txt").out == direct.out
    assert qkv("look", models / "bert", typed=TEXT).out == direct.out


WRONG: dict[str, tuple[list[str], str]] = {
    "no text": (["gpt"], r"qkv: text: there is nothing to read"),
    "no such layer": (["gpt", TEXT, "--layer", "7"], r"qkv: layer: expected 0 to 0"),
    "no such head": (["gpt", TEXT, "--head", "7"], r"qkv: head: expected 0 to 1"),
    "another kind": (["gpt", TEXT, "--kind", "cross"], r"qkv: kind: .*self, not cross"),
    "an unknown ending": (["gpt", TEXT, "--out", "look.doc"], r"qkv: out: .*\.html"),
    "a source for a GPT": (["gpt", "--source", TEXT], r"qkv: source: a GPT reads one text"),
    "too long": (["gpt", "cat " * 200], r"qkv: text: \d+ tokens .*context of 32"),
    "no model": (["nothing", TEXT], r"qkv: .*nothing"),
    "text twice": (["gpt", TEXT, "--data", "text.txt"], r"qkv: text: a file is given"),
    "two layers": (["gpt", TEXT, "--layer", "0", "0"], r"qkv: layer: one view shows one layer"),
    "no file": (["gpt", "--data", "missing.txt"], r"qkv: missing\.txt: cannot be read"),
}


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("case", WRONG)
def test_bad_input(qkv: Qkv, models: Path, case: str) -> None:
    (model, *rest), message = WRONG[case]
    printed = qkv("look", models / model, *rest)
    assert printed.refused
    assert torch.is_grad_enabled()
    assert re.search(message, printed.error), printed.error
    assert printed.error.count("\n") == 1


def test_markup_is_text(qkv: Qkv, models: Path) -> None:
    """Markup in a text is printed, also that of rich."""
    printed = qkv("look", models / "gpt", "[red]cat[/red] <b>", "--view", "lines", "--words")
    assert printed.code == 0
    shown = "".join(line.split()[0] for line in printed.out.splitlines()[2:])
    assert shown.replace("␣", "") == "[red]cat[/red]<b>"


def test_a_long_text_shows_one_layer(
    qkv: Qkv, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = artifact.load(models / "gpt").tokenizer
    config = GPTConfig(
        vocabulary=tokenizer.vocabulary, position="rotary", width=16, depth=3, heads=2
    )
    artifact.save(GPT(config), tmp_path / "deep", tokenizer=tokenizer)
    monkeypatch.setattr("qkv.insight.inspect.look_data.ALL_LAYERS_MAX_WEIGHTS", 100)
    assert qkv("look", tmp_path / "deep", TEXT, "--out", tmp_path / "w.safetensors").code == 0
    assert set(load_file(tmp_path / "w.safetensors")) == {"self.0"}
    assert (
        qkv(
            "look",
            tmp_path / "deep",
            TEXT,
            "--layer",
            "2",
            "1",
            "--out",
            tmp_path / "w.safetensors",
        ).code
        == 0
    )

    assert set(load_file(tmp_path / "w.safetensors")) == {"self.1", "self.2"}
