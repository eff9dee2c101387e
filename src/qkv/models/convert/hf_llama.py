"""Llama as `transformers` stores it; GGUF files (gguf_model.py) use the same table."""

from __future__ import annotations

from typing import Any

from qkv.models.convert.config_fields import Fields, SpecialIds, expect, expect_final_norm
from qkv.models.convert.weight_rules import Format, WeightRule, Weights, linear, stacked
from qkv.models.gpt import GPTConfig
from qkv.nn.position import RotaryScaling


def config_from_hf(fields: Fields, weights: Weights) -> GPTConfig:
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
    base, scaling = rotary_from_hf(fields)

    # None is our default for both; a config that was written by us then reads back as it was.
    our_kv_heads = None
    if kv_heads != heads:
        our_kv_heads = kv_heads

    if heads and head_width == width / heads:
        head_width = None

    return GPTConfig(
        vocabulary=fields.whole("vocab_size", 32000),
        context=fields.whole("max_position_embeddings", 2048),
        width=width,
        depth=fields.whole("num_hidden_layers", 32),
        heads=heads,
        kv_heads=our_kv_heads,
        head_width=head_width,
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


def rotary_from_hf(fields: Fields) -> tuple[float, RotaryScaling | None]:
    """Return base and scaling, from rope_parameters or the older rope_theta and rope_scaling."""
    field = "rope_parameters"
    if fields.values.get("rope_scaling"):
        field = "rope_scaling"

    inner = fields.within(field)
    inner.only(partial_rotary_factor=1.0)
    base = inner.number("rope_theta", fields.number("rope_theta", 10000.0))
    kind = inner.values.get("rope_type") or inner.values.get("type") or "default"
    if kind == "default":
        return base, None
    if kind != "llama3":
        raise ValueError(f"{field}: rope_type: expected default or llama3, not {kind!r}")

    original = inner.whole(
        "original_max_position_embeddings", fields.whole("max_position_embeddings", 2048)
    )
    for name in ("factor", "low_freq_factor", "high_freq_factor"):
        if inner.values.get(name) is None:
            raise ValueError(f"{field}: {name}: rope_type llama3 needs it")

    try:
        return base, RotaryScaling(
            factor=inner.number("factor", 8.0),
            low=inner.number("low_freq_factor", 1.0),
            high=inner.number("high_freq_factor", 4.0),
            original_context=fields.whole("original_max_position_embeddings", original),
        )
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from error


def rotary_to_hf(config: GPTConfig) -> dict[str, Any]:
    """Return both layouts, so that older and newer versions of `transformers` read the same."""
    scaling = config.rotary_scaling
    if scaling is None:
        return {
            "rope_parameters": {"rope_type": "default", "rope_theta": config.rotary_base},
            "rope_theta": config.rotary_base,
            "rope_scaling": None,
        }

    rope_scaling = {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low,
        "high_freq_factor": scaling.high,
        "original_max_position_embeddings": scaling.original_context,
    }
    return {
        "rope_parameters": {**rope_scaling, "rope_theta": config.rotary_base},
        "rope_theta": config.rotary_base,
        "rope_scaling": rope_scaling,
    }


def config_to_hf(config: GPTConfig, ids: SpecialIds) -> dict[str, Any]:
    expect(
        "Llama", config, position="rotary", norm="rms", norm_placement="before", activation="swiglu"
    )
    expect("Llama", config, window=None, sparse="none", scaled_embedding=False)
    if config.output_bias != config.qkv_bias:
        raise ValueError(
            f"output_bias: Llama's format needs qkv_bias = {config.qkv_bias}, "
            f"not {config.output_bias}"
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
        **rotary_to_hf(config),
        "attention_bias": config.qkv_bias,
        "mlp_bias": config.feed_forward_bias,
        "tie_word_embeddings": config.tied,
        "attention_dropout": config.attention_dropout,
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
            ("model.embed_tokens.weight",),
            copies=tied_copies(config),
        ),
        WeightRule("stack.norm.gain", ("model.norm.weight",)),
    ]

    if not config.tied:
        table += linear("head", "lm_head", bias=False)

    for layer in range(config.depth):
        table += block_rules(config, f"stack.blocks.{layer}", f"model.layers.{layer}")

    return table


def block_rules(config: GPTConfig, ours: str, theirs: str) -> list[WeightRule]:
    kv_rows = (config.kv_heads or config.heads) * config.width_of_head
    qkv_rows = (config.heads * config.width_of_head, kv_rows, kv_rows)
    query_key_value = (
        f"{theirs}.self_attn.q_proj",
        f"{theirs}.self_attn.k_proj",
        f"{theirs}.self_attn.v_proj",
    )
    gate_up = (f"{theirs}.mlp.gate_proj", f"{theirs}.mlp.up_proj")
    gate_up_rows = (config.width_of_hidden, config.width_of_hidden)
    attention_norm = f"{ours}.attention_residual.norm.gain"
    feed_forward_norm = f"{ours}.feed_forward_residual.norm.gain"
    bias = config.qkv_bias
    mlp_bias = config.feed_forward_bias

    return [
        WeightRule(attention_norm, (f"{theirs}.input_layernorm.weight",)),
        *stacked(f"{ours}.attention.qkv", query_key_value, qkv_rows, bias=bias),
        *linear(f"{ours}.attention.output", f"{theirs}.self_attn.o_proj", bias=bias),
        WeightRule(feed_forward_norm, (f"{theirs}.post_attention_layernorm.weight",)),
        *stacked(f"{ours}.feed_forward.up", gate_up, gate_up_rows, bias=mlp_bias),
        *linear(f"{ours}.feed_forward.down", f"{theirs}.mlp.down_proj", bias=mlp_bias),
    ]


FORMAT = Format(
    name="Llama",
    architectures=("LlamaForCausalLM", "LlamaModel"),
    config_from_hf=config_from_hf,
    config_to_hf=config_to_hf,
    rules=rules,
    prefix="model.",
    heads=("lm_head.",),
    ignored=r"rotary_emb\.inv_freq$",
)
