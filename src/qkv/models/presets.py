"""The published models by name; presets.toml lists them."""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from qkv.models.configs import CONFIGS, Config
from qkv.nn.stack_config import RotaryScaling

ABOUT = {"parameters", "published", "source"}


@dataclass(frozen=True)
class Preset:
    """A named config and where it comes from."""

    config: Config
    parameters: int
    """Parameters as counted in the built model; counting them anew takes seconds."""
    source: str
    published: float | None = None
    """Parameters as stated by the source, in millions; None where it states none."""


def read_presets() -> dict[str, Preset]:
    """Read presets.toml; a preset may be like a named group of fields."""
    tables = tomllib.loads(files("qkv.models").joinpath("presets.toml").read_text("utf-8"))
    presets: dict[str, Preset] = {}
    for name, table in tables["preset"].items():
        values: dict[str, Any] = {**tables["like"].get(table.pop("like", ""), {}), **table}
        about = {key: values.pop(key) for key in ABOUT & values.keys()}
        if "rotary_scaling" in values:
            values["rotary_scaling"] = RotaryScaling(**values["rotary_scaling"])

        presets[name] = Preset(CONFIGS[values.pop("family")](**values), **about)

    return presets


PRESETS: dict[str, Preset] = read_presets()


def preset(name: str) -> Config:
    """Return the config of a published model.

    Args:
        name: One of `PRESETS`, for example "gpt2" or "bert-base".

    Returns:
        A frozen config; `dataclasses.replace` makes a variant of it.

    Raises:
        ValueError: If there is no preset of that name; the message suggests similar ones.

    Example:
        >>> from qkv.models import preset
        >>> preset("gpt2").depth
        12
    """
    if name in PRESETS:
        return PRESETS[name].config

    name = str(name)
    hint = f"expected one of {', '.join(PRESETS)}"
    if similar := difflib.get_close_matches(name, PRESETS, n=3, cutoff=0.5):
        hint = f"did you mean {' or '.join(similar)}?"

    raise ValueError(f"preset: there is no {name!r}; {hint}")
