"""Packed matrices give the same numbers, are packed once, and are forgotten."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from qkv.nn.linear.linear import Linear
from qkv.nn.linear.onednn import packed, prepacking
from qkv.nn.native import native_library


@pytest.fixture(autouse=True)
def without_native_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels in C take the fewest rows, unpacked, before oneDNN."""
    monkeypatch.setattr(native_library, "library", lambda: None)


@pytest.mark.parametrize("shape", [(1, 32), (7, 32), (3, 5, 32)])
@pytest.mark.parametrize("rows", [None, slice(0, 8), slice(8, None)])
def test_a_packed_matrix_gives_the_same(shape: tuple[int, ...], rows: slice | None) -> None:
    layer, x = Linear(32, 24), torch.randn(shape)
    with torch.inference_mode():
        right = layer(x, rows)
        with prepacking():
            assert_close(layer(x, rows), right, rtol=1e-5, atol=1e-5)
            assert_close(layer(x, rows), right, rtol=1e-5, atol=1e-5)
            assert len(packed.get() or {}) == 1
        assert packed.get() is None


def test_what_needs_a_gradient_or_is_finer_is_not_packed() -> None:
    layer, x = Linear(16, 8), torch.randn(3, 16)
    with prepacking():
        layer(x).sum().backward()
        with torch.inference_mode():
            layer.double()(x.double())
        assert packed.get() == {}
    assert layer.weight.grad is not None
