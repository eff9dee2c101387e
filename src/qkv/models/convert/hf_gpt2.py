"""GPT-2 as `transformers` stores it: matrices transposed; query, key and value in one."""

from __future__ import annotations

from typing import Any

from qkv.models.convert.config_fields import (
    Fields,
    SpecialIds,
    activation_to_hf,
    expect,
    expect_final_norm,
    expect_plain_heads,
)
from qkv.models.convert.weight_rules import Format, WeightRule, Weights, layer_norm, linear
from qkv.models.gpt import GPTConfig


def config_from_hf(fields: Fields, weights: Weights) -> GPTConfig:
    fields.only(
        scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False
    )
    return GPTConfig(
        vocabulary=fields.whole("vocab_size", 50257),
        context=fields.whole("n_positions", 1024),
        width=fields.whole("n_embd", 768),
        depth=fields.whole("n_layer", 12),
        heads=fields.whole("n_head", 12),
        hidden=fields.whole_or_none("n_inner"),
        activation=fields.activation("activation_function", "gelu_new"),
        norm_epsilon=fields.number("layer_norm_epsilon", 1e-5),
        tied=fields.truth("tie_word_embeddings", True),
        # Their embd_pdrop may differ; ours has one dropout, and inference uses none.
        dropout=fields.number("resid_pdrop", 0.1),
        attention_dropout=fields.number("attn_pdrop", 0.1),
    )


def config_to_hf(config: GPTConfig, ids: SpecialIds) -> dict[str, Any]:
    expect("GPT-2", config, position="learned", join="sum", norm="layer", norm_placement="before")
    expect("GPT-2", config, window=None, sparse="none", scaled_embedding=False)
    expect("GPT-2", config, qkv_bias=True, output_bias=True, feed_forward_bias=True)
    expect_final_norm("GPT-2", config, True)
    expect_plain_heads("GPT-2", config)

    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": config.vocabulary,
        "n_positions": config.context,
        "n_embd": config.width,
        "n_layer": config.depth,
        "n_head": config.heads,
        "n_inner": config.hidden,
        "activation_function": activation_to_hf("GPT-2", config),
        "layer_norm_epsilon": config.norm_epsilon,
        "tie_word_embeddings": config.tied,
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.attention_dropout,
        **ids.to_hf(),
    }


def tied_copies(config: GPTConfig) -> tuple[str, ...]:
    """Return the names under which a file may repeat the embedding as the output layer."""
    if config.tied:
        return ("lm_head.weight",)

    return ()


def rules(config: GPTConfig) -> list[WeightRule]:
    table = [
        WeightRule(
            "embedding.token.weight",
            ("transformer.wte.weight",),
            copies=tied_copies(config),
        ),
        WeightRule("embedding.position.weight", ("transformer.wpe.weight",)),
        *layer_norm("stack.norm", "transformer.ln_f"),
    ]

    if not config.tied:
        table += linear("head", "lm_head", bias=False)

    for layer in range(config.depth):
        ours = f"stack.blocks.{layer}"
        theirs = f"transformer.h.{layer}"
        table += layer_norm(f"{ours}.attention_residual.norm", f"{theirs}.ln_1")
        table += linear(f"{ours}.attention.qkv", f"{theirs}.attn.c_attn", transposed=True)
        table += linear(f"{ours}.attention.output", f"{theirs}.attn.c_proj", transposed=True)
        table += layer_norm(f"{ours}.feed_forward_residual.norm", f"{theirs}.ln_2")
        table += linear(f"{ours}.feed_forward.up", f"{theirs}.mlp.c_fc", transposed=True)
        table += linear(f"{ours}.feed_forward.down", f"{theirs}.mlp.c_proj", transposed=True)

    return table


FORMAT = Format(
    name="GPT-2",
    architectures=("GPT2LMHeadModel", "GPT2Model"),
    config_from_hf=config_from_hf,
    config_to_hf=config_to_hf,
    rules=rules,
    prefix="transformer.",
    heads=("lm_head.",),
    ignored=r"\.attn\.(bias|masked_bias)$",  # the causal mask
    spellings=((".gamma", ".weight"), (".beta", ".bias")),
)
