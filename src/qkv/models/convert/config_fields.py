"""Configs, theirs and ours, checked field by field: what one side cannot express is refused by
name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qkv.nn.stack_config import Activation, StackConfig

ACTIVATIONS_IN: dict[str, Activation] = {
    "relu": "relu",
    "relu2": "relu2",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
ACTIVATIONS_OUT: dict[Activation, str] = {
    "relu": "relu",
    "relu2": "relu2",
    "gelu": "gelu",
    "gelu_tanh": "gelu_new",
    "silu": "silu",
}


@dataclass(frozen=True)
class SpecialIds:
    """Ids that other libraries keep in the model's config; ours belong to the tokenizer."""

    begin: int | None = None
    end: int | None = None
    pad: int | None = None

    def check(self, vocabulary: int) -> None:
        for name in ("begin", "end", "pad"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < vocabulary:
                raise ValueError(f"{name}_id: expected 0 to {vocabulary - 1}, not {value}")

    def out(self) -> dict[str, int | None]:
        return {"bos_token_id": self.begin, "eos_token_id": self.end, "pad_token_id": self.pad}


class Fields:
    """Their config. A field that is absent or null has the default that their library gives it."""

    def __init__(self, values: Mapping[str, Any], origin: str, inside: str = "") -> None:
        self.values, self.origin, self.inside = values, origin, inside

    def whole(self, name: str, default: int) -> int:
        value = self.whole_or_none(name)
        return default if value is None else value

    def whole_or_none(self, name: str) -> int | None:
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ValueError(f"{self.inside}{name}: expected a whole number, not {value!r}")

        return value

    def number(self, name: str, default: float) -> float:
        value = self.values.get(name)
        if value is None:
            return default
        if (
            not isinstance(value, int | float)
            or isinstance(value, bool)
            or not math.isfinite(value)
        ):
            raise ValueError(f"{self.inside}{name}: expected a number, not {value!r}")

        return float(value)

    def truth(self, name: str, default: bool) -> bool:
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ValueError(f"{self.inside}{name}: expected true or false, not {value!r}")

        return value

    def activation(self, name: str, default: str) -> Activation:
        value = self.values.get(name)
        value = default if value is None else value
        if not isinstance(value, str) or value not in ACTIVATIONS_IN:
            raise ValueError(
                f"{self.inside}{name}: expected one of {', '.join(ACTIVATIONS_IN)}, not {value!r}"
            )

        return ACTIVATIONS_IN[value]

    def within(self, name: str) -> Fields:
        """The fields inside this one; none if it is absent."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, dict):
            raise ValueError(f"{self.inside}{name}: expected fields in braces, not {value!r}")

        return Fields(value or {}, self.origin, f"{self.inside}{name}: ")

    def only(self, **allowed: Any) -> None:
        """Fields that would change the computation in a way we do not have; absent, null or as
        allowed is fine.
        """
        for name, value in allowed.items():
            found = self.values.get(name)
            if found is not None and found != value:
                raise ValueError(
                    f"{self.inside}{name}: expected {value!r}, the only value supported here, not {found!r}"
                )

    def no_surprises(self) -> None:
        """What any config may ask for and we never do."""
        for name in ("quantization_config", "pruned_heads", "per_layer_config"):
            if self.values.get(name):
                raise ValueError(
                    f"{name}: not supported; expected plain weights, the same layout in every layer"
                )

        if any(str(key).startswith("AutoModel") for key in self.within("auto_map").values):
            raise ValueError(
                "auto_map: this model runs code of its own, which is never executed here"
            )


def expect(format: str, config: StackConfig, **wanted: Any) -> None:
    """Our config must have these values, or the format cannot hold the model."""
    for name, value in wanted.items():
        if getattr(config, name) != value:
            flag = f"--{name.replace('_', '-')} {value}"
            raise ValueError(
                f"{name}: {format}'s format can only say {value!r}, not {getattr(config, name)!r}; qkv.save keeps "
                f"such a model, and one trained with {flag} can be exported"
            )


def expect_plain_heads(format: str, config: StackConfig) -> None:
    """As many key and value heads as heads, which together are as wide as the model."""
    if config.kv_heads not in (None, config.heads):
        raise ValueError(
            f"kv_heads: {format}'s format can only say heads = {config.heads}, not {config.kv_heads}"
        )
    if config.width_of_head * config.heads != config.width:
        raise ValueError(
            f"head_width: {format}'s format can only say width / heads, not {config.head_width}"
        )


def expect_final_norm(format: str, config: StackConfig, present: bool) -> None:
    if config.ends_with_norm != present:
        raise ValueError(
            f"final_norm: {format}'s format can only say {present}, not {config.final_norm}"
        )


def activation_out(format: str, config: StackConfig) -> str:
    if config.activation not in ACTIVATIONS_OUT:
        raise ValueError(
            f"activation: {format}'s format can say {', '.join(ACTIVATIONS_OUT)}, but not {config.activation}"
        )

    return ACTIVATIONS_OUT[config.activation]
