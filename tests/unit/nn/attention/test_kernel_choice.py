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
    Distance,
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
from qkv.nn.attention.kernels.sparse_pattern import regrouped_parts
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
    ]
    for mask in sparse:
        assert chosen(mask) == "block_sparse"
        assert chosen(mask & Padding(padding_mask)) == "block_sparse"


def test_causal_patterns_use_the_flash_kernels_unless_something_else_is_added() -> None:
    padding_mask = torch.ones(1, S, dtype=torch.bool)
    for pattern in (Strided(32), Fixed(32), Fixed(32, 4)):
        assert chosen(Causal() & pattern) == "sparse_flash"
        assert chosen(pattern & Causal()) == "sparse_flash"
        assert chosen(Causal() & pattern & Padding(padding_mask)) == "block_sparse"
        assert chosen(Causal() & pattern & Window(64)) == "block_sparse"
        assert chosen(Causal() & pattern, T=1) == "sdpa"
        assert chosen(Causal() & pattern, wants_weights=True) == "eager"

    call = AttentionCall(query, key, key, Causal() & Strided(32))
    slopes = Distance(torch.ones(2))
    wide = torch.zeros(1, 2, S, 8)
    for other in (
        call._replace(bias=slopes),
        call._replace(dropout=0.1),
        call._replace(value=wide),
    ):
        assert choose(other, scaled_dot, False) == "block_sparse"

    assert chosen(Causal() & Strided(S // 4)) == "sdpa"  # too few pairs are left out


@pytest.mark.parametrize(
    "change",
    [
        {"mask": Strided(32)},
        {"mask": Causal()},
        {"mask": Causal() & Strided(32) & Window(9)},
        {"bias": torch.zeros(S, S)},
        {"dropout": 0.1},
        {"value": torch.zeros(1, 2, S, 8)},
        {"query": query[:, :, :9]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_sparse_flash_refuses_what_it_cannot_compute(change: dict) -> None:
    arguments = {"query": query, "key": key, "value": key, "mask": Causal() & Strided(32)} | change
    with pytest.raises(ValueError, match="sparse_flash: expected Causal with Strided or Fixed"):
        attend(**arguments, kernel="sparse_flash")


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
    short = work(kind(16), 256)
    long = work(kind(32), 1024)
    assert long.total < 8.8 * short.total
    assert long.total < work(kind(32), 1024, "eager").total / 2


@pytest.mark.parametrize("summary", [0, 1])
def test_the_pairs_of_a_causal_pattern_grow_with_the_length_to_the_power_of_one_and_a_half(
    summary: int,
) -> None:
    assert pairs(1024, 32, summary) < 8.8 * pairs(256, 16, summary)
    assert pairs(1024, 32, summary) < 1024 * 1024 / 8


def pairs(length: int, stride: int, summary: int) -> int:
    """The scores that the flash kernels compute on a CPU."""
    x = torch.zeros(1, length, 1, 1)
    total = 0
    for part in regrouped_parts.parts(length, stride, summary):
        sequences = part.take(x, part.queries, stride)
        keys = part.take(x, part.keys, stride)
        assert sequences.shape == keys.shape
        total += sequences.numel() * sequences.shape[2]

    return total


@pytest.mark.parametrize("kind", [Strided, Fixed])
def test_the_memory_of_a_causal_pattern_grows_with_the_length(kind) -> None:
    """Nothing as large as one row of scores per query is written."""
    short = work(Causal() & kind(16), 256)
    long = work(Causal() & kind(32), 1024)
    assert long.largest <= 4 * short.largest
