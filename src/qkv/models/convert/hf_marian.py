"""Marian's translators as `transformers` stores them: a Transformer with sinusoids in halves."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from qkv.models.configs import Tied, TransformerConfig
from qkv.models.convert.config_fields import Fields, SpecialIds, none_if_equal
from qkv.models.convert.hf_format import SUPPORTED, Format, family_table
from qkv.models.convert.weight_rules import Weights
from qkv.nn.position import sinusoidal
from qkv.nn.stack_config import Sinusoid

TABLE = family_table("marian")
POSITIONS = TABLE["constants"]


SOURCE = "model.encoder.embed_tokens.weight"
TARGET = "model.decoder.embed_tokens.weight"
OUTPUT = "lm_head.weight"


def more_from_hf(fields: Fields, weights: Weights) -> dict[str, Any]:
    source_vocabulary = fields.whole("vocab_size", 58101)
    vocabulary = fields.whole("decoder_vocab_size", source_vocabulary) or source_vocabulary
    depth = fields.whole("encoder_layers", 12)
    context = fields.whole("max_position_embeddings", 1024)

    return {
        "vocabulary": vocabulary,
        "source_vocabulary": none_if_equal(source_vocabulary, vocabulary),
        "decoder_depth": none_if_equal(fields.whole("decoder_layers", 12), depth),
        "heads": same_in_both(fields, "encoder_attention_heads", "decoder_attention_heads", 16),
        "hidden": same_in_both(fields, "encoder_ffn_dim", "decoder_ffn_dim", 4096),
        "sinusoid": sinusoid_of(weights, context, fields.whole("d_model", 1024)),
        "tied": tied_from_hf(fields),
        "logit_bias": "final_logits_bias" in weights,
    }


def same_in_both(fields: Fields, encoder: str, decoder: str, default: int) -> int:
    """Return a size that encoder and decoder must share, as ours do."""
    encoder_size = fields.whole(encoder, default)
    decoder_size = fields.whole(decoder, default)
    if encoder_size != decoder_size:
        raise ValueError(
            f"{decoder}: expected the same as {encoder}, {encoder_size}, not {decoder_size}"
        )

    return encoder_size


def tied_from_hf(fields: Fields) -> Tied:
    shared = fields.truth("share_encoder_decoder_embeddings", True)
    tied = fields.truth("tie_word_embeddings", True)
    if tied and shared:
        return "three"
    if tied:
        return "two"
    if shared:  # versions of their library disagree on what is then shared
        raise ValueError(
            "tie_word_embeddings: expected true when share_encoder_decoder_embeddings is true"
        )

    return "none"


def sinusoid_of(weights: Weights, context: int, width: int) -> Sinusoid:
    """Return the order of sines and cosines; positions stored in a file must be sinusoids."""
    orders: list[Sinusoid] = ["halves", "interleaved"]
    for name in POSITIONS:
        if name in weights:
            table = weights[name]
            orders = [order for order in orders if is_sinusoidal(table, context, width, order)]

    if not orders:
        raise ValueError(
            "embed_positions: the file stores positions that are not the "
            f"{context} sinusoids expected"
        )

    return orders[0]


def is_sinusoidal(table: Tensor, context: int, width: int, order: Sinusoid) -> bool:
    if tuple(table.shape) != (context, width):
        return False

    expected = sinusoidal(torch.arange(context), width, order)
    rounding = 4e-3
    if table.dtype in (torch.float32, torch.float64):
        rounding = 1e-5

    return torch.allclose(table.to(expected.dtype), expected, rtol=0.0, atol=rounding)


def make_positions(config: TransformerConfig) -> dict[str, Tensor]:
    """Return the position tensors; their config cannot express an interleaved order otherwise."""
    table = sinusoidal(torch.arange(config.context), config.width, config.sinusoid)
    return dict.fromkeys(POSITIONS, table)


def more_to_hf(config: TransformerConfig) -> dict[str, Any]:
    return {
        "is_encoder_decoder": True,
        "vocab_size": config.source_vocabulary or config.vocabulary,
        "decoder_vocab_size": config.vocabulary,
        "decoder_layers": config.decoder_depth or config.depth,
        "encoder_attention_heads": config.heads,
        "decoder_attention_heads": config.heads,
        "encoder_ffn_dim": config.width_of_hidden,
        "decoder_ffn_dim": config.width_of_hidden,
        "share_encoder_decoder_embeddings": config.tied == "three",
        "tie_word_embeddings": config.tied != "none",
    }


def ids_to_hf(config: TransformerConfig, ids: SpecialIds) -> dict[str, int | None]:
    """Return their fields of special ids; padding is the last id unless another is given."""
    pad = ids.pad
    if pad is None:
        pad = min(config.source_vocabulary or config.vocabulary, config.vocabulary) - 1

    return {
        **ids.to_hf(),
        "pad_token_id": pad,
        "decoder_start_token_id": pad if ids.begin is None else ids.begin,
        "forced_eos_token_id": ids.end,
    }


def embedding_names(config: TransformerConfig) -> dict[str, tuple[str, ...]]:
    """Return the names of the embedding, which is tied three ways, two ways or not at all."""
    embedding: tuple[str, ...] = (TARGET, OUTPUT)
    if config.tied == "three":
        embedding = ("model.shared.weight", SOURCE, TARGET, OUTPUT)

    return {"embedding.token.weight": embedding}


FORMAT = Format(
    **TABLE,
    config=TransformerConfig,
    fixed={
        "position": "sinusoidal",
        **SUPPORTED,
        "norm_placement": "after",
        "norm_epsilon": 1e-5,
    },
    more_from_hf=more_from_hf,
    more_to_hf=more_to_hf,
    ids_to_hf=ids_to_hf,
    more_tensors=embedding_names,
    make_constants=make_positions,
)
