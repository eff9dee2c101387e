"""qkv sae: weights, features and a page; the same seed gives the same numbers; bad input."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from qkv.insight.dictionary.sparse_autoencoder import SparseAutoencoder
from support.command_fixtures import Qkv
from support.sentences import SENTENCES


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_text("\n\n".join(SENTENCES) + "\n<script>alert(1)</script>", encoding="utf-8")
    return path


def test_features_of_a_layer(qkv: Qkv, models: Path, tmp_path: Path, book: Path) -> None:
    out = tmp_path / "features"
    flags = ["--layer", "0", "--data", book, "--out", out, "--steps", "20", "--active", "4"]
    printed = qkv("sae", models / "gpt", *flags)
    assert printed.code == 0, printed.error
    assert "variance explained" in " ".join(printed.out.split())
    autoencoder = SparseAutoencoder.load(out / "autoencoder.safetensors")
    assert autoencoder.config == (16, 128, "top-k", 4, 0)
    values = json.loads((out / "features.json").read_text())
    first = values["list"][0]
    text = first["texts"][0]
    assert max(text["activity"]) == pytest.approx(first["largest"], abs=1e-3)
    assert text["activity"][text["at"]] == max(text["activity"])
    page = (out / "index.html").read_text()
    assert page.count("<section") == len(values["list"])
    assert "<script" not in page
    written = re.sub(r"<[^>]*>", "", page)
    assert any(sentence[:12] in written for sentence in SENTENCES)  # tokens with their spaces

    again = json.loads(qkv("sae", models / "gpt", *flags, "--json").out)
    assert again["loss"] == values["loss"]
    assert again["variance_explained"] == values["variance_explained"]


def test_bad_input(qkv: Qkv, models: Path, tmp_path: Path, book: Path) -> None:
    flags = ["--data", book, "--out", tmp_path / "out"]
    printed = qkv("sae", models / "gpt", "--layer", "1", *flags)
    assert printed.refused
    assert "layer: expected 0 to 0, not 1" in printed.error
    printed = qkv("sae", models / "one", "--layer", "0", *flags)
    assert printed.refused
    assert "expected a GPT or a BERT" in printed.error
