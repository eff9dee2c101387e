"""The recurrent language model equals its equations, trains, generates, and is saved and loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import qkv
from qkv.cli import dispatch
from qkv.generation import generate
from qkv.models import RNNConfig, RNNLMConfig, build
from qkv.models.registry import from_json, to_json
from support.families import RNN_LM_KINDS, E, V, rnn_lm, words

B, T = 2, 7


def test_a_plain_cell_is_its_equation() -> None:
    model = rnn_lm(cell="rnn")
    ids = words(B, T)
    cells = model.layers.cells
    h = torch.zeros(B, E, dtype=torch.float64)
    for position in range(T):
        x = model.embedding.weight[ids[:, position]]
        read = x @ cells.weight_ih_l0.T + cells.bias_ih_l0
        h = torch.tanh(read + h @ cells.weight_hh_l0.T + cells.bias_hh_l0)
        assert_close(model(ids)[:, position], h @ model.embedding.weight.T)


@pytest.mark.parametrize("kind", RNN_LM_KINDS)
def test_padding_after_the_tokens_changes_nothing(kind: str) -> None:
    model = rnn_lm(**RNN_LM_KINDS[kind])
    padding_mask = torch.arange(T) < torch.tensor([[T], [3]])
    ids = words(B, T)
    logits = model(ids, padding_mask=padding_mask)
    assert_close(logits[1:, :3], model(ids[1:, :3]))
    with pytest.raises(ValueError, match="after the tokens"):
        model(ids, padding_mask=padding_mask.flip(1))


def test_prompts_of_unequal_length_are_generated_as_alone() -> None:
    model = rnn_lm()
    prompts = [[3, 1, 2], [5], [4, 4]]
    together = generate(model, prompts, length=6, temperature=0.0)
    for prompt, ids in zip(prompts, together, strict=True):
        whole = torch.tensor([prompt])
        for _ in range(6):
            whole = torch.cat([whole, model(whole)[:, -1:].argmax(-1)], dim=1)

        assert ids == whole[0, len(prompt) :].tolist()


def test_it_generates_beyond_its_context() -> None:
    model = rnn_lm(context=4)
    assert len(generate(model, [[1, 2, 3]], length=9, temperature=0.0)[0]) == 9


def test_wrong_inputs_are_refused() -> None:
    model = rnn_lm()
    with pytest.raises(ValueError, match="documents"):
        model(words(B, T), documents=torch.zeros(B, T, dtype=torch.long))
    with pytest.raises(ValueError, match="vocabulary"):
        model(torch.full((1, 2), V))
    with pytest.raises(TypeError, match="RecurrentState"):
        model(words(B, T), state=qkv.nn.cache.KeyValueCache())
    state = model.start()
    model.decode(words(B, 1), state)
    with pytest.raises(ValueError, match="2 rows, and the input has 3"):
        model.decode(words(3, 1), state)


def test_a_config_of_an_older_version_has_no_residuals() -> None:
    values = to_json(RNNConfig(width=8, depth=2))
    del values["residual"]
    assert from_json(values) == RNNConfig(width=8, depth=2)
    names = build(from_json(values)).state_dict()
    assert "encoder.cells.weight_ih_l1" in names  # as it was


@pytest.mark.usefixtures("without_shape_checks")
def test_it_trains_and_generates_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    text = tmp_path / "my.txt"
    text.write_text("the cat sat on the mat\n" * 60)
    out = tmp_path / "run"
    flags = ["--width", "16", "--context", "16", "--batch-tokens", "64", "--tokenizer", "words"]
    dispatch(["train", "rnn-lm", "--data", str(text), "--out", str(out), "--steps", "4", *flags])
    assert json.loads((out / "config.json").read_text())["family"] == "rnn-lm"

    model, tokenizer = qkv.load(out)
    assert model.config == RNNLMConfig(
        vocabulary=tokenizer.vocabulary, context=16, width=16, depth=2
    )
    capsys.readouterr()
    dispatch(["generate", str(out), "the cat", "--length", "5", "--temperature", "0"])
    assert capsys.readouterr().out.strip()


@pytest.mark.usefixtures("without_shape_checks")
def test_texts_that_are_kept_apart_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    text = tmp_path / "my.txt"
    text.write_text("the cat sat on the mat\n" * 60)
    out = str(tmp_path / "run")
    flags = ["--data", str(text), "--out", out, "--steps", "2", "--no-across-documents"]
    with pytest.raises(ValueError, match="across_documents"):
        dispatch(["train", "rnn-lm", *flags])
