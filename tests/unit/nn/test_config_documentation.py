"""help() of a config lists its fields with their meaning, from the docstrings below them."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields
from typing import Any

import pytest

from qkv.generation.sampling_params import SamplingParams
from qkv.models.configs import CONFIGS, GPTConfig, HeadConfig
from qkv.nn.config import documented
from qkv.nn.stack_config import AdapterConfig, RotaryScaling, StackConfig
from qkv.training.finetune.finetune_config import FinetuneConfig, FinetuneRunConfig
from qkv.training.run_config import DataConfig, OptimizerConfig, RunConfig

DOCUMENTED = [
    *CONFIGS.values(), StackConfig, RotaryScaling, AdapterConfig, HeadConfig, SamplingParams,
    DataConfig, OptimizerConfig, RunConfig, FinetuneConfig, FinetuneRunConfig,
]  # fmt: skip


@pytest.mark.parametrize("config", DOCUMENTED)
def test_every_field_is_explained_once(config: type[Any]) -> None:
    text = inspect.getdoc(config) or ""
    summary, _, attributes = text.partition("\n\nAttributes:\n")
    attributes = attributes.partition("\n\nExample:\n")[0]
    assert len(summary.split()) >= 2, "what it is"
    for field in fields(config):
        assert attributes.count(f"    {field.name}: ") == 1, field.name
        meaning = attributes.partition(f"    {field.name}: ")[2]
        assert len(meaning.partition("\n    ")[0].split()) >= 1
    assert max(map(len, attributes.splitlines())) <= 80


def test_an_inherited_field_has_the_inherited_meaning() -> None:
    """GPTConfig overrides the default of width, not its meaning."""
    assert "width: Model width: numbers in the vector of a token (E)." in str(GPTConfig.__doc__)


def test_a_class_without_source_keeps_its_docstring() -> None:
    built: dict[str, Any] = {"dataclass": dataclass}
    exec(
        '@dataclass\nclass Made:\n    """Made here."""\n    x: int = 1\n    """No source."""\n',
        built,
    )
    assert documented(built["Made"]).__doc__ == "Made here.\n\nAttributes:\n    x"
