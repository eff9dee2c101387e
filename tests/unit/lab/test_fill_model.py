"""The BERT that `qkv fill english` trains."""

from io import StringIO

import pytest
from rich.console import Console

from qkv import artifact
from qkv.commands import fill
from qkv.lab import fill_model


def test_the_bert_is_trained_once(tmp_path):
    said = StringIO()
    out = fill_model.trained_bert(Console(file=said), tmp_path / "bert", steps=2)
    model = artifact.load(out).model
    assert model.predicts == "masked"

    written = (out / "metrics.jsonl").read_bytes()
    assert fill_model.trained_bert(Console(file=said), out) == out
    assert (out / "metrics.jsonl").read_bytes() == written


def test_fill_answers_with_the_name(tmp_path, monkeypatch, capsys):
    out = fill_model.trained_bert(Console(file=StringIO()), tmp_path / "bert", steps=2)
    monkeypatch.setattr(fill_model, "trained_bert", lambda console: out)
    fill.run("english", ("I took my [mask] for a walk",))
    assert capsys.readouterr().out.count("%") == 5


def test_an_encoder_names_the_way_out():
    with pytest.raises(ValueError, match="qkv fill english"):
        fill.run("minilm", ("I took my [mask] for a walk",))
