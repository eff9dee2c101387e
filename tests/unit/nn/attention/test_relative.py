"""Transformer-XL's relative attention against its four terms, one pair of positions at a time."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from qkv.nn.attention import Causal
from qkv.nn.attention.multi_head import MultiHeadAttention
from qkv.nn.attention.relative import RelativePosition, by_distance

B, E, H = 2, 12, 3
D = E // H


def sinusoid(distance: int) -> Tensor:
    """All sines, then all cosines, as the paper's code has it."""
    angles = [distance / 10000 ** (2 * i / E) for i in range(E // 2)]
    return torch.tensor(
        [math.sin(a) for a in angles] + [math.cos(a) for a in angles], dtype=torch.float64
    )


def attention() -> MultiHeadAttention:
    built = MultiHeadAttention(E, H, qkv_bias=False, output_bias=False, relative=True).double()
    for parameter in built.parameters():
        nn.init.normal_(parameter, std=0.5)
    return built


pytestmark = pytest.mark.usefixtures(
    "double_by_default"
)  # or the waves would be rounded to float32


@pytest.mark.parametrize("T", [1, 4])
@pytest.mark.parametrize("causal", [True, False])
def test_scores_are_the_sum_of_four_terms(T: int, causal: bool) -> None:
    built = attention()
    x = torch.randn(B, T, E)
    output, weights = built(x, mask=Causal() if causal else None, need_weights=True)

    W_q, W_k, W_v = built.qkv.weight.view(3, H, D, E)
    W_r = built.relative.r.weight.view(H, D, E)
    u, v = built.relative.u[:, 0], built.relative.v[:, 0]
    for b in range(B):
        heads = torch.empty(T, H, D)
        for h in range(H):
            for i in range(T):
                q = W_q[h] @ x[b, i]
                scores = []
                for j in range(i + 1 if causal else T):
                    k, r = W_k[h] @ x[b, j], W_r[h] @ sinusoid(i - j)
                    scores.append((q @ k + q @ r + u[h] @ k + v[h] @ r) / math.sqrt(D))
                right = torch.stack(scores).softmax(0)
                assert_close(weights[b, h, i, : len(scores)], right)
                heads[i, h] = sum(right[j] * (W_v[h] @ x[b, j]) for j in range(len(scores)))
        assert_close(output[b], heads.flatten(1) @ built.output.weight.T)


@pytest.mark.parametrize(("T", "S"), [(1, 1), (1, 5), (3, 5), (5, 5), (5, 3)])
def test_each_pair_gets_the_score_of_its_distance(T: int, S: int) -> None:
    """Column c of the scores is distance S - 1 - c; query t stands at position S - T + t."""
    scores = torch.randn(2, H, T, S + T - 1)
    picked = by_distance(scores, S)
    assert picked.shape == (2, H, T, S)
    for t in range(T):
        for s in range(S):
            distance = (S - T + t) - s
            assert_close(picked[:, :, t, s], scores[:, :, t, S - 1 - distance])


def test_only_the_distance_matters() -> None:
    """The bias of a query t steps before the end is the same whatever came before."""
    relative = RelativePosition(E, H, D)
    query = torch.randn(B, H, 4, D)
    _, near = relative(query, 6)
    _, far = relative(query, 9)
    assert_close(near, far[..., 3:])


def test_no_queries_have_no_distances() -> None:
    query, bias = RelativePosition(E, H, D)(torch.randn(B, H, 0, D), 3)
    assert query.shape == (B, H, 0, D)
    assert bias.shape == (B, H, 0, 3)


def test_the_gradient_is_right() -> None:
    relative = RelativePosition(E, H, D)
    query = torch.randn(1, H, 3, D, requires_grad=True)
    assert torch.autograd.gradcheck(lambda query: relative(query, 5), query)
