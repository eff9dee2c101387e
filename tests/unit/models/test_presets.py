"""Presets have the published sizes, and configs survive JSON."""

from __future__ import annotations

import json
from functools import cache

import pytest
import torch

from qkv.models import PRESETS, build, count_parameters, preset
from qkv.models.registry import from_json, to_json

EXACT = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "smollm2-135m": 134_515_008,
    "llama-7b": 6_738_415_616,
    "llama3-8b": 8_030_261_248,
}

count = cache(count_parameters)


@pytest.mark.parametrize("name", EXACT)
def test_exact_sizes(name: str) -> None:
    assert count(preset(name)) == EXACT[name]


@pytest.mark.parametrize("name", [name for name, p in PRESETS.items() if p.published is not None])
def test_sizes_are_the_published_ones(name: str) -> None:
    assert count(preset(name)) / 1e6 == pytest.approx(PRESETS[name].published, rel=0.031)


def test_the_listed_parameter_counts_are_those_of_the_built_models() -> None:
    assert {name: count(preset(name)) for name in PRESETS} == {
        name: entry.parameters for name, entry in PRESETS.items()
    }


def test_counting_allocates_no_weights() -> None:
    """The largest preset has 175 billion parameters."""
    with torch.device("meta"):
        model = build(preset("gpt3-175b"))

    assert all(parameter.is_meta for parameter in model.parameters())
    assert sum(parameter.numel() for parameter in model.parameters()) > 174e9


@pytest.mark.parametrize("name", PRESETS)
def test_a_config_survives_json(name: str) -> None:
    config = preset(name)
    assert from_json(json.loads(json.dumps(to_json(config)))) == config


def test_a_config_needs_only_what_differs_from_the_defaults() -> None:
    config = from_json({"family": "gpt", "depth": 3})
    assert config == type(config)(depth=3)


def test_every_preset_has_a_source() -> None:
    assert all(p.source for p in PRESETS.values())
