"""The tests do check the shapes that annotations promise, and can turn that off."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import TypeCheckError

from qkv.nn.attention.score import dot


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
