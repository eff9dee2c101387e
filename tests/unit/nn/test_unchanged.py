"""Fused kernels, which read parameters and call no module, replace only unchanged modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from qkv.models import GPT, GPTConfig
from qkv.nn.attention.multi_head import MultiHeadAttention
from qkv.nn.block import Block
from qkv.nn.cache import PackedBatch, PagedCache, SequenceGroup
from qkv.nn.decode.decode_block import is_plain
from qkv.nn.feed_forward import FeedForward
from qkv.nn.linear.linear import Linear
from qkv.nn.norm import LayerNorm
from qkv.nn.unchanged import all_unchanged
from qkv.training.systems.gradient_checkpointing import recompute_activations, recompute_blocks


class OwnAttention(MultiHeadAttention):
    def attend(self, *args: Any, **kwargs: Any) -> Any:
        heads, weights = super().attend(*args, **kwargs)
        return torch.zeros_like(heads), weights


class OwnForward(FeedForward):
    def activate(self, x: torch.Tensor) -> torch.Tensor:
        return x


class OwnLinear(Linear):
    pass


class OwnNorm(LayerNorm):
    pass


def gpt(**fields: Any) -> GPT:
    torch.manual_seed(0)
    return GPT(GPTConfig(vocabulary=11, context=16, width=16, depth=2, heads=2, **fields)).eval()


def own_attention(block: Block) -> None:
    block.attention = OwnAttention(16, 2)


def own_feed_forward(block: Block) -> None:
    block.feed_forward = OwnForward(16, 64)


def own_matrix(block: Block) -> None:
    block.attention.qkv = OwnLinear(16, 48)


def own_norm(block: Block) -> None:
    block.feed_forward_residual.norm = OwnNorm(16)


def no_norm(block: Block) -> None:
    block.attention_residual.norm = nn.Identity()  # type: ignore[assignment]


def own_dropout(block: Block) -> None:
    block.attention_residual.dropout = nn.AlphaDropout()  # type: ignore[assignment]


def unknown_activation(block: Block) -> None:
    block.feed_forward.activation = "sine"  # type: ignore[assignment]


def forward_of_an_instance(block: Block) -> None:
    block.attention.forward = lambda x, *args, **kwargs: (x, None)  # type: ignore[method-assign]


def method_of_an_instance(block: Block) -> None:
    block.feed_forward.activate = torch.relu  # type: ignore[method-assign]


def hook(block: Block) -> None:
    block.attention.output.register_forward_hook(lambda *args: None)


def pre_hook(block: Block) -> None:
    block.feed_forward_residual.norm.register_forward_pre_hook(lambda *args: None)


CHANGES: list[Callable[[Block], None]] = [
    own_attention, own_feed_forward, own_matrix, own_norm, no_norm, own_dropout, unknown_activation,
    forward_of_an_instance, method_of_an_instance, hook, pre_hook,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_changed_block_is_not_fused(change: Callable[[Block], None]) -> None:
    model = gpt()
    first, second = model.stack.blocks
    assert is_plain(first)
    assert all_unchanged(model)
    change(first)
    assert not is_plain(first)
    assert is_plain(second)
    if change is not unknown_activation:  # whose own module computes it, also in a CUDA graph
        assert not all_unchanged(model)


def test_a_changed_class_is_not_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = gpt()
    monkeypatch.setattr(MultiHeadAttention, "attend", OwnAttention.attend)
    assert not is_plain(model.stack.blocks[0])
    monkeypatch.undo()
    assert is_plain(model.stack.blocks[0])


def test_a_hook_for_all_modules_is_called() -> None:
    model = gpt()
    handle = nn.modules.module.register_module_forward_hook(lambda *args: None)
    try:
        assert not is_plain(model.stack.blocks[0])
        assert not all_unchanged(model)
    finally:
        handle.remove()
    assert all_unchanged(model)


def test_a_subclass_of_a_model_is_changed() -> None:
    class OwnGPT(GPT):
        pass

    assert not all_unchanged(OwnGPT(gpt().config))


def test_a_removed_hook_is_no_change() -> None:
    model = gpt()
    handle = model.stack.register_forward_hook(lambda *args: None)
    assert not all_unchanged(model)
    handle.remove()
    assert all_unchanged(model)


def test_what_computes_the_same_is_fused() -> None:
    model = gpt()
    recompute_activations(model)
    recompute_blocks(model)
    model.stack.blocks[1].compile()
    assert all(map(is_plain, model.stack.blocks))
    assert all_unchanged(model)
    assert all_unchanged(torch.compile(model))  # type: ignore[arg-type]


def test_the_paged_kernel_does_not_replace_an_overridden_attend(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The paged kernel computes `MultiHeadAttention.attend`, which this attention overrides."""
    plain_calls: list[bool] = []

    def attend(self: Any, layer: int, query: Any, *args: Any, plain: Any) -> Any:
        plain_calls.append(plain())
        return query, None

    monkeypatch.setattr(PackedBatch, "attend", attend)
    pages = PagedCache(4, 1, 4, depth=1, kv_heads=2, head_width=8, like=torch.zeros(1))
    batch = PackedBatch(pages, [SequenceGroup(0, 1, 1, None)], torch.zeros(1, dtype=torch.int64))
    for kind in (MultiHeadAttention, OwnAttention):
        kind(16, 2)(torch.zeros(1, 1, 16), state=batch)
    assert plain_calls == [True, False]


@pytest.mark.gpu
@pytest.mark.usefixtures("qkv_unchecked")  # Triton cannot compile shape-checked functions
@pytest.mark.parametrize("samples", [1, 3])
def test_a_gpu_runs_an_own_attention(samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model with an overridden attention generates what the plain path generates."""
    from qkv.generation import decode_cuda_graph, generate
    from qkv.models import GPT, GPTConfig
    from qkv.nn.attention.multi_head import MultiHeadAttention

    calls = []

    class Negated(MultiHeadAttention):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            calls.append(1)
            heads, weights = super().forward(*args, **kwargs)
            return -heads, weights

    torch.manual_seed(0)
    model = GPT(GPTConfig(vocabulary=50, context=128, width=64, depth=2, heads=4)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 8
    model.to("cuda", torch.bfloat16)
    kwargs: dict[str, Any] = {"length": 60, "temperature": 1.0, "seed": 0, "samples": samples}
    stock = generate(model, [[1, 2, 3]], **kwargs)

    for block in model.stack.blocks:
        block.attention.__class__ = Negated
    actual = generate(model, [[1, 2, 3]], **kwargs)
    assert len(calls) >= 60 * 2
    monkeypatch.setattr(decode_cuda_graph, "supports", lambda model, batch: False)
    assert actual == generate(model, [[1, 2, 3]], **kwargs)
    assert actual != stock
