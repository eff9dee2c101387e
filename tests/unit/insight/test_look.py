"""`look` computes all parts for every architecture, and limits what a long text costs."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch.testing import assert_close

import qkv
import qkv.insight
from qkv import artifact
from qkv.insight.inspect import look_data
from qkv.insight.inspect.capture import capture_attention
from qkv.insight.look import kept_layers
from qkv.models.variants.quantize import int8
from qkv.text import train
from support.families import bert, gpt, rnn, transformer
from support.readings import reading
from support.sentences import SENTENCES
from support.small_task_models import small_tuned

TOKENIZER = train("words", SENTENCES, 80)
V = TOKENIZER.vocabulary


def small(make: Any, **options: Any) -> Any:
    return make(vocabulary=V, **options).float()


def test_every_family() -> None:
    for make, kinds in (
        (gpt, ["self"]),
        (bert, ["self"]),
        (transformer, ["encoder", "decoder", "cross"]),
    ):
        result = qkv.look(small(make), "the cat sat", tokenizer=TOKENIZER)
        assert [attention.kind for attention in result.attention] == kinds
        tokens = len(result.reading.text.ids)
        assert result.next is not None
        assert result.lens is not None
        assert result.norms is not None
        assert len(result.next) == len(result.lens[0]) == len(result.norms.residual[0]) == tokens
        assert len(result.lens) == len(result.norms.residual) == 3
    assert result.of() is result.attention[2]
    assert result.of("encoder") is result.attention[0]
    with pytest.raises(ValueError, match=r"kind: .*encoder, decoder, cross, not self"):
        result.of("self")


def test_missing_parts_are_none() -> None:
    with_attention = qkv.look(small(rnn), "the cat sat", tokenizer=TOKENIZER)
    assert [attention.kind for attention in with_attention.attention] == ["cross"]
    assert with_attention.norms is None
    without = qkv.look(small(rnn, attention="none"), "the cat sat", tokenizer=TOKENIZER)
    assert without.attention == []
    with pytest.raises(ValueError, match=r"attention: .*RNN without attention"):
        without.of()
    assert without.next is not None
    encoder = qkv.look(
        small(bert, mlm_head=False), "the cat sat", tokenizer=TOKENIZER, attribution=None
    )
    assert encoder.next is encoder.lens is encoder.attribution is None
    assert encoder.norms is not None
    tuned, tokenizer = small_tuned("classify", "bert")
    result = qkv.look(tuned, "the cat sat", tokenizer=tokenizer, attribution=None)
    assert result.attribution is not None
    assert_close(result.attribution.sum(-1), torch.ones(len(result.reading.text.ids)))


def test_a_model_by_folder_or_as_loaded(tmp_path: Path) -> None:
    artifact.save(small(gpt), tmp_path / "mine", tokenizer=TOKENIZER)
    one = qkv.look(tmp_path / "mine", "the cat sat")
    other = qkv.look(qkv.load(tmp_path / "mine"), "the cat sat", name="another")
    assert one.model == "mine"  # its name, and not the path of a person's folder
    assert other.model == "another"
    assert_close(one.attention[0].layers[1], other.attention[0].layers[1])
    model, _ = qkv.load(tmp_path / "mine")
    assert_close(qkv.look(model, "the cat sat").attention[0].layers[1], one.attention[0].layers[1])
    with pytest.raises(ValueError, match=r"tokenizer: .*qkv.load"):
        qkv.look(small(gpt), "the cat sat")


def test_weights_as_safetensors(tmp_path: Path) -> None:
    result = qkv.look(
        small(transformer), tokenizer=TOKENIZER, source="the cat sat", target="mice ran"
    )
    out = result.save(tmp_path / "weights.safetensors")
    with safe_open(out, "pt") as file:
        assert set(file.keys()) == {
            f"{kind}.{layer}" for kind in ("encoder", "decoder", "cross") for layer in (0, 1)
        }
        assert_close(file.get_tensor("cross.1"), result.of("cross").layers[1])
        assert json.loads(file.metadata()["chosen"]) == list(result.of("cross").rows.tokens)
        assert json.loads(file.metadata()["source"]) == list(result.reading.source.tokens)
    with pytest.raises(ValueError, match=r"out: .*\.html, \.png.*x\.doc"):
        result.save(tmp_path / "x.doc")


def test_one_layer_of_a_long_text_is_kept_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small(gpt, position="rotary")
    ids = torch.randint(V, (40,)).tolist()
    assert kept_layers(model, reading(ids), None) is None
    assert kept_layers(model, reading(ids), [1]) == [1]
    monkeypatch.setattr(look_data, "ALL_LAYERS_MAX_WEIGHTS", 2 * 4 * 39**2)
    assert kept_layers(model, reading(ids), None) == [0]
    assert kept_layers(model, reading(ids), None, [1]) == [1]
    assert kept_layers(model, reading(ids[1:]), None, [1]) is None
    (attention_of_text,) = capture_attention(
        model, reading(ids), layers=kept_layers(model, reading(ids), None)
    )
    assert list(attention_of_text.layers) == [0]
    assert attention_of_text.overview.shape == (2, 4, 40, 40)


def test_a_long_text_has_no_lens_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look_data, "LENS_MAX_TOKENS", 3)
    assert qkv.look(small(gpt), "the cat sat on the mat", tokenizer=TOKENIZER).lens is None
    assert (
        qkv.look(small(gpt), "the cat sat on the mat", tokenizer=TOKENIZER, lens=True).lens
        is not None
    )
    monkeypatch.setattr(look_data, "NORMS_MAX_TOKENS", 3)
    assert qkv.look(small(gpt), "the cat sat on the mat", tokenizer=TOKENIZER).norms is None
    result = qkv.look(small(gpt), "the cat sat on the mat", tokenizer=TOKENIZER, norms=True)
    assert result.norms is not None
    assert repr(result) == "Look('GPT', 6 tokens, self (2 layers of 4 heads))"


def test_a_text_too_large_for_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("qkv.insight.look")
    monkeypatch.setattr(module, "free_memory", lambda: 100)
    with pytest.raises(ValueError, match=r"text: .*3 tokens .*memory"):
        qkv.look(small(gpt), "the cat sat", tokenizer=TOKENIZER)


def test_a_notebook_displays_a_page() -> None:
    shown = qkv.look(small(gpt), "the cat sat", tokenizer=TOKENIZER)._repr_html_()
    assert shown.startswith('<iframe srcdoc="')
    inside = shown.split('srcdoc="')[1].split('"')[0]
    assert "<" not in inside
    assert len(inside) > 10_000


def test_an_int8_model() -> None:
    model = small(gpt)
    eight = qkv.look(int8(model), "the cat sat on the mat", tokenizer=TOKENIZER, attribution=True)
    plain = qkv.look(model, "the cat sat on the mat", tokenizer=TOKENIZER)
    assert_close(eight.attention[0].layers[1], plain.attention[0].layers[1], rtol=0, atol=0.1)
    assert eight.norms is not None
    assert plain.norms is not None
    for one, other in zip(eight.norms.gradient[1:], plain.norms.gradient[1:], strict=True):
        assert_close(one[:-1], other[:-1], rtol=0.3, atol=0.02)


def test_every_public_name_of_insight_is_a_documented_function_or_class() -> None:
    assert qkv.insight.__all__ == sorted(qkv.insight.__all__)
    for name in qkv.insight.__all__:
        text = getattr(qkv.insight, name).__doc__
        assert "Example:" in text, name
