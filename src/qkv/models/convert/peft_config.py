"""adapter_config.json of `peft`: rank, alpha and target modules of a LoRA adapter."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor

from qkv.models import legacy
from qkv.models.convert.config_fields import TABLES, Fields
from qkv.models.convert.peft_modules import PeftModules, task_type, unique_endings
from qkv.models.model import Model
from qkv.nn import lora

INITIALISATIONS = (True, False, None, "gaussian", "eva", "orthogonal")
"""Values of init_lora_weights that leave the base's weights as they are."""


class LoraPair(NamedTuple):
    """The adapter of one module: its output changes by scale * B A x."""

    A: Float[Tensor, "r E"]
    B: Float[Tensor, "R r"]
    scale: float


class LoraSettings:
    """The fields of adapter_config.json that change the computation; unsupported ones raise."""

    def __init__(self, fields: Fields) -> None:
        check_supported(fields)
        self.rank = fields.whole("r", 8)
        self.alpha = fields.number("lora_alpha", 8.0)
        self.dropout = fields.number("lora_dropout", 0.0)
        if not 0 <= self.dropout < 1:
            raise ValueError(
                f"lora_dropout: expected a probability from 0 to below 1, not {self.dropout}"
            )

        self.rank_stabilised = fields.truth("use_rslora", False)
        self.ranks = fields.within("rank_pattern")
        self.alphas = fields.within("alpha_pattern")
        self.check_patterns()

        self.targets = fields.values.get("target_modules")
        if not is_target(self.targets):
            raise ValueError(f"target_modules: expected names or a pattern, not {self.targets!r}")

        check_pattern(self.targets)
        self.some_layers = bool(
            fields.values.get("layers_to_transform") or fields.values.get("exclude_modules")
        )

    def check_patterns(self) -> None:
        if self.rank < 1:
            raise ValueError(f"r: expected 1 or more, not {self.rank}")

        for pattern in self.ranks.values:
            check_pattern(pattern)
            rank = self.ranks.whole(pattern, 0)
            if rank < 1:
                raise ValueError(f"r: expected 1 or more, not {rank}")

        for pattern in self.alphas.values:
            check_pattern(pattern)
            self.alphas.number(pattern, 0.0)

    def rank_and_scale(self, module: str) -> tuple[int, float]:
        rank = self.ranks.whole(pattern_for(module, self.ranks), self.rank)
        alpha = self.alphas.number(pattern_for(module, self.alphas), self.alpha)
        if self.rank_stabilised:
            return rank, alpha / math.sqrt(rank)

        return rank, alpha / rank

    def requires(self, module: str) -> bool:
        """Return whether a module must have an adapter."""
        if self.targets is None or self.targets == "all-linear" or self.some_layers:
            return False  # whatever the file has
        if isinstance(self.targets, str):
            return bool(re.fullmatch(self.targets, module))

        for target in self.targets:
            if f".{module}".endswith(f".{legacy.rename_weight(target)}"):
                return True

        return False


def check_supported(fields: Fields) -> None:
    """Raise for anything but a plain LoRA adapter."""
    values = fields.values
    if values.get("peft_type") != "LORA":
        raise ValueError(f"peft_type: expected LORA, not {values.get('peft_type')!r}")

    fields.only(bias="none")
    initialisation = values.get("init_lora_weights", True)
    if initialisation not in INITIALISATIONS:
        raise ValueError(
            f"init_lora_weights: {initialisation!r} changes the base's weights too; "
            "not supported here"
        )

    for name, value in values.items():
        if value and name not in TABLES["known_fields"]["peft"]:
            raise ValueError(
                f"{name}: {value!r} is not supported here; expected a plain LoRA adapter"
            )


def is_target(value: Any) -> bool:
    if isinstance(value, list):
        return all(isinstance(name, str) for name in value)

    return value is None or isinstance(value, str)


def check_pattern(pattern: Any) -> None:
    if not isinstance(pattern, str):
        return

    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r}: not a pattern that can be read ({error})") from error


def pattern_for(module: str, patterns: Fields) -> str:
    """Return the first pattern that matches the end of a module's name, or else the name."""
    for pattern in patterns.values:
        current = legacy.rename_weight(pattern)
        if re.fullmatch(rf"(.*\.)?({current})", module):
            return pattern

    return module


def config_to_peft(
    model: Model, names: PeftModules, pairs: dict[str, LoraPair], base: str | None
) -> dict[str, Any]:
    """Return adapter_config.json for the adapters of a model.

    The commonest rank and alpha are the adapter's, and others are listed by pattern.
    """
    sizes = {name: (len(pair.A), alpha_of(pair)) for name, pair in pairs.items()}
    (commonest, _), *others = Counter(sizes.values()).most_common()
    ranks: dict[str, int] = {}
    alphas: dict[str, float] = {}

    for size, _ in others:
        modules = [name for name in sizes if sizes[name] == size]
        for ending in unique_endings(modules, names.modules):
            ranks[ending], alphas[ending] = size

    return {
        "peft_type": "LORA",
        "task_type": task_type(model),
        "base_model_name_or_path": base,
        "r": commonest[0],
        "lora_alpha": commonest[1],
        "lora_dropout": next(adapters.dropout for _, _, adapters in lora.adapted(model)),
        "target_modules": unique_endings(pairs, names.modules),
        "rank_pattern": ranks,
        "alpha_pattern": alphas,
        "modules_to_save": None if model.task is None else [names.head],
        "fan_in_fan_out": names.transposed,
        "bias": "none",
        "inference_mode": True,
    }


def alpha_of(pair: LoraPair) -> float:
    """Return scale * rank, without the rounding error of an integer alpha."""
    alpha = pair.scale * len(pair.A)
    if math.isclose(alpha, round(alpha), rel_tol=1e-14):
        return round(alpha)

    return alpha
