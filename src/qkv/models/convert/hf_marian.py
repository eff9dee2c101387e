"""Marian's translators as `transformers` stores them: a Transformer with sinusoids in halves."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from qkv.models.configs import Tied, TransformerConfig
from qkv.models.convert.config_fields import (
    Fields,
    SpecialIds,
    activation_to_hf,
    expect,
    expect_final_norm,
    expect_plain_heads,
)
from qkv.models.convert.weight_rules import Format, WeightRule, Weights, layer_norm, linear, stacked
from qkv.nn.position import sinusoidal
from qkv.nn.stack_config import Sinusoid

POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")


def config_from_hf(fields: Fields, weights: Weights) -> TransformerConfig:
    fields.only(is_encoder_decoder=True, is_decoder=False, static_position_embeddings=True)
    fields.only(
        normalize_before=False,
        normalize_embedding=False,
        add_final_layer_norm=False,
        add_bias_logits=False,
    )

    width = fields.whole("d_model", 1024)
    context = fields.whole("max_position_embeddings", 1024)
    source_vocabulary = fields.whole("vocab_size", 58101)
    vocabulary = fields.whole("decoder_vocab_size", source_vocabulary) or source_vocabulary
    depth = fields.whole("encoder_layers", 12)
    decoder_depth = fields.whole("decoder_layers", 12)

    return TransformerConfig(
        vocabulary=vocabulary,
        source_vocabulary=none_if_equal(source_vocabulary, vocabulary),
        context=context,
        width=width,
        depth=depth,
        decoder_depth=none_if_equal(decoder_depth, depth),
        heads=same_in_both(fields, "encoder_attention_heads", "decoder_attention_heads", 16),
        hidden=same_in_both(fields, "encoder_ffn_dim", "decoder_ffn_dim", 4096),
        activation=fields.activation("activation_function", "gelu"),
        norm_epsilon=1e-5,
        sinusoid=sinusoid_of(weights, context, width),
        tied=tied_from_hf(fields),
        scaled_embedding=fields.truth("scale_embedding", False),
        logit_bias="final_logits_bias" in weights,
        dropout=fields.number("dropout", 0.1),
        attention_dropout=fields.number("attention_dropout", 0.0),
    )


def same_in_both(fields: Fields, encoder: str, decoder: str, default: int) -> int:
    """Return a size that encoder and decoder must share, as ours do."""
    encoder_size = fields.whole(encoder, default)
    decoder_size = fields.whole(decoder, default)
    if encoder_size != decoder_size:
        raise ValueError(
            f"{decoder}: expected the same as {encoder}, {encoder_size}, not {decoder_size}"
        )

    return encoder_size


def none_if_equal(value: int, default: int) -> int | None:
    """Return None, our spelling of the default, for a value that equals it."""
    if value == default:
        return None

    return value


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


def config_to_hf(config: TransformerConfig, ids: SpecialIds) -> dict[str, Any]:
    expect("Marian", config, position="sinusoidal", join="sum", norm="layer")
    expect("Marian", config, norm_placement="after", norm_epsilon=1e-5)
    expect("Marian", config, qkv_bias=True, output_bias=True, feed_forward_bias=True)
    expect("Marian", config, window=None, sparse="none")
    expect_final_norm("Marian", config, False)
    expect_plain_heads("Marian", config)

    source_vocabulary = config.source_vocabulary or config.vocabulary
    pad = ids.pad
    if pad is None:
        pad = min(source_vocabulary, config.vocabulary) - 1

    begin = ids.begin
    if begin is None:
        begin = pad

    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "is_encoder_decoder": True,
        "vocab_size": source_vocabulary,
        "decoder_vocab_size": config.vocabulary,
        "max_position_embeddings": config.context,
        "d_model": config.width,
        "encoder_layers": config.depth,
        "decoder_layers": config.decoder_depth or config.depth,
        "encoder_attention_heads": config.heads,
        "decoder_attention_heads": config.heads,
        "encoder_ffn_dim": config.width_of_hidden,
        "decoder_ffn_dim": config.width_of_hidden,
        "activation_function": activation_to_hf("Marian", config),
        "scale_embedding": config.scaled_embedding,
        "share_encoder_decoder_embeddings": config.tied == "three",
        "tie_word_embeddings": config.tied != "none",
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        **ids.to_hf(),
        "pad_token_id": pad,
        "decoder_start_token_id": begin,
        "forced_eos_token_id": ids.end,
    }


def rules(config: TransformerConfig) -> list[WeightRule]:
    source = "model.encoder.embed_tokens.weight"
    target = "model.decoder.embed_tokens.weight"
    output = "lm_head.weight"

    # The embeddings, tied three ways, two ways or not at all.
    token = "embedding.token.weight"
    source_token = "source_embedding.token.weight"
    if config.tied == "three":
        copies = (source, target, output)
        table = [WeightRule(token, ("model.shared.weight",), copies=copies)]
    elif config.tied == "two":
        table = [WeightRule(token, (target,), copies=(output,))]
        table.append(WeightRule(source_token, (source,)))
    else:
        table = [WeightRule(token, (target,)), WeightRule(source_token, (source,))]

    if config.tied == "none":
        table.append(WeightRule("head.weight", (output,)))

    if config.logit_bias:
        table.append(WeightRule("logit_bias", ("final_logits_bias",), flat=True))

    for layer in range(config.depth):
        table += block(config, f"encoder.blocks.{layer}", f"model.encoder.layers.{layer}")

    for layer in range(config.decoder_depth or config.depth):
        ours = f"decoder.blocks.{layer}"
        theirs = f"model.decoder.layers.{layer}"
        table += block(config, ours, theirs)
        table += attention(config, f"{ours}.cross_attention", f"{theirs}.encoder_attn")

    return table


def block(config: TransformerConfig, ours: str, theirs: str) -> list[WeightRule]:
    return [
        *attention(config, f"{ours}.attention", f"{theirs}.self_attn"),
        *linear(f"{ours}.feed_forward.up", f"{theirs}.fc1"),
        *linear(f"{ours}.feed_forward.down", f"{theirs}.fc2"),
        *layer_norm(f"{ours}.feed_forward_residual.norm", f"{theirs}.final_layer_norm"),
    ]


def attention(config: TransformerConfig, ours: str, theirs: str) -> list[WeightRule]:
    query_key_value = (f"{theirs}.q_proj", f"{theirs}.k_proj", f"{theirs}.v_proj")
    return [
        *stacked(f"{ours}.qkv", query_key_value, (config.width,) * 3),
        *linear(f"{ours}.output", f"{theirs}.out_proj"),
        *layer_norm(f"{ours}_residual.norm", f"{theirs}_layer_norm"),
    ]


FORMAT = Format(
    name="Marian",
    architectures=("MarianMTModel",),
    config_from_hf=config_from_hf,
    config_to_hf=config_to_hf,
    rules=rules,
    prefix="model.",
    heads=("lm_head.", "final_logits_bias"),
    constants=POSITIONS,
    make_constants=make_positions,
)
