"""BERT: our model and `transformers` agree on all heads, whichever wrote the weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertModel,
)

from qkv.models import BERT, BERTConfig
from qkv.models.convert import read_folder, write_folder
from support.tiny_transformers import (
    furthest,
    ids,
    loaded,
    padding,
    randomised,
    replace_tensors,
    same_files,
    same_weights,
    saved,
    tensors,
)

V = 43
SMALL: dict[str, Any] = {
    "vocab_size": V,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 16,
}
OURS: dict[str, Any] = {
    "vocabulary": V,
    "context": 16,
    "width": 32,
    "depth": 2,
    "heads": 4,
    "hidden": 48,
}
PADDING_MASK = padding()


def theirs(kind: Any, *rest: Any, **choices: Any) -> Any:
    return randomised(kind(BertConfig(**SMALL, **choices), *rest))


def two_sentences() -> torch.Tensor:
    return (torch.arange(PADDING_MASK.shape[1]) > 4).long().expand(PADDING_MASK.shape)


def asked(model: Any, token_ids: torch.Tensor) -> Any:
    return model(token_ids, attention_mask=PADDING_MASK.long(), token_type_ids=two_sentences())


def hidden(model: BERT, token_ids: torch.Tensor) -> torch.Tensor:
    return model.hidden(token_ids, padding_mask=PADDING_MASK, segments=two_sentences())


@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"hidden_act": "gelu_new", "layer_norm_eps": 1e-3, "type_vocab_size": 3},
        {"hidden_act": "relu"},
    ],
)
def test_every_head(choices: dict[str, Any], tmp_path: Path) -> None:
    their_model = theirs(BertForPreTraining, **choices)
    our_model = read_folder(saved(their_model, tmp_path / "theirs"))
    token_ids = ids(V)
    answer = asked(their_model, token_ids)
    assert isinstance(our_model, BERT)
    x = hidden(our_model, token_ids)
    assert furthest(our_model.logits(x), answer.prediction_logits, PADDING_MASK) < 1e-4
    assert furthest(our_model.next_sentence_logits(x), answer.seq_relationship_logits) < 1e-4

    write_folder(our_model, tmp_path / "ours")
    assert same_files(tmp_path / "theirs", tmp_path / "ours")


@pytest.mark.parametrize("pooler", [True, False])
def test_the_encoder_alone(pooler: bool, tmp_path: Path) -> None:
    their_model = theirs(BertModel, pooler)
    our_model = read_folder(saved(their_model, tmp_path / "theirs"))
    token_ids = ids(V)
    answer = asked(their_model, token_ids)
    assert furthest(hidden(our_model, token_ids), answer.last_hidden_state, PADDING_MASK) < 1e-4
    if pooler:
        assert furthest(our_model.pool(hidden(our_model, token_ids)), answer.pooler_output) < 1e-4

    assert (our_model.config.mlm_head, our_model.config.pooler, our_model.config.next_sentence) == (
        False,
        pooler,
        False,
    )

    write_folder(our_model, tmp_path / "ours")
    assert same_files(tmp_path / "theirs", tmp_path / "ours")


def test_the_masked_token_head_only(tmp_path: Path) -> None:
    their_model = theirs(BertForMaskedLM)
    our_model = read_folder(saved(their_model, tmp_path / "theirs"))
    token_ids = ids(V)
    ours = our_model(token_ids, padding_mask=PADDING_MASK, segments=two_sentences())
    assert furthest(ours, asked(their_model, token_ids).logits, PADDING_MASK) < 1e-4
    write_folder(our_model, tmp_path / "ours")
    assert same_files(tmp_path / "theirs", tmp_path / "ours")


def test_next_sentence_only(tmp_path: Path) -> None:
    their_model = theirs(BertForNextSentencePrediction)
    our_model = read_folder(saved(their_model, tmp_path / "theirs"))
    token_ids = ids(V)
    assert (
        furthest(
            our_model.next_sentence_logits(hidden(our_model, token_ids)),
            asked(their_model, token_ids).logits,
        )
        < 1e-4
    )
    write_folder(our_model, tmp_path / "ours")
    assert same_files(tmp_path / "theirs", tmp_path / "ours")


@pytest.mark.parametrize(
    ("heads", "kind"),
    [
        ({}, BertForPreTraining),
        ({"next_sentence": False, "pooler": False}, BertForMaskedLM),
        ({"next_sentence": False, "mlm_head": False}, BertModel),
        ({"mlm_head": False}, BertForNextSentencePrediction),
    ],
)
def test_our_weights_in_their_model(heads: dict[str, Any], kind: Any, tmp_path: Path) -> None:
    our_model = randomised(BERT(BERTConfig(**OURS, **heads, activation="gelu_tanh")))
    write_folder(our_model, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == [kind.__name__]
    their_model = loaded(kind, tmp_path)
    token_ids = ids(V)
    x = hidden(our_model, token_ids)
    answer = asked(their_model, token_ids)
    if kind is BertForPreTraining:
        assert furthest(our_model.logits(x), answer.prediction_logits, PADDING_MASK) < 1e-4
        assert furthest(our_model.next_sentence_logits(x), answer.seq_relationship_logits) < 1e-4
    elif kind is BertForMaskedLM:
        assert furthest(our_model.logits(x), answer.logits, PADDING_MASK) < 1e-4
    elif kind is BertForNextSentencePrediction:
        assert furthest(our_model.next_sentence_logits(x), answer.logits) < 1e-4
    else:
        assert furthest(x, answer.last_hidden_state, PADDING_MASK) < 1e-4
        assert furthest(our_model.pool(x), answer.pooler_output) < 1e-4

    back = read_folder(tmp_path)
    assert back.config == our_model.config
    assert same_weights(back, our_model)


def test_words_and_a_pooler_without_next_sentence(tmp_path: Path) -> None:
    """None of their classes has both heads, but each class finds its part in the file."""
    our_model = randomised(BERT(BERTConfig(**OURS, next_sentence=False)))
    write_folder(our_model, tmp_path)
    token_ids = ids(V)
    x = hidden(our_model, token_ids)
    masked = BertForMaskedLM.from_pretrained(tmp_path).eval()
    encoder = BertModel.from_pretrained(tmp_path).eval()
    assert furthest(our_model.logits(x), asked(masked, token_ids).logits, PADDING_MASK) < 1e-4
    assert furthest(our_model.pool(x), asked(encoder, token_ids).pooler_output) < 1e-4
    assert same_weights(read_folder(tmp_path), our_model)


def test_old_names_and_copies(tmp_path: Path) -> None:
    their_model = theirs(BertForPreTraining)
    saved(their_model, tmp_path)
    new = tensors(tmp_path)
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in new.items()
    }
    old["cls.predictions.decoder.weight"] = new["bert.embeddings.word_embeddings.weight"].clone()
    old["cls.predictions.decoder.bias"] = old.pop("cls.predictions.bias")
    old["bert.embeddings.position_ids"] = torch.arange(16).unsqueeze(0)
    replace_tensors(tmp_path, old)
    token_ids = ids(V)
    our_model = read_folder(tmp_path)
    logits = our_model.logits(hidden(our_model, token_ids))
    assert furthest(logits, asked(their_model, token_ids).prediction_logits, PADDING_MASK) < 1e-4
