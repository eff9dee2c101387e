"""Fixtures of the GPU tests: prepared data goes to a folder of the test; float32 is exact."""

import os
import warnings
from collections.abc import Iterator

# cuBLAS reads it once, at the first matrix product: deterministic training may not be the first.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import pytest
import torch

from support.training_fixtures import cache

__all__ = ["cache", "context_of_autograd", "settings_of_training"]


@pytest.fixture(scope="session", autouse=True)
def context_of_autograd() -> None:
    """PyTorch warns if its autograd thread begins with a matrix product: warnings are errors here.

    It begins with this one, whichever test is the first.
    """
    if not torch.cuda.is_available():
        return

    x = torch.ones(2, 2, device="cuda", requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (x @ x).sum().backward()


@pytest.fixture(autouse=True)
def settings_of_training() -> Iterator[None]:
    """Training changes settings of the whole process; the next test starts without them."""
    torch.set_float32_matmul_precision("highest")
    yield
    torch.use_deterministic_algorithms(False)
