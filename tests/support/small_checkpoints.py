"""Small checkpoints whose content is known from their step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.training.resilience.checkpoint_writer import Checkpoint, Checkpoints


def tensors_of(step: int, size: int = 100) -> dict[str, Tensor]:
    return {
        "weight": torch.randn(size, generator=torch.Generator().manual_seed(step)),
        "step": torch.tensor(step),
    }


def check(checkpoint: Checkpoint | None, step: int, size: int = 100) -> None:
    """The checkpoint of a step, as `save` writes it."""
    assert checkpoint is not None
    assert checkpoint.step == step
    assert checkpoint.state == {"seed": step}
    assert same_bits(checkpoint.tensors(), tensors_of(step, size))


def bits_of(tensor: Tensor) -> Any:
    content = tensor.contiguous().reshape(-1).view(torch.uint8).tolist()
    return tensor.dtype, tensor.shape, content


def same_bits(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    """Equal bit for bit, also where a number is NaN."""
    if first.keys() != second.keys():
        return False

    return all(bits_of(first[name]) == bits_of(second[name]) for name in first)


def save(checkpoints: Checkpoints, *steps: int, best: int | None = None) -> None:
    for step in steps:
        checkpoints.save(step, tensors_of(step), {"seed": step}, best=step == best)


@pytest.fixture
def messages() -> list[str]:
    return []


@pytest.fixture
def checkpoints(tmp_path: Path, messages: list[str]) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints", log=messages.append)


def names(checkpoints: Checkpoints) -> list[str]:
    return sorted(path.name for path in checkpoints.folder.iterdir())
