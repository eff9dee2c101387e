"""A look has all that every way of showing it needs, for every family; and it knows how much is too
much.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch.testing import assert_close

import qkv
from qkv import artifact
from qkv.insight import look as looking
from qkv.insight.inspect.capture import capture_attention
from qkv.insight.look import kept
from qkv.models.quantize import int8
from qkv.text import train
from support.families import bert, gpt, rnn, transformer
from support.readings import reading
from support.sentences import SENTENCES
from support.small_task_models import small_tuned

TOKENIZER = train("words", SENTENCES, 80)
V = TOKENIZER.vocabulary


def small(make: Any, **how: Any) -> Any:
    return make(vocabulary=V, **how).float()


def test_every_family() -> None:
    for make, kinds in (
        (gpt, ["self"]),
        (bert, ["self"]),
        (transformer, ["encoder", "decoder", "cross"]),
    ):
        seen = qkv.look(small(make), "the cat sat", tokenizer=TOKENIZER)
        assert [each.kind for each in seen.attention] == kinds
        places = len(seen.reading.text.ids)
        assert seen.next is not None
        assert seen.lens is not None
        assert seen.norms is not None
        assert len(seen.next) == len(seen.lens[0]) == len(seen.norms.residual[0]) == places
        assert len(seen.lens) == len(seen.norms.residual) == 3
    assert seen.of() is seen.attention[2]
    assert seen.of("encoder") is seen.attention[0]
    with pytest.raises(ValueError, match=r"kind: this model has encoder, decoder, cross, not self"):
        seen.of("self")


def test_what_a_family_has_not_is_none() -> None:
    with_attention = qkv.look(small(rnn), "the cat sat", tokenizer=TOKENIZER)
    assert [each.kind for each in with_attention.attention] == ["cross"]
    assert with_attention.norms is None
    without = qkv.look(small(rnn, attention="none"), "the cat sat", tokenizer=TOKENIZER)
    assert without.attention == []
    with pytest.raises(
        ValueError, match=r"attention: this look has none: an RNN without attention"
    ):
        without.of()
    assert without.next is not None
    encoder = qkv.look(
        small(bert, mlm_head=False), "the cat sat", tokenizer=TOKENIZER, attribution=None
    )
    assert encoder.next is encoder.lens is encoder.attribution is None
    assert encoder.norms is not None
    tuned, tokenizer = small_tuned("classify", "bert")
    seen = qkv.look(tuned, "the cat sat", tokenizer=tokenizer, attribution=None)
    assert seen.attribution is not None
    assert_close(seen.attribution.sum(-1), torch.ones(len(seen.reading.text.ids)))


def test_by_name_by_folder_or_as_loaded(tmp_path: Path) -> None:
    artifact.save(small(gpt), tmp_path / "mine", tokenizer=TOKENIZER)
    one = qkv.look(tmp_path / "mine", "the cat sat")
    other = qkv.look(qkv.load(tmp_path / "mine"), "the cat sat", name="another")
    assert one.model == str(tmp_path / "mine")
    assert other.model == "another"
    assert_close(one.attention[0].layers[1], other.attention[0].layers[1])
    model, _ = qkv.load(tmp_path / "mine")
    assert_close(qkv.look(model, "the cat sat").attention[0].layers[1], one.attention[0].layers[1])
    with pytest.raises(ValueError, match=r"tokenizer: expected the one that belongs to the model"):
        qkv.look(small(gpt), "the cat sat")


def test_weights_as_numbers(tmp_path: Path) -> None:
    seen = qkv.look(
        small(transformer), tokenizer=TOKENIZER, source="the cat sat", target="mice ran"
    )
    out = seen.save(tmp_path / "weights.safetensors")
    with safe_open(out, "pt") as file:
        assert set(file.keys()) == {
            f"{kind}.{layer}" for kind in ("encoder", "decoder", "cross") for layer in (0, 1)
        }
        assert_close(file.get_tensor("cross.1"), seen.of("cross").layers[1])
        assert json.loads(file.metadata()["chosen"]) == list(seen.of("cross").rows.tokens)
        assert json.loads(file.metadata()["source"]) == list(seen.reading.source.tokens)
    with pytest.raises(
        ValueError, match=r"out: expected the name of a \.html, \.png.* file, not .*x\.doc"
    ):
        seen.save(tmp_path / "x.doc")


def test_of_a_long_text_one_layer_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small(gpt, position="rotary")
    ids = torch.randint(V, (40,)).tolist()
    assert kept(model, reading(ids), None) is None
    assert kept(model, reading(ids), [1]) == [1]
    monkeypatch.setattr(looking, "ALL_LAYERS", 2 * 4 * 39**2)
    assert kept(model, reading(ids), None) == [0]
    assert kept(model, reading(ids), None, [1]) == [1]
    assert kept(model, reading(ids[1:]), None, [1]) is None
    (found,) = capture_attention(model, reading(ids), layers=kept(model, reading(ids), None))
    assert list(found.layers) == [0]
    assert found.overview.shape == (2, 4, 40, 40)


def test_a_long_text_has_no_lens_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "SHORT", 3)
    assert qkv.look(small(gpt), "the cat sat on the mat", tokenizer=TOKENIZER).lens is None
    assert (
        qkv.look(small(gpt), "the cat sat on the mat", tokenizer=TOKENIZER, lens_too=True).lens
        is not None
    )
    monkeypatch.setattr(looking, "MIDDLING", 3)
    assert qkv.look(small(gpt), "the cat sat on the mat", tokenizer=TOKENIZER).norms is None
    asked = qkv.look(small(gpt), "the cat sat on the mat", tokenizer=TOKENIZER, norms_too=True)
    assert asked.norms is not None
    assert repr(asked) == "Look('GPT', 6 tokens, self (2 layers of 4 heads))"


def test_more_than_memory_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "free_memory", lambda: 100)
    with pytest.raises(ValueError, match=r"text: the attention of 3 tokens needs .* GiB of memory"):
        qkv.look(small(gpt), "the cat sat", tokenizer=TOKENIZER)


def test_in_a_notebook() -> None:
    shown = qkv.look(small(gpt), "the cat sat", tokenizer=TOKENIZER)._repr_html_()
    assert shown.startswith('<iframe srcdoc="')
    inside = shown.split('srcdoc="')[1].split('"')[0]
    assert "<" not in inside
    assert len(inside) > 10_000


def test_weights_of_eight_bits() -> None:
    model = small(gpt)
    eight = qkv.look(int8(model), "the cat sat on the mat", tokenizer=TOKENIZER, attribution=True)
    plain = qkv.look(model, "the cat sat on the mat", tokenizer=TOKENIZER)
    assert_close(eight.attention[0].layers[1], plain.attention[0].layers[1], rtol=0, atol=0.1)
    assert eight.norms is not None
    assert plain.norms is not None
    for one, other in zip(eight.norms.gradient[1:], plain.norms.gradient[1:], strict=True):
        assert_close(one[:-1], other[:-1], rtol=0.3, atol=0.02)
