"""On a GPU: the fused decode block and the CUDA graph give the numbers of the plain code."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from support import gpu_models

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("qkv_unchecked")]

KINDS = gpu_models.KINDS | {
    "relu": {"activation": "relu", "position": "none", "kv_heads": 1},
    "relu2": {"activation": "relu2", "position": "sinusoidal"},
    "silu": {"activation": "silu", "position": "rotary"},
    "swiglu with biases": {"activation": "swiglu", "tied": False},
}


def qkv() -> SimpleNamespace:
    """A copy of qkv without runtime shape checks, which Triton cannot compile."""
    from qkv import generation, models
    from qkv.generation import decode_cuda_graph
    from qkv.generation.prefill import next_logits
    from qkv.nn import attention, cache, hooks, norm
    from qkv.nn.decode import decode_block, decode_step, dependent_launch
    from qkv.nn.linear import few_rows, gemv

    modules = (generation, models, attention, norm, cache, hooks)
    everything = gpu_models.names_of(modules) | {
        "decode_cuda_graph": decode_cuda_graph,
        "next_logits": next_logits,
        "decode_block": decode_block,
        "decode_step": decode_step,
        "dependent_launch": dependent_launch,
        "few_rows": few_rows,
        "gemv": gemv,
    }
    return SimpleNamespace(**everything)


def model_of(kind: dict[str, Any], dtype: torch.dtype = torch.float32) -> Any:
    return gpu_models.small_gpt(qkv(), kind, 128, dtype)


def relative_error(actual: Tensor, right: Tensor) -> float:
    return float((actual.double() - right.double()).norm() / right.double().norm())


@torch.no_grad()
def logits_of(model: Any, ids: Tensor, padding_mask: Tensor, tokens: int) -> list[Tensor]:
    """Prefill, then `tokens` decode steps with a static cache."""
    first = ids.shape[1] - tokens
    state = model.start()
    state.capacity = 64
    qkv().next_logits(model, ids[:, :first], state, padding_mask[:, :first])
    whole = torch.zeros(len(ids), 64, dtype=torch.bool, device=ids.device)
    whole[:, : first + 1] = padding_mask[:, : first + 1]
    static = qkv().StaticCache(state, whole, padding_mask[:, :first].sum(1, keepdim=True))
    actual = []
    for position in range(first, first + tokens):
        actual.append(qkv().next_logits(model, ids[:, position : position + 1], static))
        static.advance()
    return actual


@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("kind", KINDS)
def test_a_fused_block_equals_the_plain_one(
    kind: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(KINDS[kind], torch.bfloat16)
    exact = model_of(KINDS[kind]).double()
    ids = torch.randint(300, (rows, 40), device="cuda")
    padding_mask = torch.ones(rows, 40, dtype=torch.bool, device="cuda")
    padding_mask[0, :5] = False
    padding_mask[-1, :11] = False
    decode_block, calls = qkv().decode_block, []
    run = decode_block.run
    monkeypatch.setattr(decode_block, "run", lambda *args: calls.append(1) or run(*args))
    table = qkv().decode_step.rotary_table(model, torch.arange(64, device="cuda"))
    with qkv().decode_step.installed(model, table):
        actual = logits_of(model, ids, padding_mask, 6)
    assert len(calls) == 6 * 2
    monkeypatch.setattr(qkv().gemv, "supports", lambda *args: False)
    plain = logits_of(model, ids, padding_mask, 6)
    right = exact(ids, padding_mask=padding_mask)[:, -6:].unbind(1)
    for one, two, three in zip(actual, plain, right, strict=True):
        assert relative_error(one, three) < max(2 * relative_error(two, three), 1e-2)
        assert relative_error(one, three) < 3e-2


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize(
    "kind", [{"width": 768, "heads": 12, "depth": 12, "context": 512}, KINDS["llama"]]
)
def test_kernels_that_start_early_compute_the_same_for_10_000_steps(
    kind: dict[str, Any], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same kernels in the same order, one after the other: every bit of the cache is equal."""
    model = model_of({"context": 512, **kind}, torch.bfloat16)
    generator = torch.Generator().manual_seed(5)
    steps = 0
    while steps < 10_000:
        lengths = torch.randint(1, 200, (rows,), generator=generator).tolist()
        prompts = [
            torch.randint(300, (length,), generator=generator).tolist() for length in lengths
        ]
        new = int(torch.randint(150, 312, (1,), generator=generator))
        outcomes = []
        for early in (True, False):
            qkv().decode_cuda_graph.graphs.clear()
            with monkeypatch.context() as patch:
                if not early:
                    patch.setattr(qkv().dependent_launch, "device_supports", lambda device: False)

                tokens = qkv().generate(model, prompts, length=new, temperature=0)
                _, graph = qkv().decode_cuda_graph.graphs[model]
                outcomes.append((tokens, [pair[0].clone() for pair in graph.buffers.values()]))

        assert outcomes[0][0] == outcomes[1][0]
        for one, two in zip(outcomes[0][1], outcomes[1][1], strict=True):
            assert torch.equal(
                one[:, :, : max(lengths) + new - 1], two[:, :, : max(lengths) + new - 1]
            )

        steps += new


@pytest.mark.parametrize(("N", "E"), [(1, 5), (7, 96), (768, 3072), (300, 5000), (50257, 768)])
def test_one_row_times_a_matrix(N: int, E: int) -> None:
    gemv = qkv().gemv
    torch.manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, device="cuda").bfloat16()  # noqa: E731
    x, weight, bias, residual = draw(1, 1, E), draw(N, E), draw(N), draw(1, 1, N)
    right = x.double() @ weight.double().T
    assert relative_error(gemv.linear_row(x, weight), right) < 4e-3
    assert (
        relative_error(gemv.linear_row(x, weight, bias, residual=residual), right + bias + residual)
        < 6e-3
    )
    for norm in (qkv().LayerNorm(E).cuda(), qkv().RMSNorm(E).cuda()):
        right = norm.double()(x.double()) @ weight.double().T
        assert relative_error(gemv.linear_row(x, weight, norm=norm.bfloat16()), right) < 8e-3


@pytest.mark.parametrize("D", [16, 64, 128])
@pytest.mark.parametrize("S", [1, 77, 1500, 5000])
@pytest.mark.parametrize(("B", "H", "K"), [(1, 4, 4), (3, 8, 2), (40, 4, 1)])
def test_decode_attention_equals_eager(B: int, H: int, K: int, S: int, D: int) -> None:
    torch.manual_seed(0)
    query, key, value = (
        torch.randn(B, heads, length, D, device="cuda")
        for heads, length in ((H, 1), (K, S), (K, S))
    )
    padding_mask = torch.rand(B, S, device="cuda") > 0.4
    padding_mask[0] = False  # this row has no keys
    with torch.no_grad():
        for mask in (None, qkv().Causal(), qkv().Causal() & qkv().Padding(padding_mask)):
            right, _ = qkv().attend(
                query.double(), key.double(), value.double(), mask=mask, kernel="eager"
            )
            actual, _ = qkv().attend(query, key, value, mask=mask, kernel="decode")
            torch.testing.assert_close(actual.double(), right, atol=1e-5, rtol=1e-5)
            half = [item.bfloat16() for item in (query, key, value)]
            right, _ = qkv().attend(*(item.double() for item in half), mask=mask, kernel="eager")
            actual, _ = qkv().attend(*half, mask=mask)
            assert relative_error(actual, right) < 1e-2 or not right.any()


@pytest.mark.parametrize("M", [2, 16, 33, 64])
@pytest.mark.parametrize(("N", "E"), [(7, 96), (768, 3072), (300, 5000), (50257, 768)])
def test_a_few_rows_times_a_matrix(M: int, N: int, E: int) -> None:
    few_rows = qkv().few_rows
    torch.manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, device="cuda").bfloat16()  # noqa: E731
    x, weight, bias, residual = draw(M, E), draw(N, E), draw(N), draw(M, N)
    right = x.double() @ weight.double().T
    assert relative_error(few_rows.linear_rows(x, weight), right) < 4e-3
    actual = few_rows.linear_rows(x, weight, bias, residual=residual)
    assert relative_error(actual, right + bias + residual) < 6e-3


SAMPLING: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {},
    {"temperature": 1.5, "top_k": 60, "top_p": 0.9},
    {"min_p": 0.05, "repetition": 1.3, "presence": 0.2, "frequency": 0.1, "forbidden": (5, 6)},
    {"minimum": 4, "forced": {1: 17, 3: 18}},
]


@pytest.mark.parametrize("kind", ["gpt-2", "llama"])
def test_a_cuda_graph_generates_what_the_cpu_generates(kind: str) -> None:
    model = model_of(KINDS[kind])
    prompts = [[3, 1, 4], [1, 5, 9, 2, 6, 5, 3], [5]]
    for fields in SAMPLING:
        options: dict[str, Any] = {"length": 80, "end": 7, "seed": 3, "samples": 2, **fields}
        actual = [qkv().generate(model, prompts, **options) for _ in range(2)]
        assert model in qkv().decode_cuda_graph.graphs
        assert actual[0] == actual[1] == qkv().generate(model.cpu(), prompts, **options)
        model.cuda()


@pytest.mark.parametrize("kind", KINDS)
def test_a_captured_prefill_equals_the_plain_one(kind: str) -> None:
    """The graph of 64 tokens serves shorter prompts after longer ones; so does that of 32."""
    model = model_of(KINDS[kind])
    on_cpu = copy.deepcopy(model).cpu()
    options: dict[str, Any] = {"length": 60, "temperature": 0.9, "seed": 3, "samples": 2}
    for length in (64, 40, 50, 32, 20, 31):
        prompts = torch.randint(300, (2, length)).tolist()
        actual = qkv().generate(model, prompts, **options)
        assert actual == qkv().generate(on_cpu, prompts, **options)

    _, graph = qkv().decode_cuda_graph.graphs[model]
    assert list(graph.prefills.captured) == [(2, 64), (2, 32)]
    assert all(prompts.graph is not None for prompts in graph.prefills.captured.values())


def test_a_sequence_goes_on_where_the_cuda_graph_ends() -> None:
    model = model_of({})
    prompts = [[3] * 60, [4] * 5]
    for beyond in ("refuse", "slide"):
        options: dict[str, Any] = {"length": 150, "seed": 1, "beyond": beyond}
        actual = qkv().generate(model, prompts, **options)
        assert actual == qkv().generate(model.cpu(), prompts, **options)
        assert [len(row) for row in actual] == ([69, 124] if beyond == "refuse" else [150, 150])
        model.cuda()


def test_two_streams_of_one_model_do_not_mix() -> None:
    model = model_of({})
    one, two = (qkv().stream(model, [[start]], length=60, seed=0) for start in (1, 2))
    both = list(zip(one, two, strict=True))
    first, second = (qkv().generate(model, [start], length=60, seed=0) for start in (1, 2))
    assert [token.id for token, _ in both] == first
    assert [token.id for _, token in both] == second


def test_new_weights_and_hooks_take_effect() -> None:
    model = model_of({})
    before = qkv().generate(model, [[1, 2]], length=60, temperature=0)
    with qkv().add_hook(model, "stack.blocks.0.after", lambda value, name: value * 0):
        assert qkv().generate(model, [[1, 2]], length=60, temperature=0) != before
    with torch.no_grad():
        model.embedding.token.weight.add_(torch.randn_like(model.embedding.token.weight))
    changed = qkv().generate(model, [[1, 2]], length=60, temperature=0)
    assert changed == qkv().generate(model.cpu(), [[1, 2]], length=60, temperature=0) != before
