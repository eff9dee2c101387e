"""Fixtures of the GPU tests: prepared data goes to a folder of the test; float32 is exact."""

import os
from collections.abc import Iterator

# cuBLAS reads it once, at the first matrix product: deterministic training may not be the first.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import pytest
import torch

from support.training_fixtures import cache

__all__ = ["cache", "settings_of_training"]


@pytest.fixture(autouse=True)
def settings_of_training() -> Iterator[None]:
    """Training changes settings of the whole process; the next test starts without them."""
    torch.set_float32_matmul_precision("highest")
    yield
    torch.use_deterministic_algorithms(False)
