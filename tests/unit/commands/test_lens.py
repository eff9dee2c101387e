"""qkv lens: training writes a lens that a text is then read with; bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qkv import artifact
from qkv.insight.inspect.model_input import read
from qkv.insight.lenses.tuned_lens import TunedLens, tuned_lens
from support.command_fixtures import Qkv
from support.sentences import SENTENCES

TEXT = "the cat sat"


def test_train_and_read(qkv: Qkv, models: Path, tmp_path: Path) -> None:
    book, out = tmp_path / "book.txt", tmp_path / "lens.safetensors"
    book.write_text("\n\n".join(SENTENCES), encoding="utf-8")
    flags = ["--data", book, "--out", out, "--steps", "5"]
    printed = qkv("lens", models / "gpt", *flags)
    assert printed.code == 0, printed.error
    assert "embedding" in printed.out
    values = json.loads(qkv("lens", models / "gpt", *flags, "--json").out)
    assert len(values["tuned_lens"]) == 1

    model, tokenizer = artifact.load(models / "gpt")
    assert tokenizer is not None
    reading = read(model, tokenizer, TEXT)
    layers = tuned_lens(model, tokenizer, reading, TunedLens.load(out), top=2)
    flags = ["--lens", out, "--top", "2"]
    values = json.loads(qkv("lens", models / "gpt", TEXT, *flags, "--json").out)
    found = [guess["probability"] for guess in values["tuned_lens"][0]]
    assert found == pytest.approx([guess.probability for guess in layers[0][-1]], abs=1e-6)
    printed = qkv("lens", models / "gpt", TEXT, *flags)
    assert printed.code == 0, printed.error
    assert "tuned lens" in printed.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "data: give --data and --out to train"),
        ([TEXT], "lens: a text is read with a trained lens"),
        (["--data", "book.txt", "--out", "x", "--limit", "0"], "limit: expected 1 or more"),
    ],
)
def test_bad_input(qkv: Qkv, models: Path, arguments: list[str], message: str) -> None:
    printed = qkv("lens", models / "gpt", *arguments)
    assert printed.refused
    assert message in printed.error
