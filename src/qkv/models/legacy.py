"""Names that version 0.6 wrote into files, and today's names for them.

Configs lie in config.json of an artifact, in run.json of a training run and in the header of an
adapter. Weights lie in the artifact, in its checkpoints and in the adapter. Everything that reads
one of them passes through here, so that old files stay loadable; nothing writes old names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")

CONFIG_KEYS = {"norm_place": "norm_placement", "word_head": "mlm_head", "body": "backbone"}
FAMILIES = {"tuned": "task_model"}
WEIGHT_PREFIXES = {"body.": "backbone."}


def rename_config_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config's JSON object under today's keys and family name, its backbone's too.

    Raises:
        ValueError: If a key is present under its old and its new name.
    """
    renamed: dict[str, Any] = {}
    for key, value in values.items():
        new_key = CONFIG_KEYS.get(key, key)
        if new_key in renamed:
            raise ValueError(f"{new_key}: given twice, once by an old name; remove one")

        if new_key == "backbone" and isinstance(value, Mapping):
            value = rename_config_keys(value)

        renamed[new_key] = value

    family = renamed.get("family")
    if isinstance(family, str):
        renamed["family"] = FAMILIES.get(family, family)

    return renamed


def rename_weight(name: str) -> str:
    """Return today's name of a weight, a module or an optimizer's tensor for it."""
    for old_prefix, new_prefix in WEIGHT_PREFIXES.items():
        if name.startswith(old_prefix):
            return new_prefix + name.removeprefix(old_prefix)

    return name


def rename_weights(weights: Mapping[str, T]) -> dict[str, T]:
    """Return the weights under today's names; if two have one name, the later one stays."""
    return {rename_weight(name): weight for name, weight in weights.items()}
