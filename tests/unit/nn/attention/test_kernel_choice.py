"""The kernel is chosen by the call, and a sparse mask saves work and memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from qkv.nn.attention import (
    Additive,
    Blockwise,
    Causal,
    Document,
    Fixed,
    Padding,
    Prefix,
    Strided,
    Window,
    attend,
)
from qkv.nn.attention.attend import choose
from qkv.nn.attention.kernels import block_sparse
from qkv.nn.attention.kernels.table import AttentionCall
from qkv.nn.attention.score import dot, scaled_dot

S = 2048
query, key = torch.zeros(1, 2, S, 4), torch.zeros(1, 2, S, 4)


def chosen(mask, score=scaled_dot, T: int = S, wants_weights: bool = False) -> str:
    return choose(AttentionCall(query[:, :, :T], key, key, mask), score, wants_weights)


def test_weights_and_learned_scores_need_eager() -> None:
    assert chosen(Causal(), wants_weights=True) == "eager"
    assert chosen(Window(8), wants_weights=True) == "eager"
    assert chosen(Causal(), score=Additive(4)) == "eager"
    assert chosen(None, T=0) == "eager"


def test_dense_masks_use_sdpa() -> None:
    padding_mask = torch.ones(1, S, dtype=torch.bool)
    for mask in (
        None,
        Causal(),
        Padding(padding_mask),
        Prefix(5),
        Causal() & Padding(padding_mask),
        Window(S),
        Blockwise(S),
    ):
        assert chosen(mask) == "sdpa"
        assert chosen(mask, score=dot) == "sdpa"


def test_sparse_masks_use_the_block_sparse_kernel() -> None:
    padding_mask = torch.ones(1, S, dtype=torch.bool)
    texts = (torch.arange(S) // 64).unsqueeze(0)
    sparse = [
        Window(8),
        Causal() & Window(64),
        Blockwise(64),
        Document(texts),
        Strided(32),
        Fixed(32),
        Causal() & Fixed(32),
    ]
    for mask in sparse:
        assert chosen(mask) == "block_sparse"
        assert chosen(mask & Padding(padding_mask)) == "block_sparse"


class Work(TorchDispatchMode):
    """Counts the numbers that all operations write, and the largest tensor among them."""

    def __init__(self) -> None:
        super().__init__()
        self.total = self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        actual = func(*args, **(kwargs or {}))
        for x in actual if isinstance(actual, tuple | list) else (actual,):
            if isinstance(x, Tensor):
                self.total += x.numel()
                self.largest = max(self.largest, x.numel())
        return actual


def work(mask, length: int, kernel: str | None = None) -> Work:
    x = [torch.randn(1, 1, length, 2, requires_grad=True) for _ in range(3)]
    with Work() as counted:
        attend(*x, mask=mask, kernel=kernel)[0].sum().backward()
    return counted


def texts(length: int) -> Document:
    return Document((torch.arange(length) // 64).unsqueeze(0))


@pytest.mark.parametrize(
    "mask",
    [
        lambda n: Window(32),
        lambda n: Causal() & Window(32),
        lambda n: Blockwise(32),
        texts,
        lambda n: Causal() & texts(n),
    ],
    ids=["window", "causal window", "block", "documents", "causal documents"],
)
def test_work_grows_with_the_length_when_a_mask_sees_only_near_keys(
    mask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_sparse, "SIZE", 32)
    short, long = work(mask(1024), 1024), work(mask(2048), 2048)
    assert long.total < 2.2 * short.total
    assert long.largest < 2048 * 2048 / 8
    assert long.total < work(mask(2048), 2048, "eager").total / 8


@pytest.mark.parametrize("kind", [Strided, Fixed])
def test_work_grows_with_the_length_to_the_power_of_one_and_a_half_for_sparse_patterns(
    kind,
) -> None:
    """With a stride of sqrt(length), four times the length is eight times the work."""
    short, long = work(Causal() & kind(16), 256), work(Causal() & kind(32), 1024)
    assert long.total < 8.8 * short.total
    assert long.total < work(Causal() & kind(32), 1024, "eager").total / 2
