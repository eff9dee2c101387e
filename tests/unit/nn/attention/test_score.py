"""Scores against their formulas, one pair at a time."""

from __future__ import annotations

import torch
from torch.testing import assert_close

from qkv.nn.attention import Additive, General, attend, dot, scaled_dot

T, S = 3, 4


def test_dot_is_the_dot_product() -> None:
    query, key = torch.randn(T, 5, dtype=torch.float64), torch.randn(S, 5, dtype=torch.float64)
    for t in range(T):
        for s in range(S):
            right = sum(query[t, i] * key[s, i] for i in range(5))
            assert_close(dot(query, key)[t, s], right)
            assert_close(scaled_dot(query, key)[t, s], right / 5**0.5)


def test_scaled_scores_of_random_vectors_have_variance_1() -> None:
    """Whatever the width: that is what the scale is for."""
    for D in (4, 64, 1024):
        scores = scaled_dot(torch.randn(1000, D), torch.randn(1000, D))
        assert 0.9 < float(scores.var()) < 1.1


def test_general_is_a_q_times_b_k() -> None:
    score = General(5, 6, width=2).double()
    query, key = torch.randn(T, 5, dtype=torch.float64), torch.randn(S, 6, dtype=torch.float64)
    scores = score(query, key)
    for t in range(T):
        for s in range(S):
            assert_close(scores[t, s], (score.A.weight @ query[t]) @ (score.B.weight @ key[s]))


def test_additive_is_v_tanh_of_w_q_and_k() -> None:
    """W [q; k] with one matrix W = [W_q W_k] over the joined vector."""
    score = Additive(5, 6, width=7).double()
    W = torch.cat([score.W_q.weight, score.W_k.weight], dim=1)  # (7, 5 + 6)
    query, key = (
        torch.randn(2, T, 5, dtype=torch.float64),
        torch.randn(2, S, 6, dtype=torch.float64),
    )
    scores = score(query, key)
    assert scores.shape == (2, T, S)
    for b in range(2):
        for t in range(T):
            for s in range(S):
                right = score.v.weight[0] @ torch.tanh(W @ torch.cat([query[b, t], key[b, s]]))
                assert_close(scores[b, t, s], right)
    assert_close(score.with_projected_key(query, score.W_k(key)), scores)


def test_additive_attention_is_the_formula() -> None:
    score = Additive(5, 6, width=7).double()
    query, key, value = (
        torch.randn(2, n, w, dtype=torch.float64) for n, w in ((T, 5), (S, 6), (S, 2))
    )
    output, weights = attend(query, key, value, score=score, need_weights=True)
    right = torch.softmax(score(query, key), dim=-1)
    assert_close(weights, right)
    assert_close(output, right @ value)


def test_additive_attention_with_heads() -> None:
    score = Additive(5).double()
    query, key, value = (
        torch.randn(2, heads, n, 5, dtype=torch.float64) for heads, n in ((4, T), (2, S), (2, S))
    )
    output, _ = attend(query, key, value, score=score)
    for h in range(4):
        assert_close(
            output[:, h], attend(query[:, h], key[:, h // 2], value[:, h // 2], score=score)[0]
        )


def test_every_score_has_its_gradient() -> None:
    query, key = (torch.randn(n, 3, dtype=torch.float64, requires_grad=True) for n in (T, S))
    for score in (dot, scaled_dot, General(3, width=2).double(), Additive(3, width=2).double()):
        assert torch.autograd.gradcheck(score, (query, key))
