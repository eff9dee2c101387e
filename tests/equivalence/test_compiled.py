"""Inside torch.compile every kernel still gives what the eager equation gives, in one graph."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

pytestmark = pytest.mark.usefixtures("qkv_unchecked", "fresh_compiler")


@pytest.mark.parametrize("kernel", ["eager", "sdpa", "block_sparse"])
@pytest.mark.parametrize("name", ["causal", "window", "padding", "strided"])
def test_compiled_equals_eager(name: str, kernel: str) -> None:
    from qkv.nn.attention import Causal, Padding, Strided, Window, attend

    padding_mask = torch.ones(2, 12, dtype=torch.bool)
    padding_mask[0, 9:] = False
    mask = {
        "causal": Causal(),
        "window": Causal() & Window(3),
        "padding": Causal() & Padding(padding_mask),
        "strided": Causal() & Strided(3),
    }[name]

    def run(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attend(query, key, value, mask=mask, kernel=kernel)[0]

    x = [
        torch.randn(2, heads, 12, 4, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2)
    ]
    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)(*x)
    expected = attend(*x, mask=mask, kernel="eager")[0]
    assert_close(compiled, expected)
    for actual, right in zip(
        torch.autograd.grad(compiled.square().sum(), x),
        torch.autograd.grad(expected.square().sum(), x),
        strict=True,
    ):
        assert_close(actual, right)


@pytest.mark.parametrize("B", [1, 2])
def test_compiled_documents_equal_eager(B: int) -> None:
    """Where documents begin and end is data, which compiled code may not read on the host."""
    from qkv.nn.attention import Causal, Document, attend

    texts = (torch.arange(512) // 64).expand(B, -1).contiguous()
    x = [
        torch.randn(B, heads, 512, 4, dtype=torch.float64, requires_grad=True)
        for heads in (4, 2, 2)
    ]

    def run(query: Tensor, key: Tensor, value: Tensor, texts: Tensor) -> Tensor:
        return attend(query, key, value, mask=Causal() & Document(texts))[0]

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)(*x, texts)
    assert_close(compiled, attend(*x, mask=Causal() & Document(texts), kernel="eager")[0])


@pytest.mark.parametrize("name", ["strided", "fixed"])
def test_compiled_sparse_patterns_equal_eager(name: str) -> None:
    """Forward and backward are operators of their own, which are not traced."""
    from qkv.nn.attention import Causal, Fixed, Strided, attend

    mask = Causal() & (Strided(3) if name == "strided" else Fixed(3, 2))

    def run(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attend(query, key, value, mask=mask, kernel="sparse_flash")[0]

    x = [
        torch.randn(2, heads, 14, 4, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2)
    ]
    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)(*x)
    expected = attend(*x, mask=mask, kernel="eager")[0]
    assert_close(compiled, expected)
    actual = torch.autograd.grad(compiled.square().sum(), x)
    assert_close(actual, torch.autograd.grad(expected.square().sum(), x))
