"""Detect the family of a folder whose config.json has no model_type, from its tensors' names.

Folders of 2019 have no model_type. Several families share names: RoBERTa is a BERT whose positions
start at 2, and many later models are Llamas with another norm or scale. So where the names do not
decide, the config must have no field that the family does not have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from qkv.models.convert.config_fields import TABLES

FAMILY_TENSORS: dict[str, list[str]] = {
    family: table["detected_by"] for family, table in TABLES.items() if "detected_by" in table
}
"""Patterns of names that all files of a family have."""
NAME_IT = 'add "model_type" to the file, which names the family'


def detect_family(values: Mapping[str, Any], names: Iterable[str]) -> str:
    """Return the only model_type that fits the tensors' names and the config's fields."""
    names = set(names)
    matching = [family for family in FAMILY_TENSORS if has_tensors_of(family, names)]
    if len(matching) != 1:
        what = f"are of none of {', '.join(FAMILY_TENSORS)}"
        if matching:
            what = f"could be {' or '.join(matching)}"

        raise ValueError(
            f"model_type: it is missing, and the names of the tensors {what}; {NAME_IT}"
        )

    (family,) = matching
    bare = not any(name.startswith("bert.") for name in names)
    if family == "bert" and bare and values.get("type_vocab_size") == 1:
        raise ValueError(
            f"model_type: it is missing, and the model could be a BERT or a RoBERTa; {NAME_IT}"
        )

    if family == "llama" and (unknown := sorted(values.keys() - TABLES["known_fields"]["llama"])):
        raise ValueError(
            "model_type: it is missing, and though the tensors have a Llama's names, "
            f"{unknown[0]} is not a field of its config; {NAME_IT}"
        )

    return family


def has_tensors_of(family: str, names: set[str]) -> bool:
    for pattern in FAMILY_TENSORS[family]:
        if not any(re.fullmatch(pattern, name) for name in names):
            return False

    return True
