"""Read fields of a `transformers` config, and check what each side's config cannot express."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from typing import Any

from qkv.nn.stack_config import Activation, StackConfig

TABLES = tomllib.loads(files(__package__).joinpath("formats.toml").read_text("utf-8"))
"""Names that other libraries have for fields and tensors."""

ACTIVATIONS_FROM_HF: dict[str, Activation] = {
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
"""If several of theirs are one of ours, the first is written."""
ACTIVATIONS_TO_HF: dict[str, str] = {}
for theirs, ours in ACTIVATIONS_FROM_HF.items():
    ACTIVATIONS_TO_HF.setdefault(ours, theirs)


@dataclass(frozen=True)
class SpecialIds:
    """Special token ids that `transformers` keeps in the model's config; ours has the tokenizer."""

    begin: int | None = None
    end: int | None = None
    pad: int | None = None

    def check(self, vocabulary: int) -> None:
        for name in ("begin", "end", "pad"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < vocabulary:
                raise ValueError(f"{name}_id: expected 0 to {vocabulary - 1}, not {value}")

    def or_else(self, other: SpecialIds) -> SpecialIds:
        """Return these ids, with the others in place of those that are None."""
        given = {name: id for name, id in asdict(self).items() if id is not None}
        return replace(other, **given)

    def to_hf(self) -> dict[str, int | None]:
        return {"bos_token_id": self.begin, "eos_token_id": self.end, "pad_token_id": self.pad}


class Fields:
    """Checked access to their config; an absent or null field has their library's default."""

    def __init__(self, values: Mapping[str, Any], origin: str, prefix: str = "") -> None:
        self.values = values
        self.origin = origin
        self.prefix = prefix
        """The names of the fields around these, for error messages."""

    def checked(self, name: str, kinds: Any, what: str) -> Any:
        """Return a field, None if it is absent; raise if it is not one of the kinds."""
        value = self.values.get(name)
        is_other = isinstance(value, bool) and kinds is not bool  # a bool is an int in Python
        if value is not None and (is_other or not isinstance(value, kinds)):
            raise ValueError(f"{self.prefix}{name}: expected {what}, not {value!r}")

        return value

    def whole_or_none(self, name: str) -> int | None:
        value: int | None = self.checked(name, int, "a whole number")
        if value is not None and value < 0:
            raise ValueError(f"{self.prefix}{name}: expected a whole number, not {value!r}")

        return value

    def whole(self, name: str, default: int) -> int:
        value = self.whole_or_none(name)
        return default if value is None else value

    def number(self, name: str, default: float) -> float:
        value = self.checked(name, int | float, "a number")
        if value is None:
            return default
        if not math.isfinite(value):
            raise ValueError(f"{self.prefix}{name}: expected a number, not {value!r}")

        return float(value)

    def truth(self, name: str, default: bool) -> bool:
        value: bool | None = self.checked(name, bool, "true or false")
        return default if value is None else value

    def activation(self, name: str, default: str) -> Activation:
        what = f"one of {', '.join(ACTIVATIONS_FROM_HF)}"
        value = self.checked(name, str, what) or default
        if value not in ACTIVATIONS_FROM_HF:
            raise ValueError(f"{self.prefix}{name}: expected {what}, not {value!r}")

        return ACTIVATIONS_FROM_HF[value]

    def value(self, name: str, default: Any) -> Any:
        """Return a field of the type of its default: a string is an activation, None is a size."""
        if isinstance(default, bool):
            return self.truth(name, default)
        if isinstance(default, float):
            return self.number(name, default)
        if isinstance(default, str):
            return self.activation(name, default)
        if default is None:
            return self.whole_or_none(name)

        return self.whole(name, default)

    def within(self, name: str) -> Fields:
        """Return the fields of a nested object; empty if it is absent."""
        value = self.checked(name, dict, "fields in braces")
        return Fields(value or {}, self.origin, f"{self.prefix}{name}: ")

    def only(self, **allowed: Any) -> None:
        """Raise if a field has a value other than the supported one; absent or null is fine."""
        for name, supported in allowed.items():
            value = self.values.get(name)
            if value is not None and value != supported:
                raise ValueError(
                    f"{self.prefix}{name}: expected {supported!r}, the only value supported here, "
                    f"not {value!r}"
                )

    def refuse_unsupported(self) -> None:
        """Raise for fields of any family that change the model in a way we never support."""
        for name in ("quantization_config", "pruned_heads", "per_layer_config"):
            if self.values.get(name):
                raise ValueError(
                    f"{name}: not supported; expected plain weights, the same layout in every layer"
                )

        for key in self.within("auto_map").values:
            if str(key).startswith("AutoModel"):
                raise ValueError(
                    "auto_map: this model runs code of its own, which is never executed here"
                )


def none_if_equal(value: int, default: int) -> int | None:
    """Return None, our spelling of the default, for a value that equals it."""
    return None if value == default else value


def check_expressible(
    format: str,
    config: StackConfig,
    fixed: Mapping[str, Any],
    final_norm: bool,
    plain_heads: bool,
) -> None:
    """Raise if our config has values that the format cannot express."""
    for name, value in fixed.items():
        if getattr(config, name) != value:
            flag = f"--{name.replace('_', '-')} {value}"
            raise ValueError(
                f"{name}: {format}'s format can only say {value!r}, not {getattr(config, name)!r}; "
                f"qkv.save keeps such a model, and one trained with {flag} can be exported"
            )

    if config.ends_with_norm != final_norm:
        raise ValueError(
            f"final_norm: {format}'s format can only say {final_norm}, not {config.final_norm}"
        )
    if plain_heads and config.kv_heads not in (None, config.heads):
        raise ValueError(
            f"kv_heads: {format}'s format can only say heads = {config.heads}, "
            f"not {config.kv_heads}"
        )
    if plain_heads and config.width_of_head * config.heads != config.width:
        raise ValueError(
            f"head_width: {format}'s format can only say width / heads, not {config.head_width}"
        )


def activation_to_hf(format: str, activation: Activation) -> str:
    if activation not in ACTIVATIONS_TO_HF:
        raise ValueError(
            f"activation: {format}'s format can say {', '.join(ACTIVATIONS_TO_HF)}, "
            f"but not {activation}"
        )

    return ACTIVATIONS_TO_HF[activation]
