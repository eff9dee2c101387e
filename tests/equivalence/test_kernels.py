"""Every kernel gives the output and gradients of eager; and eager is the equation."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import flex_attention
from torch.testing import assert_close

from qkv.nn.attention import (
    Blockwise,
    Causal,
    Distance,
    Document,
    Explicit,
    Fixed,
    General,
    Mask,
    Padding,
    Prefix,
    Strided,
    Window,
    attend,
    dot,
    scaled_dot,
)
from qkv.nn.attention.kernels import block_sparse, sparse_flash
from support.brute_force import may_look
from support.comparing import TIGHT, assert_kernel_equals_eager, assert_same, outcome
from support.draws import (
    PATTERNS,
    WITH_REACH,
    Call,
    Sizes,
    biases,
    call,
    calls,
    masks,
    masks_of,
    random,
    seeds,
    sizes,
)


@given(calls(longest=6))
def test_eager_is_the_equation(drawn: Call) -> None:
    """Each weight is exp(score) over the sum of exps of all visible keys, number by number."""
    output, weights = attend(
        drawn.query,
        drawn.key,
        drawn.value,
        mask=drawn.mask,
        bias=drawn.bias,
        need_weights=True,
        kernel="eager",
    )
    (B, H, T, D), (K, S) = drawn.query.shape, drawn.key.shape[1:3]
    query, key, value = drawn.query.tolist(), drawn.key.tolist(), drawn.value.tolist()
    for b in range(B):
        for h in range(H):
            kv = h // (H // K)
            for t in range(T):
                q = S - T + t
                captured = [k for k in range(S) if may_look(drawn.mask, b, h, q, k, T, S)]
                exps = {
                    k: math.exp(
                        sum(x * y for x, y in zip(query[b][h][t], key[b][kv][k], strict=True))
                        / math.sqrt(D)
                        + added(drawn.bias, b, h, t, q, k)
                    )
                    for k in captured
                }
                right = [exps[k] / sum(exps.values()) if k in exps else 0.0 for k in range(S)]
                mean = [
                    sum(w * value[b][kv][k][x] for k, w in enumerate(right))
                    for x in range(drawn.value.shape[-1])
                ]
                assert weights[b, h, t].tolist() == pytest.approx(right, abs=1e-12)
                assert output[b, h, t].tolist() == pytest.approx(mean, abs=1e-12)


def added(bias: Distance | torch.Tensor | None, b: int, h: int, t: int, q: int, k: int) -> float:
    if bias is None:
        return 0.0
    if isinstance(bias, Distance):
        return -float(bias.slopes[h].detach()) * abs(q - k)
    bias = bias.detach()
    if bias.dim() == 2:
        return float(bias[t, k])
    if bias.dim() == 3:
        return float(bias[b, t, k])
    return float(
        bias[min(b, bias.shape[0] - 1), min(h, bias.shape[1] - 1), min(t, bias.shape[2] - 1), k]
    )


@settings(max_examples=100)
@given(calls(), st.sampled_from([dot, scaled_dot]))
def test_fused_equals_eager(drawn: Call, score) -> None:
    assert_kernel_equals_eager(drawn, "sdpa", score)


@settings(max_examples=100)
@given(calls(), st.sampled_from([dot, scaled_dot]))
def test_the_chosen_kernel_equals_eager(drawn: Call, score) -> None:
    assert_kernel_equals_eager(drawn, None, score)


@settings(max_examples=100)
@given(calls(longest=20, first=WITH_REACH, always_masked=True), st.sampled_from([dot, scaled_dot]))
def test_blocked_runs_equal_eager(drawn: Call, score) -> None:
    """Masks that know their reach, over many small blocks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_sparse, "SIZE", 4)
        assert_kernel_equals_eager(drawn, "block_sparse", score)


@settings(max_examples=100)
@given(
    calls(longest=16, square=True, first=PATTERNS, always_masked=True),
    st.sampled_from([dot, scaled_dot]),
)
def test_blocked_patterns_equal_eager(drawn: Call, score) -> None:
    """Strided and Fixed, alone and with other masks, also with both at once."""
    assert_kernel_equals_eager(drawn, "block_sparse", score)


@settings(max_examples=200)
@given(sizes(longest=24, square=True), seeds, st.data())
def test_sparse_flash_equals_eager(n: Sizes, seed: int, data: st.DataObject) -> None:
    """Causal patterns of any stride: shorter than the text, longer, and not a divisor of it."""
    pattern = data.draw(masks_of(PATTERNS, n))
    n = replace(n, X=n.D)
    assert_kernel_equals_eager(call(n, seed, Causal() & pattern), "sparse_flash")


@pytest.mark.parametrize("pattern", [Strided(4), Fixed(4), Fixed(5, 3)], ids=str)
def test_the_gradients_of_sparse_flash_are_those_of_finite_differences(pattern: Mask) -> None:
    n = Sizes(B=1, H=2, K=1, T=11, S=11, D=2, X=2)
    drawn = call(n, 0, Causal() & pattern)

    def run(*tensors: torch.Tensor) -> torch.Tensor:
        return attend(*tensors, mask=drawn.mask, kernel="sparse_flash")[0]

    assert torch.autograd.gradcheck(run, (drawn.query, drawn.key, drawn.value))


@pytest.mark.parametrize("summary", [0, 2])
def test_the_operator_of_sparse_flash_is_registered_correctly(summary: int) -> None:
    """Its schema, its shapes without data and its backward pass, as torch.compile uses them."""
    tensors = [torch.randn(2, 13, heads, 4, requires_grad=True) for heads in (4, 2, 2)]
    torch.library.opcheck(sparse_flash.sparse_flash, (*tensors, 4, summary, 0.5))


@settings(max_examples=30)
@given(calls(longest=20, first=WITH_REACH, always_masked=True))
def test_the_kernel_chosen_for_many_small_blocks_equals_eager(drawn: Call) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_sparse, "SIZE", 2)
        assert_kernel_equals_eager(drawn, None)


@given(calls())
def test_flex_equals_eager_without_gradients(drawn: Call) -> None:
    """On a CPU FlexAttention has no backward; the GPU tests prove that."""
    x = drawn.detached()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
        actual, expected = (
            attend(x.query, x.key, x.value, mask=x.mask, bias=x.bias, kernel=kernel)[0]
            for kernel in ("flex", "eager")
        )
    assert_close(actual, expected, rtol=0, atol=TIGHT)


@pytest.mark.parametrize("kernel", ["sdpa", "block_sparse", None])
@settings(max_examples=30)
@given(sizes(longest=8), seeds, st.data())
def test_general_scores_equal_eager(
    kernel: str | None, n: Sizes, seed: int, data: st.DataObject
) -> None:
    """<A q, B k> becomes a dot product of projections; A and B get the same gradients."""
    mask = data.draw(masks(n, first=WITH_REACH))
    score = General(n.D, width=3).double()
    assert_kernel_equals_eager(call(n, seed, mask, data.draw(biases(n))), kernel, score)


LONG = 300  # more than two blocks of 128, and no multiple of it
padding_mask = torch.rand(2, LONG, generator=random(1)) < 0.8
padding_mask[1, :150] = False
texts = torch.stack([torch.arange(LONG) // 70, torch.arange(LONG) // 250])
LONG_MASKS = {
    "causal": Causal(),
    "window": Window(20),
    "causal window": Causal() & Window(130),
    "causal window padding": Causal() & Window(20) & Padding(padding_mask),
    "block": Blockwise(50),
    "block of a block's size": Causal() & Blockwise(128),
    "documents": Document(texts),
    "causal documents padding": Causal() & Document(texts) & Padding(padding_mask),
    "window of one": Window(1),
    "wider than the text": Window(1000),
    "prefix window": Prefix(40) & Window(60),
    "window and empty rows": Window(7) & Padding(torch.zeros(2, LONG, dtype=torch.bool)),
}
LONG_PATTERNS = {
    "strided": Strided(16),
    "causal strided": Causal() & Strided(17),
    "strided padding": Causal() & Strided(16) & Padding(padding_mask),
    "fixed": Fixed(16),
    "causal fixed": Causal() & Fixed(17, 3),
    "fixed documents": Causal() & Fixed(32, 32) & Document(texts),
}
LONG_BIASES = {
    "no bias": lambda T: None,
    "distance": lambda T: Distance(torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)),
    "table": lambda T: torch.randn(1, 4, T, LONG, dtype=torch.float64).requires_grad_(),
}


@pytest.mark.parametrize("bias", LONG_BIASES)
@pytest.mark.parametrize("T", [1, 130, LONG])
@pytest.mark.parametrize("name", LONG_MASKS)
def test_blocked_equals_eager_at_its_own_block_size(name: str, T: int, bias: str) -> None:
    n = Sizes(B=2, H=4, K=2, T=T, S=LONG, D=8, X=8)
    assert_kernel_equals_eager(call(n, 3, LONG_MASKS[name], LONG_BIASES[bias](T)), "block_sparse")


@pytest.mark.parametrize("bias", LONG_BIASES)
@pytest.mark.parametrize("name", LONG_PATTERNS)
def test_blocked_patterns_equal_eager_on_long_texts(name: str, bias: str) -> None:
    n = Sizes(B=2, H=4, K=2, T=LONG, S=LONG, D=8, X=8)
    assert_kernel_equals_eager(
        call(n, 3, LONG_PATTERNS[name], LONG_BIASES[bias](LONG)), "block_sparse"
    )


@pytest.mark.parametrize("name", [*LONG_MASKS, *LONG_PATTERNS])
def test_the_kernel_chosen_for_long_texts_equals_eager(name: str) -> None:
    n = Sizes(B=2, H=4, K=2, T=LONG, S=LONG, D=8, X=8)
    assert_kernel_equals_eager(call(n, 3, (LONG_MASKS | LONG_PATTERNS)[name]), None)


WAYS = [(kernel, masked) for kernel in (None, "eager", "sdpa") for masked in (False, True)] + [
    ("block_sparse", True)
]


@pytest.mark.parametrize(("kernel", "masked"), WAYS)
@pytest.mark.parametrize(("T", "S"), [(0, 5), (5, 0), (0, 0), (1, 1)])
def test_no_queries_or_no_keys(T: int, S: int, kernel: str | None, masked: bool) -> None:
    """No queries give no outputs, no keys give zeros, and neither gives NaN."""
    drawn = call(Sizes(B=2, H=4, K=2, T=T, S=S, D=4, X=3), 0, Window(2) if masked else None)
    actual = outcome(drawn, kernel)
    assert actual["output"].shape == (2, 4, T, 3)
    assert_same(actual, outcome(drawn, "eager"), TIGHT)
    if S == 0:
        assert all(torch.equal(x, torch.zeros_like(x)) for x in actual.values())


@pytest.mark.parametrize("kernel", ["eager", "sdpa", "block_sparse", None])
def test_a_query_without_keys_gets_zeros_and_gives_no_gradient(kernel: str | None) -> None:
    n = Sizes(B=2, H=4, K=2, T=6, S=6, D=4, X=3)
    mask = Causal() & Padding(torch.tensor([[False] * 3 + [True] * 3, [False] * 6]))
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        actual = outcome(call(n, 0, mask).to(dtype), kernel)
        nowhere = torch.tensor([[True] * 3 + [False] * 3, [True] * 6])
        assert not actual["output"].transpose(1, 2)[nowhere].any()
        assert actual["output"].transpose(1, 2)[~nowhere].all()
        assert not actual["query"].transpose(1, 2)[nowhere].any()
        assert not actual["key"][1].any()
        assert not actual["value"][1].any()
        assert all(x.isfinite().all() for x in actual.values())


@pytest.mark.parametrize("kernel", ["eager", "sdpa", None])
def test_more_queries_than_keys(kernel: str | None) -> None:
    """Cross-attention to a shorter source, with masks of keys alone or given as matrices."""
    n = Sizes(B=2, H=4, K=2, T=7, S=3, D=4, X=5)
    for mask in (
        None,
        Padding(torch.tensor([[True, True, False], [False] * 3])),
        Explicit(torch.rand(2, 7, 3) < 0.5),
    ):
        assert_kernel_equals_eager(call(n, 1, mask, torch.randn(7, 3, dtype=torch.float64)), kernel)


@given(sizes(longest=8), seeds, st.data())
def test_without_heads_equals_one_head(n: Sizes, seed: int, data: st.DataObject) -> None:
    """(B, T, D) is (B, 1, T, D), and (T, D) is a batch of one."""
    n = Sizes(B=n.B, H=1, K=1, T=n.T, S=n.S, D=n.D, X=n.X)
    mask = data.draw(masks(n))
    x = call(n, seed, mask)
    with_heads, weights = attend(x.query, x.key, x.value, mask=mask, need_weights=True)
    without, fewer = attend(x.query[:, 0], x.key[:, 0], x.value[:, 0], mask=mask, need_weights=True)
    assert_close(without, with_heads[:, 0])
    assert_close(fewer, weights[:, 0])
    if n.B == 1:
        plain, plain_weights = attend(
            x.query[0, 0], x.key[0, 0], x.value[0, 0], mask=mask, need_weights=True
        )
        assert_close(plain, with_heads[0, 0])
        assert_close(plain_weights, weights[0, 0])


@pytest.mark.parametrize(("T", "S"), [(0, 5), (5, 0), (0, 0)])
def test_nothing_to_ask_or_find_without_heads(T: int, S: int) -> None:
    for shape in ((), (2,)):
        output, weights = attend(
            torch.randn(*shape, T, 4),
            torch.randn(*shape, S, 4),
            torch.randn(*shape, S, 3),
            need_weights=True,
        )
        assert torch.equal(output, torch.zeros(*shape, T, 3))
        assert weights is not None
        assert weights.shape == (*shape, T, S)


def test_grouped_heads_equal_repeated_heads() -> None:
    """Query heads 0..2 use key head 0, heads 3..5 key head 1."""
    n = Sizes(B=2, H=6, K=2, T=4, S=7, D=4, X=3)
    x = call(n, 0, Causal())
    key, value = (torch.stack([y[:, h // 3] for h in range(6)], 1) for y in (x.key, x.value))
    for kernel in ("eager", "sdpa", "block_sparse"):
        grouped, _ = attend(x.query, x.key, x.value, mask=x.mask, kernel=kernel)
        repeated, _ = attend(x.query, key, value, mask=x.mask, kernel="eager")
        assert_close(grouped, repeated)


@pytest.mark.parametrize(("T", "S"), [(30, 20), (41, 8), (9, 8)])
@pytest.mark.parametrize(
    "mask",
    [Window(3), Causal() & Window(3), Blockwise(5)],
    ids=["window", "causal window", "block"],
)
def test_blocked_equals_eager_with_more_queries_than_keys(
    mask: Mask, T: int, S: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first queries stand before the first key."""
    monkeypatch.setattr(block_sparse, "SIZE", 4)
    query, key, value = (torch.randn(2, 2, n, 8, dtype=torch.float64) for n in (T, S, S))
    actual, _ = attend(query, key, value, mask=mask, kernel="block_sparse")
    torch.testing.assert_close(actual, attend(query, key, value, mask=mask, kernel="eager")[0])


def test_a_key_changed_in_place_is_noticed() -> None:
    query, key, value = (torch.randn(1, 1, 300, 8, requires_grad=True) for _ in range(3))
    used = key * 1
    output, _ = attend(query, used, value, mask=Causal() & Window(8), kernel="block_sparse")
    with torch.no_grad():
        used.zero_()
    with pytest.raises(RuntimeError, match="changed in place"):
        output.sum().backward()
