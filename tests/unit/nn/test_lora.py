"""Low-rank adapters equal their formula, merge exactly, and leave no trace when removed."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from qkv.generation import generate
from qkv.models import group_key_value_heads, int8
from qkv.nn.attention.multi_head import MultiHeadAttention
from qkv.nn.cache import StaticCache
from qkv.nn.decode import decode_attention, decode_block
from qkv.nn.feed_forward import FeedForward
from qkv.nn.linear import gemv
from qkv.nn.linear.frozen_matrix import FrozenMatrix
from qkv.nn.linear.linear import Linear
from qkv.nn.lora import (
    AdapterConfig,
    adapted,
    adapter_parameters,
    adapter_sites,
    add,
    attach_adapters,
    detach_adapters,
    merge_adapters,
)
from support.families import bert, gpt, rnn, sources, transformer, words

EVERYWHERE = ("query", "key", "value", "output", "up", "down")
LLAMA: dict[str, Any] = {"position": "rotary", "norm": "rms", "activation": "swiglu", "kv_heads": 2}
ALL = AdapterConfig(rank=3, alpha=6.0, projections=EVERYWHERE)


def awake(model: nn.Module) -> nn.Module:
    """B begins as zeros, which would hide everything."""
    for parameter in adapter_parameters(model):
        nn.init.normal_(parameter, std=0.3)
    return model


def same(one: Tensor, other: Tensor) -> None:
    assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rows", [None, slice(0, 8), slice(8, None), slice(2, 10), slice(12, 14)])
@pytest.mark.parametrize(
    "names", [("query",), ("key", "value"), ("query", "value"), ("query", "key", "value")]
)
def test_the_formula_forward_and_backward(rows: slice | None, names: tuple[str, ...]) -> None:
    """Rows 0 to 8 are queries, 8 to 12 keys, 12 to 16 values."""
    layer, x = Linear(6, 16).double(), torch.randn(2, 5, 6, dtype=torch.float64, requires_grad=True)
    spans = {"query": (0, 8), "key": (8, 12), "value": (12, 16)}
    call_args: dict[str, tuple[Tensor, Tensor]] = {}
    for name in names:
        first, last = spans[name]
        call_args[name] = (
            torch.randn(3, 6, dtype=torch.float64),
            torch.randn(last - first, 3, dtype=torch.float64),
        )
        add(layer, name, *call_args[name], first, 0.7, 0.0)
    weight = torch.randn_like(layer(x, rows))
    (layer(x, rows) * weight).sum().backward()
    y = x.detach().clone().requires_grad_()
    leaves = {
        name: tuple(part.clone().requires_grad_() for part in pair)
        for name, pair in call_args.items()
    }
    added = torch.zeros(16, 6, dtype=torch.float64)
    for name, (A, B) in leaves.items():
        first, last = spans[name]
        added = added + F.pad(0.7 * (B @ A), (0, 0, first, 16 - last))
    expected = F.linear(y, layer.weight.detach() + added, layer.bias)[..., rows or slice(None)]
    same(layer(x, rows), expected)
    (expected * weight).sum().backward()
    same(x.grad, y.grad)
    for name, (A, B) in leaves.items():
        part = layer.adapters[name]
        reached = part.A.grad is not None and part.A.grad.any()
        assert reached == bool(A.grad.any())
        if reached:
            same(part.A.grad, A.grad)
            same(part.B.grad, B.grad)


@pytest.mark.parametrize("projection", ["query", "key", "value", "output", "gate", "up", "down"])
def test_a_projection_changes_its_rows_alone(projection: str) -> None:
    """Adapting a projection equals changing its rows, also in grouped heads and a gated layer."""
    model = gpt(**LLAMA)
    ids = words(2, 7)
    before = model(ids)
    attach_adapters(model, AdapterConfig(rank=2, alpha=3.0, projections=(projection,)))
    same(model(ids), before)
    awake(model)
    other = gpt(**LLAMA)
    other.load_state_dict(model.state_dict(), strict=False)
    with torch.no_grad():
        for block, by_hand in zip(model.stack.blocks, other.stack.blocks, strict=True):
            query, key = by_hand.attention.qkv.weight.split([16, 16])
            key, value = key.split([8, 8])
            gate, up = by_hand.feed_forward.up.weight.chunk(2)
            rows = {"query": query, "key": key, "value": value, "gate": gate, "up": up}
            rows |= {
                "output": by_hand.attention.output.weight,
                "down": by_hand.feed_forward.down.weight,
            }
            ((_, _, adapters),) = list(adapted(block))
            rows[projection] += 1.5 * adapters[projection].B @ adapters[projection].A
    assert (model(ids) - before).abs().max() > 1e-3
    same(model(ids), other(ids))


def everywhere(family: str) -> tuple[Any, tuple[Tensor, ...]]:
    if family == "transformer":
        model: Any = transformer(kv_heads=2)
        return model, (sources(model.config, 2, 5), words(2, 6))
    built = {
        "gpt": gpt,
        "llama": lambda: gpt(**LLAMA),
        "xl": lambda: gpt(position="relative", memory=4),
        "bert": bert,
    }
    return built[family](), (words(2, 6),)


@pytest.mark.parametrize("family", ["gpt", "llama", "xl", "bert", "transformer"])
def test_merged_equals_unmerged(family: str) -> None:
    model, inputs = everywhere(family)
    names, before = set(model.state_dict()), model(*inputs)
    attach_adapters(model, ALL)
    awake(model)
    assert names <= set(model.state_dict())
    unmerged = model(*inputs)
    assert (unmerged - before).abs().max() > 1e-2
    merge_adapters(model)
    same(model(*inputs), unmerged)
    assert set(model.state_dict()) == names
    assert not adapter_parameters(model)
    assert all(
        "adapters" not in layer._modules for layer in model.modules() if isinstance(layer, Linear)
    )


def test_cross_attention_and_memory_ask_for_rows_apart() -> None:
    model, inputs = everywhere("transformer")
    attach_adapters(model, AdapterConfig(rank=2, projections=("query", "value")))
    parts = [path for path, _, _ in adapted(model)]
    assert sum("cross_attention" in path for path in parts) == model.config.depth
    awake(model)
    unmerged, state = model(*inputs), model.start(inputs[0])
    step_by_step = [model.decode(inputs[1][:, at : at + 1], state) for at in range(6)]
    same(torch.cat(step_by_step, dim=1), unmerged)
    model, (ids,) = everywhere("xl")
    attach_adapters(model, ALL)
    state = awake(model).start()
    unmerged = torch.cat([model.decode(part, state) for part in ids.split(3, dim=1)], dim=1)
    merge_adapters(model)
    state = model.start()
    same(torch.cat([model.decode(part, state) for part in ids.split(3, dim=1)], dim=1), unmerged)


def test_float32_is_rounded_once() -> None:
    model = gpt(**LLAMA).float()
    attach_adapters(model, ALL)
    awake(model)
    exact = gpt(**LLAMA)
    attach_adapters(exact, ALL)
    exact.load_state_dict(model.state_dict())
    merge_adapters(model)
    merge_adapters(exact)
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, exact.state_dict()[name].float())


def test_detached_is_as_before() -> None:
    model, inputs = everywhere("llama")
    before = model(*inputs)
    attach_adapters(model, ALL)
    awake(model)
    detach_adapters(model)
    assert torch.equal(model(*inputs), before)
    attach_adapters(model, ALL)  # there is room for others again


def test_only_adapters_learn_when_the_rest_is_frozen() -> None:
    model, inputs = everywhere("llama")
    attach_adapters(model, ALL)
    model.requires_grad_(False)
    for parameter in adapter_parameters(model):
        parameter.requires_grad_(True)
    awake(model)
    model(*inputs).square().sum().backward()
    learned = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert learned == {name for name, _ in model.named_parameters() if ".adapters." in name}
    assert all(parameter.grad.any() for parameter in adapter_parameters(model))


def test_where_it_begins() -> None:
    one, two, other = gpt(), gpt(), gpt()
    state = torch.get_rng_state()
    for model, seed in ((one, 1), (two, 1), (other, 2)):
        attach_adapters(model, ALL, seed=seed)
    assert torch.equal(torch.get_rng_state(), state)
    first, same_seed, other_seed = (
        model.stack.blocks[0].attention.qkv.adapters for model in (one, two, other)
    )
    for _, part in first.parts():
        assert not part.B.any()
        assert 0.9 / 4 < part.A.abs().max() <= 1 / 4  # 1 / sqrt(width)
    assert torch.equal(first["query"].A, same_seed["query"].A)
    assert not torch.equal(first["query"].A, other_seed["query"].A)
    assert not torch.equal(first["query"].A, first["value"].A)


def test_dropout_is_for_training_alone() -> None:
    model, inputs = everywhere("gpt")
    attach_adapters(model, AdapterConfig(rank=4, dropout=0.5, projections=EVERYWHERE))
    awake(model)
    assert torch.equal(model(*inputs), model(*inputs))
    model.train()
    assert not torch.equal(model(*inputs), model(*inputs))
    layer = Linear(50, 40).double()
    add(layer, "all", torch.randn(8, 50), torch.randn(40, 8), 0, 1.0, 0.5)
    x = torch.randn(50, dtype=torch.float64)
    rows = layer(x.expand(40_000, 50))  # each with its own numbers dropped
    uncertain = rows.std(0) / 200
    assert ((rows.mean(0) - layer.eval()(x)).abs() < 5 * uncertain).all()


def test_decoding_with_adapters_equals_decoding_merged() -> None:
    model = gpt(**LLAMA)
    attach_adapters(model, ALL)
    awake(model)
    adapted_says = list(said(model))
    merge_adapters(model)
    assert list(said(model)) == adapted_says


def said(model: Any) -> list[list[int]]:
    return generate(model, [[1, 2, 3], [4, 5]], length=8, temperature=0.7, seed=3)


def test_bytes_beside_adapters() -> None:
    """int8 keeps the adapters as they are; the frozen matrix is what loses precision."""
    model = gpt().float()
    attach_adapters(model, ALL)
    awake(model)
    ids, small = words(2, 5), int8(model)
    rounded = deepcopy(model)
    for path, part in small.named_modules():
        if isinstance(part, FrozenMatrix):
            rounded.get_parameter(path).data = part.dequantised()
    rounded.embedding.token.weight.data = small.embedding.token.weight.dequantised()
    assert_close(small(ids), rounded(ids), rtol=1e-4, atol=1e-4)
    with pytest.raises(TypeError, match=r"model: .*weights"):
        merge_adapters(int8(model))
    detach_adapters(model)
    with pytest.raises(TypeError, match=r"model: .*weights"):
        attach_adapters(int8(model), ALL)


@pytest.mark.parametrize("projection", ["query", "output", "up", "down"])
def test_fused_kernels_do_not_replace_adapted_matrices(
    projection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fused block of a GPU reads matrices and knows no adapters."""
    model = gpt(head_width=16, **LLAMA)
    state = StaticCache.__new__(StaticCache)
    state.capacity = 64
    buffer = torch.zeros(1, 1, 64, 16)
    state.buffers = {0: (buffer, buffer), 1: (buffer, buffer)}
    monkeypatch.setattr(decode_attention, "triton", object())
    monkeypatch.setattr(gemv, "supports", lambda *args: True)
    for layer in range(2):
        assert decode_block.supports(model.stack.blocks[layer], torch.zeros(1, 1, 16), state)
    attach_adapters(model, AdapterConfig(projections=(projection,)))
    assert not decode_block.supports(model.stack.blocks[0], torch.zeros(1, 1, 16), state)
    merge_adapters(model)
    assert decode_block.supports(model.stack.blocks[0], torch.zeros(1, 1, 16), state)


@pytest.mark.usefixtures("qkv_unchecked", "fresh_compiler")
def test_compiled() -> None:
    """One graph without adapters, another with them, and none of them is mistaken for the other."""
    from qkv.models import GPT, GPTConfig
    from qkv.nn.lora import AdapterConfig, adapter_parameters, attach_adapters, merge_adapters

    model = GPT(GPTConfig(vocabulary=13, context=16, width=16, depth=1, heads=4, kv_heads=2)).eval()
    compiled, ids = torch.compile(model, backend="eager", fullgraph=True), words(2, 5)
    plain = model(ids)
    assert_close(compiled(ids), plain)
    attach_adapters(model, AdapterConfig(rank=2, projections=("query", "value", "down")))
    for parameter in adapter_parameters(model):
        nn.init.normal_(parameter)
    changed = model(ids)
    assert not torch.allclose(changed, plain)
    assert_close(compiled(ids), changed)
    merge_adapters(model)
    assert_close(compiled(ids), changed)


@pytest.mark.parametrize(
    ("choices", "complaint"),
    [
        ({"rank": 0}, "rank: expected 1 or more, not 0"),
        ({"rank": 2.5}, "rank: expected a whole number"),
        ({"alpha": 0.0}, "alpha: expected a number above 0"),
        ({"dropout": 1.0}, "dropout: expected a probability from 0 to below 1"),
        ({"projections": ()}, "projections: expected one or more"),
        ({"projections": ("query", "query")}, "projections: expected one or more, each once"),
        (
            {"projections": ("q_proj",)},
            "projections: expected several, each one of query, key, value, output",
        ),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_wrong_configs(choices: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        AdapterConfig(**choices)


def test_wrong_models() -> None:
    with pytest.raises(ValueError, match=r"projections: .*query"):
        attach_adapters(rnn(), AdapterConfig())
    with pytest.raises(
        ValueError, match=r"projections: BERT has no gate to adapt \(only swiglu has a gate\)"
    ):
        attach_adapters(bert(), AdapterConfig(projections=("gate",)))
    model = gpt()
    attach_adapters(model, AdapterConfig())
    with pytest.raises(ValueError, match=r"model: .*adapters"):
        attach_adapters(model, AdapterConfig())
    with pytest.raises(ValueError, match=r"kv_heads: .*adapters"):
        group_key_value_heads(model, 2)


def test_places_cover_every_row_once() -> None:
    for module in (
        MultiHeadAttention(16, 4, kv_heads=2),
        FeedForward(8, 12, "swiglu"),
        FeedForward(8, 12, "gelu"),
    ):
        actual: dict[int, list[int]] = {}
        for layer, rows in adapter_sites(module).values():
            actual.setdefault(id(layer), []).extend(rows)
        layers = [layer for layer in module.modules() if isinstance(layer, Linear)]
        assert {key: sorted(rows) for key, rows in actual.items()} == {
            id(layer): list(range(layer.out_features)) for layer in layers
        }
    assert not adapter_sites(Linear(2, 2))
