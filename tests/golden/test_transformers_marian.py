"""Marian: our Transformer and `transformers` give the same logits, whichever wrote the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, MarianConfig, MarianMTModel

from qkv.models import Transformer, TransformerConfig
from qkv.models.convert import read_folder, write_folder
from support.tiny_transformers import (
    T,
    edit_config,
    furthest,
    ids,
    loaded,
    padding,
    randomised,
    replace_tensors,
    same_weights,
    saved,
    tensors,
)

V = 31
SOURCE_V = 29
SMALL: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 20,
    "activation_function": "swish",
    "scale_embedding": True,
    "pad_token_id": 28,
    "decoder_start_token_id": 28,
}
ONE_VOCABULARY: dict[str, Any] = {"vocab_size": V}
TWO_VOCABULARIES: dict[str, Any] = {
    "vocab_size": SOURCE_V,
    "decoder_vocab_size": V,
    "share_encoder_decoder_embeddings": False,
}
OURS: dict[str, Any] = {
    "vocabulary": V,
    "context": 20,
    "width": 32,
    "depth": 2,
    "heads": 4,
    "hidden": 48,
}


def theirs(**choices: Any) -> Any:
    return randomised(MarianMTModel(MarianConfig(**(SMALL | choices))))


def differences(ours: Any, their_model: Any, source_vocabulary: int) -> list[float]:
    source = ids(source_vocabulary)
    target = ids(V)
    padding_mask = padding()
    target_padding_mask = padding().roll(1, 0)
    plain = furthest(ours(source, target), their_model(source, decoder_input_ids=target).logits)
    padded = furthest(
        ours(
            source,
            target,
            source_padding_mask=padding_mask,
            target_padding_mask=target_padding_mask,
        ),
        their_model(
            source,
            attention_mask=padding_mask.long(),
            decoder_input_ids=target,
            decoder_attention_mask=target_padding_mask.long(),
        ).logits,
        target_padding_mask,
    )
    return [plain, padded]


@pytest.mark.parametrize(
    ("choices", "tied"),
    [
        (ONE_VOCABULARY, "three"),
        (TWO_VOCABULARIES, "two"),
        (TWO_VOCABULARIES | {"tie_word_embeddings": False}, "none"),
        (
            ONE_VOCABULARY
            | {"scale_embedding": False, "activation_function": "relu", "decoder_layers": 2},
            "three",
        ),
    ],
)
def test_their_weights_in_our_model(choices: dict[str, Any], tied: str, tmp_path: Path) -> None:
    their_model = theirs(**choices)
    our_model = read_folder(saved(their_model, tmp_path / "theirs"))
    assert isinstance(our_model, Transformer)
    assert our_model.config.tied == tied
    assert max(differences(our_model, their_model, choices["vocab_size"])) < 1e-4

    write_folder(our_model, tmp_path / "ours")
    before = tensors(tmp_path / "theirs")
    after = tensors(tmp_path / "ours")
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert {name.split(".")[2] for name in after.keys() - before.keys()} == {"embed_positions"}


@pytest.mark.parametrize(
    "choices",
    [
        {"sinusoid": "halves", "logit_bias": True},
        {"sinusoid": "interleaved", "logit_bias": True, "activation": "silu", "decoder_depth": 3},
        {
            "tied": "two",
            "source_vocabulary": SOURCE_V,
            "logit_bias": True,
            "scaled_embedding": False,
        },
        {"tied": "none", "logit_bias": True},
    ],
)
def test_our_weights_in_their_model(choices: dict[str, Any], tmp_path: Path) -> None:
    our_model = randomised(Transformer(TransformerConfig(**OURS, **choices)))
    write_folder(our_model, tmp_path)
    their_model = loaded(AutoModelForSeq2SeqLM, tmp_path)
    assert max(differences(our_model, their_model, choices.get("source_vocabulary", V))) < 1e-4

    back = read_folder(tmp_path)
    assert back.config == our_model.config
    assert same_weights(back, our_model)


def test_a_model_without_a_bias_on_its_logits(tmp_path: Path) -> None:
    our_model = randomised(Transformer(TransformerConfig(**OURS)))
    write_folder(our_model, tmp_path)
    assert max(differences(our_model, loaded(AutoModelForSeq2SeqLM, tmp_path), V)) < 1e-4
    assert read_folder(tmp_path).config == our_model.config


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_files_that_store_their_positions(dtype: torch.dtype, tmp_path: Path) -> None:
    their_model = theirs(**ONE_VOCABULARY)
    saved(their_model, tmp_path)
    table = their_model.model.encoder.embed_positions.weight.detach().to(dtype)
    new = tensors(tmp_path)
    new["model.encoder.embed_positions.weight"] = table.clone()
    new["model.decoder.embed_positions.weight"] = table.clone()
    replace_tensors(tmp_path, new)
    assert max(differences(read_folder(tmp_path), their_model, V)) < 1e-4


def test_old_files_repeat_the_shared_embedding(tmp_path: Path) -> None:
    their_model = theirs(**ONE_VOCABULARY)
    saved(their_model, tmp_path)
    new = tensors(tmp_path)
    shared = new.pop("model.shared.weight")
    for name in ("lm_head", "model.encoder.embed_tokens", "model.decoder.embed_tokens"):
        new[f"{name}.weight"] = shared.clone()

    replace_tensors(tmp_path, new)
    edit_config(
        tmp_path, add_bias_logits=False, normalize_before=False, static_position_embeddings=True
    )
    assert max(differences(read_folder(tmp_path), their_model, V)) < 1e-4


def test_their_generate_begins_and_ends_where_we_say(tmp_path: Path) -> None:
    our_model = randomised(Transformer(TransformerConfig(**OURS)))
    write_folder(our_model, tmp_path, begin_id=5, end_id=6, pad_id=0)
    source = ids(V, 2, T)
    with torch.inference_mode():
        target = torch.full((2, 1), 5)
        for _ in range(6):
            target = torch.cat([target, our_model(source, target)[:, -1:].argmax(-1)], dim=1)

        generated = loaded(AutoModelForSeq2SeqLM, tmp_path).generate(
            source,
            attention_mask=torch.ones_like(source),
            max_new_tokens=6,
            num_beams=1,
            do_sample=False,
        )

    for mine, yours in zip(target.tolist(), generated.tolist(), strict=True):
        end = (
            yours.index(6) if 6 in yours[:-1] else len(yours) - 1
        )  # generate() forces an end into its last place
        assert mine[:end] == yours[:end]
