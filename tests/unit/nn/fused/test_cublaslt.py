"""Plans of cuBLASLt are bounded, and the library's objects are freed: with a stand-in for it."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from qkv.nn.fused import cublaslt
from qkv.nn.fused.cublaslt import GELU_DERIVATIVE, MAX_PLANS, Plan, plan_for

CPU = torch.device("cpu")


class Library:
    """Counts the objects that were created and are not destroyed."""

    def __init__(self) -> None:
        self.numbers = itertools.count(1)
        self.living: dict[int, str] = {}
        self.algorithms = 1
        """What the heuristic finds."""

    def __getattr__(self, name: str) -> Any:
        if name.endswith("Create"):
            return lambda created, *options: self.create(name, created)
        if name.endswith("Destroy"):
            return lambda created: self.destroy(name, created)

        return lambda *arguments: 0

    def create(self, name: str, created: Any) -> int:
        number = next(self.numbers)
        created._obj.value = number
        self.living[number] = name.removesuffix("Create")
        return 0

    def destroy(self, name: str, created: Any) -> int:
        assert self.living.pop(created.value) == name.removesuffix("Destroy")
        return 0

    def cublasLtMatmulAlgoGetHeuristic(self, *arguments: Any) -> int:
        arguments[-1]._obj.value = self.algorithms
        return 0


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    stand_in = Library()
    monkeypatch.setattr(cublaslt, "library", lambda: stand_in)
    monkeypatch.setattr(cublaslt, "handle", lambda device: None)
    plan_for.cache_clear()
    yield stand_in
    plan_for.cache_clear()
    gc.collect()


def plan(rows: int) -> Plan:
    return plan_for(rows, 8, 16, False, GELU_DERIVATIVE, torch.bfloat16, CPU)


def test_equal_products_share_a_plan(library: Library) -> None:
    assert plan(4) is plan(4)
    assert sorted(library.living.values()) == ["cublasLtMatmulDesc"] + 3 * ["cublasLtMatrixLayout"]


def test_the_oldest_plans_are_destroyed(library: Library) -> None:
    for rows in range(MAX_PLANS + 5):
        plan(rows)

    gc.collect()
    assert len(library.living) == 4 * MAX_PLANS
    plan_for.cache_clear()
    gc.collect()
    assert not library.living


def test_a_plan_in_use_outlives_its_place_in_the_cache(library: Library) -> None:
    used = plan(1)
    plan_for.cache_clear()
    gc.collect()
    assert used.description.value in library.living
    del used
    gc.collect()
    assert not library.living


def test_a_product_without_algorithm_leaves_nothing_behind(library: Library) -> None:
    library.algorithms = 0
    with pytest.raises(RuntimeError, match="no algorithm"):
        plan(1)

    gc.collect()
    assert not library.living
