"""Llama as `transformers` stores it. Files that llama.cpp wrote (gguf.py) come through the same
table.
"""

from __future__ import annotations

from typing import Any

from qkv.models.convert.config_fields import Fields, SpecialIds, expect, expect_final_norm
from qkv.models.convert.weight_rules import Format, WeightRule, Weights, linear, stacked
from qkv.models.gpt import GPTConfig
from qkv.nn.position import RotaryScaling


def config_in(fields: Fields, weights: Weights) -> GPTConfig:
    fields.only(partial_rotary_factor=1.0)
    if fields.activation("hidden_act", "silu") != "silu":
        raise ValueError(
            f"hidden_act: expected silu, the gate of SwiGLU, not {fields.values['hidden_act']!r}"
        )

    width = fields.whole("hidden_size", 4096)
    heads = fields.whole("num_attention_heads", 32)
    kv_heads = fields.whole("num_key_value_heads", heads)
    head_width = fields.whole_or_none("head_dim")
    attention_bias = fields.truth("attention_bias", False)
    base, scaling = rotary_in(fields)

    return GPTConfig(
        vocabulary=fields.whole("vocab_size", 32000),
        context=fields.whole("max_position_embeddings", 2048),
        width=width,
        depth=fields.whole("num_hidden_layers", 32),
        heads=heads,
        kv_heads=None if kv_heads == heads else kv_heads,
        head_width=None if heads and head_width == width / heads else head_width,
        hidden=fields.whole("intermediate_size", 11008),
        activation="swiglu",
        norm="rms",
        norm_epsilon=fields.number("rms_norm_eps", 1e-6),
        position="rotary",
        rotary_base=base,
        rotary_scaling=scaling,
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        feed_forward_bias=fields.truth("mlp_bias", False),
        tied=fields.truth("tie_word_embeddings", False),
        attention_dropout=fields.number("attention_dropout", 0.0),
    )


def rotary_in(fields: Fields) -> tuple[float, RotaryScaling | None]:
    """New files keep it all in rope_parameters; older ones have rope_theta beside rope_scaling."""
    place = "rope_scaling" if fields.values.get("rope_scaling") else "rope_parameters"
    inner = fields.within(place)
    inner.only(partial_rotary_factor=1.0)
    base = inner.number("rope_theta", fields.number("rope_theta", 10000.0))
    kind = inner.values.get("rope_type") or inner.values.get("type") or "default"
    if kind == "default":
        return base, None
    if kind != "llama3":
        raise ValueError(f"{place}: rope_type: expected default or llama3, not {kind!r}")

    original = inner.whole(
        "original_max_position_embeddings", fields.whole("max_position_embeddings", 2048)
    )
    missing = [
        name
        for name in ("factor", "low_freq_factor", "high_freq_factor")
        if inner.values.get(name) is None
    ]
    if missing:
        raise ValueError(f"{place}: {missing[0]}: rope_type llama3 needs it")

    try:
        return base, RotaryScaling(
            factor=inner.number("factor", 8.0),
            low=inner.number("low_freq_factor", 1.0),
            high=inner.number("high_freq_factor", 4.0),
            original_context=fields.whole("original_max_position_embeddings", original),
        )
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error


def rotary_out(config: GPTConfig) -> dict[str, Any]:
    """Both layouts, so that older and newer versions read the same."""
    scaling = config.rotary_scaling
    stretched: dict[str, Any] = {"rope_type": "default"}
    if scaling is not None:
        stretched = {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low,
            "high_freq_factor": scaling.high,
            "original_max_position_embeddings": scaling.original_context,
        }

    return {
        "rope_parameters": {**stretched, "rope_theta": config.rotary_base},
        "rope_theta": config.rotary_base,
        "rope_scaling": None if scaling is None else stretched,
    }


def config_out(config: GPTConfig, ids: SpecialIds) -> dict[str, Any]:
    expect(
        "Llama", config, position="rotary", norm="rms", norm_placement="before", activation="swiglu"
    )
    expect("Llama", config, window=None, sparse="none", scaled_embedding=False)
    if config.output_bias != config.qkv_bias:
        raise ValueError(
            f"output_bias: Llama's format needs qkv_bias = {config.qkv_bias}, not {config.output_bias}"
        )

    expect_final_norm("Llama", config, True)
    if config.width % config.heads:
        raise ValueError(
            f"heads: Llama's format needs a divisor of width {config.width}, not {config.heads}"
        )

    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocabulary,
        "max_position_embeddings": config.context,
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads or config.heads,
        "head_dim": config.width_of_head,
        "intermediate_size": config.width_of_hidden,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_epsilon,
        **rotary_out(config),
        "attention_bias": config.qkv_bias,
        "mlp_bias": config.feed_forward_bias,
        "tie_word_embeddings": config.tied,
        "attention_dropout": config.attention_dropout,
        **ids.out(),
    }


def rules(config: GPTConfig) -> list[WeightRule]:
    kv_rows = (config.kv_heads or config.heads) * config.width_of_head
    qkv_rows = (config.heads * config.width_of_head, kv_rows, kv_rows)
    hidden = config.width_of_hidden
    table = [
        WeightRule(
            "embedding.token.weight",
            ("model.embed_tokens.weight",),
            copies=("lm_head.weight",) if config.tied else (),
        ),
        WeightRule("stack.norm.gain", ("model.norm.weight",)),
    ]

    if not config.tied:
        table += linear("head", "lm_head", bias=False)

    for layer in range(config.depth):
        ours, theirs = f"stack.blocks.{layer}", f"model.layers.{layer}"
        query_key_value = tuple(f"{theirs}.self_attn.{name}_proj" for name in "qkv")
        gate_up = (f"{theirs}.mlp.gate_proj", f"{theirs}.mlp.up_proj")
        bias, feed_forward_bias = config.qkv_bias, config.feed_forward_bias
        table.append(
            WeightRule(
                f"{ours}.attention_residual.norm.gain", (f"{theirs}.input_layernorm.weight",)
            )
        )
        table += stacked(f"{ours}.attention.qkv", query_key_value, qkv_rows, bias=bias)
        table += linear(f"{ours}.attention.output", f"{theirs}.self_attn.o_proj", bias=bias)
        table.append(
            WeightRule(
                f"{ours}.feed_forward_residual.norm.gain",
                (f"{theirs}.post_attention_layernorm.weight",),
            )
        )

        table += stacked(
            f"{ours}.feed_forward.up", gate_up, (hidden, hidden), bias=feed_forward_bias
        )
        table += linear(
            f"{ours}.feed_forward.down", f"{theirs}.mlp.down_proj", bias=feed_forward_bias
        )

    return table


FORMAT = Format(
    name="Llama",
    architectures=("LlamaForCausalLM", "LlamaModel"),
    config_in=config_in,
    config_out=config_out,
    rules=rules,
    prefix="model.",
    heads=("lm_head.",),
    ignored=r"rotary_emb\.inv_freq$",
)
