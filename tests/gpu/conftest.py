"""Fixtures of the GPU tests: prepared data goes to a folder of the test; float32 is exact."""

import pytest
import torch

from support.training_fixtures import cache

__all__ = ["cache", "exact_float32"]


@pytest.fixture(autouse=True)
def exact_float32() -> None:
    """Training switches TF32 on for the whole process; the next test starts without it."""
    torch.set_float32_matmul_precision("highest")
