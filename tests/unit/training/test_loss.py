"""The loss in chunks is torch's cross-entropy, and the logits of all positions are never there at
once.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from qkv.data.batches.batch import IGNORE
from qkv.training import loss
from qkv.training.loss import loss_sum

N, E, V = 40, 5, 31


def asked(
    dtype: torch.dtype = torch.float64, *, bias: bool = True
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    features = torch.randn(N, E, dtype=dtype, requires_grad=True)
    weight = torch.randn(V, E, dtype=dtype, requires_grad=True)
    targets = torch.randint(V, (N,))
    targets[::5] = IGNORE
    return (
        features,
        weight,
        torch.randn(V, dtype=dtype, requires_grad=True) if bias else None,
        targets,
    )


def gradients(value: Tensor, *of: Tensor | None) -> list[Tensor]:
    return list(torch.autograd.grad(value, [tensor for tensor in of if tensor is not None]))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [None, 1, 7, 8, N, 100])
def test_values_and_gradients_are_those_of_cross_entropy(
    chunk: int | None, smoothing: float, bias: bool
) -> None:
    features, weight, b, targets = asked(bias=bias)
    ours = loss_sum(features, weight, b, targets, smoothing=smoothing, chunk=chunk)
    theirs = F.cross_entropy(
        F.linear(features, weight, b),
        targets,
        reduction="sum",
        label_smoothing=smoothing,
        ignore_index=IGNORE,
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    for mine, expected in zip(
        gradients(3.0 * ours, features, weight, b),
        gradients(3.0 * theirs, features, weight, b),
        strict=True,
    ):
        torch.testing.assert_close(mine, expected, rtol=1e-12, atol=1e-12)


@given(
    st.integers(1, 12),
    st.integers(2, 9),
    st.integers(1, 15),
    st.floats(0, 0.9),
    st.integers(0, 2**31),
)
def test_any_shape_any_chunk(n: int, v: int, chunk: int, smoothing: float, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    features = torch.randn(2, n, 3, generator=draw, dtype=torch.float64)
    weight = 5 * torch.randn(v, 3, generator=draw, dtype=torch.float64)
    targets = torch.randint(v, (2, n), generator=draw)
    targets[torch.rand(2, n, generator=draw) < 0.3] = IGNORE
    expected = F.cross_entropy(
        (features @ weight.T).flatten(0, 1),
        targets.flatten(),
        reduction="sum",
        label_smoothing=smoothing,
    )
    ours = loss_sum(features, weight, None, targets, smoothing=smoothing, chunk=chunk)
    torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)


def test_only_what_is_asked_for_gets_a_gradient() -> None:
    features, weight, b, targets = asked()
    expected = gradients(loss_sum(features, weight, b, targets), features, weight, b)
    for wanted in ([0], [1], [2], [0, 2]):
        tensors = [
            tensor.detach().requires_grad_(place in wanted)
            for place, tensor in enumerate([features, weight, b])
        ]
        found = gradients(
            loss_sum(*tensors, targets, chunk=7), *(tensors[place] for place in wanted)
        )
        for mine, place in zip(found, wanted, strict=True):
            torch.testing.assert_close(mine, expected[place])


def test_a_position_that_is_not_asked_is_as_if_it_were_not_there() -> None:
    features, weight, b, targets = asked()
    there = targets != IGNORE
    torch.testing.assert_close(
        loss_sum(features, weight, b, targets), loss_sum(features[there], weight, b, targets[there])
    )
    (slope,) = gradients(loss_sum(features, weight, b, targets), features)
    assert (slope[~there] == 0).all()
    assert (slope[there] != 0).any(1).all()
    assert loss_sum(features, weight, b, torch.full((N,), IGNORE)).item() == 0


def test_large_logits_do_not_overflow() -> None:
    features, weight, _, targets = asked(torch.float32)
    ours = loss_sum(1e4 * features, weight, None, targets)
    expected = F.cross_entropy(F.linear(1e4 * features, weight).double(), targets, reduction="sum")
    torch.testing.assert_close(ours.double(), expected, rtol=1e-5, atol=0)
    assert all(slope.isfinite().all() for slope in gradients(ours, features, weight))


def test_weights_finer_than_the_features_keep_their_own_dtype_in_the_gradient() -> None:
    """As float64 weights with float32 features: what float32 weights with bf16 features are
    elsewhere.
    """
    features, weight, b, targets = asked()
    coarse = features.detach().float().requires_grad_()
    ours = loss_sum(coarse, weight, b, targets, chunk=7)
    d_features, d_weight, d_bias = gradients(ours, coarse, weight, b)
    assert (d_features.dtype, d_weight.dtype, d_bias.dtype) == (
        torch.float32,
        torch.float64,
        torch.float64,
    )
    theirs = F.cross_entropy(F.linear(features, weight, b), targets, reduction="sum")
    for mine, expected in zip(
        (d_features, d_weight, d_bias), gradients(theirs, features, weight, b), strict=True
    ):
        torch.testing.assert_close(mine.double(), expected, rtol=1e-4, atol=1e-4)


class Sizes(TorchDispatchMode):
    """How many numbers each tensor has that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[int] = []

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = operation(*args, **(kwargs or {}))
        self.made += [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        return result


def test_the_logits_of_all_positions_are_never_there_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    features, weight, b, targets = asked()
    monkeypatch.setattr(loss, "CHUNK_LOGITS", 4 * V)  # what a chunk may have by default
    with Sizes() as sizes:
        loss_sum(features, weight, b, targets, smoothing=0.1).backward()
    assert features.grad is not None
    assert 4 * V in sizes.made, "the chunk's own logits"
    assert max(sizes.made) <= max(4 * V, V * E, N * E) < N * V


def test_nothing_of_the_vocabularys_size_and_the_positions_is_kept_for_the_way_back() -> None:
    features, weight, b, targets = asked()
    kept: list[int] = []

    def padding_mask(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(padding_mask, lambda tensor: tensor):
        loss_sum(features, weight, b, targets, chunk=4)
    assert kept
    assert max(kept) <= max(V * E, N * E)
