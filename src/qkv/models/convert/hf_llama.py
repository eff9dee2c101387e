"""Llama as `transformers` stores it; GGUF files (gguf_model.py) use the same table."""

from __future__ import annotations

from typing import Any

from qkv.models.convert.config_fields import Fields, none_if_equal
from qkv.models.convert.hf_format import PLAIN, Format, family_table
from qkv.models.convert.weight_rules import Weights
from qkv.models.gpt import GPTConfig
from qkv.nn.position import RotaryScaling


def more_from_hf(fields: Fields, weights: Weights) -> dict[str, Any]:
    if fields.activation("hidden_act", "silu") != "silu":
        raise ValueError(
            f"hidden_act: expected silu, the gate of SwiGLU, not {fields.values['hidden_act']!r}"
        )

    width = fields.whole("hidden_size", 4096)
    heads = fields.whole("num_attention_heads", 32)
    head_width = fields.whole_or_none("head_dim")
    if heads and head_width == width / heads:
        head_width = None  # our default; a config that was written by us reads back as it was

    base, scaling = rotary_from_hf(fields)

    return {
        "kv_heads": none_if_equal(fields.whole("num_key_value_heads", heads), heads),
        "head_width": head_width,
        "rotary_base": base,
        "rotary_scaling": scaling,
        "output_bias": fields.truth("attention_bias", False),
    }


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


def rotary_to_hf(base: float, scaling: RotaryScaling | None) -> dict[str, Any]:
    """Return both layouts, so that older and newer versions of `transformers` read the same."""
    rope_scaling = None if scaling is None else scaling_to_hf(scaling)
    rope_parameters = {**(rope_scaling or {"rope_type": "default"}), "rope_theta": base}

    return {
        "rope_parameters": rope_parameters,
        "rope_theta": base,
        "rope_scaling": rope_scaling,
    }


def scaling_to_hf(scaling: RotaryScaling) -> dict[str, Any]:
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low,
        "high_freq_factor": scaling.high,
        "original_max_position_embeddings": scaling.original_context,
    }


def more_to_hf(config: GPTConfig) -> dict[str, Any]:
    if config.output_bias != config.qkv_bias:
        raise ValueError(
            f"output_bias: Llama's format needs qkv_bias = {config.qkv_bias}, "
            f"not {config.output_bias}"
        )
    if config.width % config.heads:
        raise ValueError(
            f"heads: Llama's format needs a divisor of width {config.width}, not {config.heads}"
        )

    return {
        "num_key_value_heads": config.kv_heads or config.heads,
        "head_dim": config.width_of_head,
        "hidden_act": "silu",
        **rotary_to_hf(config.rotary_base, config.rotary_scaling),
    }


FORMAT = Format(
    **family_table("llama"),
    config=GPTConfig,
    fixed={
        "position": "rotary",
        "norm": "rms",
        "norm_placement": "before",
        "activation": "swiglu",
        "scaled_embedding": False,
        **PLAIN,
    },
    more_from_hf=more_from_hf,
    more_to_hf=more_to_hf,
)
