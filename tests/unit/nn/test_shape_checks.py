"""The tests do check the shapes that annotations promise, and can turn that off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from jaxtyping import Float, TypeCheckError
from torch import Tensor

from qkv.nn.attention.score import dot
from support.shape_checks import checked, lazily_checked

check = lazily_checked(typechecker=checked)


def test_a_shape_that_breaks_its_annotation_is_refused() -> None:
    with pytest.raises(TypeCheckError, match="D=3"):
        dot(torch.randn(2, 3), torch.randn(2, 4))


@pytest.mark.usefixtures("without_shape_checks")
def test_without_the_checks_torch_speaks() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        dot(torch.randn(2, 3), torch.randn(2, 4))


@pytest.mark.usefixtures("qkv_unchecked")
def test_the_unchecked_copy_has_no_checks() -> None:
    from qkv.nn.attention.score import dot as unchecked

    assert unchecked is not dot
    assert not hasattr(unchecked, "__wrapped__")
    assert hasattr(dot, "__wrapped__")


@check
def repeated(x: Float[Tensor, "N D"], times: int) -> Float[Tensor, "N D"]:
    """The promised shape only for one time."""
    return x.repeat(times, 1)


@check
def adds(amount: float) -> Callable[[Tensor], Tensor]:
    @check
    def add(x: Float[Tensor, "N N"]) -> Float[Tensor, "N N"]:
        return x[: None if amount else 1] + amount

    return add


@check
def rows(x: Float[Tensor, "N D"]) -> Iterator[Tensor]:
    yield from x


@check
@dataclass
class Lookup:
    """A query and keys of its width."""

    query: Float[Tensor, "D"]
    keys: Float[Tensor, "N D"]


def test_a_result_that_breaks_its_annotation_is_refused() -> None:
    assert repeated(torch.ones(2, 3), times=1).shape == (2, 3)
    with pytest.raises(TypeCheckError, match=r"return value of .*repeated(.|\n)*N=2"):
        repeated(torch.ones(2, 3), 2)
    with pytest.raises(TypeCheckError, match=r"parameters of .*repeated"):
        repeated(torch.ones(2, 3), "2")


def test_each_inner_function_computes_with_its_own_values_and_is_checked() -> None:
    one, two, wrong = adds(1.0), adds(2.0), adds(0.0)
    assert one(torch.zeros(2, 2)).sum() == 4
    assert two(torch.zeros(2, 2)).sum() == 8
    assert one(torch.zeros(2, 2)).sum() == 4
    with pytest.raises(TypeCheckError, match="parameters of"):
        two(torch.zeros(2, 3))
    with pytest.raises(TypeCheckError, match="return value of"):
        wrong(torch.zeros(2, 2))


def test_generators_and_dataclasses_are_checked() -> None:
    assert len(list(rows(torch.zeros(3, 2)))) == 3
    with pytest.raises(TypeCheckError):
        rows(torch.zeros(3))

    assert Lookup(torch.zeros(2), torch.zeros(3, 2)).keys.shape == (3, 2)
    with pytest.raises(TypeCheckError):
        Lookup(torch.zeros(2), torch.zeros(3, 3))


@check
class Repeat:
    """Repeats its rows, which keeps the promised shape only for one time."""

    def __init__(self, times: int) -> None:
        self.times = times

    @check
    def forward(self, x: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
        return x.repeat(self.times, 1)


def test_equal_calls_pass_once_and_others_are_checked() -> None:
    """Another object and another shape are other calls."""
    good, bad = Repeat(1), Repeat(2)
    for _ in range(3):
        good.forward(torch.ones(2, 3))

    with pytest.raises(TypeCheckError):
        bad.forward(torch.ones(2, 3))
    with pytest.raises(TypeCheckError):
        good.forward(torch.ones(2))
    with pytest.raises(TypeCheckError):
        bad.forward(torch.ones(2, 3))  # what has failed has not passed
