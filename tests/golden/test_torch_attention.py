"""Our attention with PyTorch's weights gives PyTorch's numbers, forward and backward."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from qkv.nn.attention import Causal, Explicit, Padding, attend, dot
from qkv.nn.attention.multi_head import MultiHeadAttention

B, T, S, E, H = 3, 5, 7, 12, 4


def twins(bias: bool = True) -> tuple[MultiHeadAttention, nn.MultiheadAttention]:
    """Return both modules with the same weights."""
    theirs = nn.MultiheadAttention(E, H, bias=bias, batch_first=True, dtype=torch.float64)
    ours = MultiHeadAttention(E, H, qkv_bias=bias, output_bias=bias).double()
    names = {
        "qkv.weight": "in_proj_weight",
        "qkv.bias": "in_proj_bias",
        "output.weight": "out_proj.weight",
        "output.bias": "out_proj.bias",
    }
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)

    state = theirs.state_dict()
    ours.load_state_dict({our: state[their] for our, their in names.items() if their in state})
    return ours, theirs


PADDING_MASK = torch.tensor([[True] * S, [True] * 4 + [False] * 3, [False] * 2 + [True] * 5])
WAYS = {
    "self": (False, lambda n: None, {}),
    "cross": (True, lambda n: None, {}),
    "causal": (False, lambda n: Causal(), {"attn_mask": torch.ones(T, T).triu(1).bool()}),
    "padding": (
        False,
        lambda n: Padding(PADDING_MASK[:, :n]),
        {"key_padding_mask": ~PADDING_MASK[:, :T]},
    ),
    "cross padding": (
        True,
        lambda n: Padding(PADDING_MASK[:, :n]),
        {"key_padding_mask": ~PADDING_MASK},
    ),
    "matrix": (
        True,
        lambda n: Explicit(torch.arange(T).view(T, 1) % 3 != torch.arange(n) % 4),
        {"attn_mask": torch.arange(T).view(T, 1) % 3 == torch.arange(S) % 4},
    ),
}


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_multi_head_attention_equals_torch(way: str, bias: bool, need_weights: bool) -> None:
    cross, mask, theirs_mask = WAYS[way]
    ours, theirs = twins(bias)
    x = torch.randn(B, T, E, dtype=torch.float64, requires_grad=True)
    source = torch.randn(B, S, E, dtype=torch.float64, requires_grad=True) if cross else None
    keys = x if source is None else source

    actual, weights = ours(x, source, mask=mask(keys.shape[1]), need_weights=need_weights)
    right, right_weights = theirs(
        x, keys, keys, need_weights=need_weights, average_attn_weights=False, **theirs_mask
    )
    assert_close(actual, right)
    assert (weights is not None) == need_weights
    if weights is not None:
        assert_close(weights, right_weights)

    ask = torch.randn_like(right)
    inputs = [x] if source is None else [x, source]
    # Both register the projections in the same order.
    our_gradients = torch.autograd.grad(actual, [*inputs, *ours.parameters()], ask)
    their_gradients = torch.autograd.grad(right, [*inputs, *theirs.parameters()], ask)
    for one, other in zip(our_gradients, their_gradients, strict=True):
        assert_close(one, other)


def test_softmax_of_x_x_transposed_times_x_falls_out() -> None:
    """The lecture's first self-attention: no projections, no scale."""
    x = torch.randn(6, 4, dtype=torch.float64)
    assert_close(attend(x, x, x, score=dot)[0], torch.softmax(x @ x.T, dim=-1) @ x)


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_grouped_attention_equals_multi_head_attention_with_repeated_heads(kv_heads: int) -> None:
    grouped = MultiHeadAttention(E, H, kv_heads=kv_heads).double()
    full = MultiHeadAttention(E, H).double()
    state = grouped.state_dict()
    for name in ("qkv.weight", "qkv.bias"):
        by_head = state[name].unflatten(0, (-1, E // H))
        query = by_head[:H]
        key = by_head[H : H + kv_heads]
        value = by_head[H + kv_heads :]
        repeated = [torch.stack([x[h * kv_heads // H] for h in range(H)]) for x in (key, value)]
        state[name] = torch.cat([query, *repeated]).flatten(0, 1)

    full.load_state_dict(state)
    x = torch.randn(B, T, E, dtype=torch.float64)
    assert_close(grouped(x, mask=Causal())[0], full(x, mask=Causal())[0])
    assert grouped.qkv.weight.shape == (E + 2 * kv_heads * E // H, E)
