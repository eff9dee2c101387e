"""A decode step on a CPU with the fewest calls gives the numbers of the modules."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_hook
from torch.testing import assert_close

from qkv.generation import generate
from qkv.generation.prefill import next_logits
from qkv.models import int4, int8
from qkv.nn.decode import cpu_block
from qkv.nn.decode.cpu_block import CpuBlock, CpuBlocks
from qkv.nn.feed_forward import FeedForward
from qkv.nn.hooks import add_hook
from qkv.nn.linear import onednn
from qkv.nn.linear.onednn import prepacking
from qkv.nn.lora import AdapterConfig, attach_adapters
from qkv.nn.native import native_library
from support.families import GPT_KINDS, gpt, transformer, words


@pytest.fixture(params=["compiled", "PyTorch"], autouse=True)
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With and without the kernels that the package compiles when it is installed."""
    if request.param == "PyTorch":
        monkeypatch.setattr(native_library, "library", lambda: None)
    elif native_library.library() is None:
        pytest.skip("the kernels were not compiled: there is no C compiler, or no x86-64 processor")

    return str(request.param)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The layers that were computed by a `CpuBlock`, or together by a `CpuStack`."""
    layers: list[int] = []
    run = CpuBlock.run
    run_together = cpu_block.run_together

    def counted(self: CpuBlock, *args: Any) -> Tensor:
        layers.append(self.layer)
        return run(self, *args)

    def counted_together(blocks: Any, *args: Any) -> Tensor:
        layers.extend(block.layer for block in blocks)
        return run_together(blocks, *args)

    monkeypatch.setattr(CpuBlock, "run", counted)
    monkeypatch.setattr(cpu_block, "run_together", counted_together)
    return layers


def small(**choices: Any) -> Any:
    return gpt(**choices).float().eval()


def step_logits(model: Any, ids: Tensor, padding_mask: Tensor | None, *, fast: bool) -> Tensor:
    """The logits of a prompt of 3 tokens and of the tokens after it, one by one."""
    state = model.start()
    blocks = CpuBlocks(model)
    logits = []
    for piece in ids.split([3] + [1] * (ids.shape[1] - 3), dim=1):
        mask = None
        if padding_mask is not None:
            mask = padding_mask[:, : state.length + piece.shape[1]]

        with blocks.installed() if fast else nullcontext():
            logits.append(next_logits(model, piece, state, mask))

    return torch.stack(logits, dim=1)


@pytest.mark.parametrize("kind", GPT_KINDS)
@pytest.mark.parametrize("padded", [False, True])
def test_every_gpt(kind: str, padded: bool, runs: list[int]) -> None:
    model = small(**GPT_KINDS[kind])
    ids = words(3, 9)
    padding_mask = None
    sparse = model.config.sparse not in (None, "none")
    if padded and not sparse and not model.config.memory:
        padding_mask = torch.ones(3, 9, dtype=torch.bool)
        padding_mask[1, :2] = False

    plain = step_logits(model, ids, padding_mask, fast=False)
    assert not runs
    assert_close(step_logits(model, ids, padding_mask, fast=True), plain, rtol=1e-4, atol=1e-4)

    # Positions that add to the scores, or that have a memory, keep the modules.
    if model.config.position not in ("alibi", "relative") and not model.config.memory:
        assert runs == [0, 1] * 6


@pytest.mark.parametrize("quantize", [int8, int4])
def test_matrices_of_few_bits(quantize: Any, runs: list[int]) -> None:
    model = quantize(small())
    ids = words(2, 6)
    plain = step_logits(model, ids, None, fast=False)
    assert_close(step_logits(model, ids, None, fast=True), plain, rtol=1e-3, atol=1e-3)
    assert runs == [0, 1] * 3


def test_prepacked_matrices(runs: list[int]) -> None:
    model = small()
    ids = words(4, 6)
    plain = step_logits(model, ids, None, fast=False)
    with prepacking():
        assert_close(step_logits(model, ids, None, fast=True), plain, rtol=1e-4, atol=1e-4)

    assert runs


def test_the_fewest_rows_are_multiplied_in_c_wherever_the_norms_are(
    kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel of a whole block computes norms before a product only."""
    if kernels == "compiled":
        monkeypatch.setattr(native_library.library(), "intel", True)

    by_onednn: set[int] = set()
    multiply = onednn.multiply

    def recorded(x: Tensor, *arguments: Any) -> Tensor:
        if x.shape[-2] == 1:  # not the prompt
            by_onednn.add(len(x))

        return multiply(x, *arguments)

    monkeypatch.setattr(onednn, "multiply", recorded)
    model = small(norm_placement="after")
    most = native_library.most_float_rows()
    for rows in (1, 4, most + 1):
        step_logits(model, words(rows, 5), None, fast=True)

    assert by_onednn == {rows for rows in (1, 4, most + 1) if rows > most}


def test_generation_uses_it_and_leaves_the_model_as_it_was(runs: list[int]) -> None:
    model = small()
    prompts = [[1, 2, 3], [4, 5]]
    tokens = generate(model, prompts, length=5, temperature=0)
    assert runs == [0, 1] * 4
    assert not any("forward" in vars(block) for block in model.stack.blocks)

    del runs[:]
    with add_hook(model, "stack.blocks.0.attention.heads", lambda value, name: None):
        assert generate(model, prompts, length=5, temperature=0) == tokens

    assert runs == [1] * 4


def test_a_hook_changes_the_output(runs: list[int]) -> None:
    model = small()
    ids = words(2, 6)
    without = step_logits(model, ids, None, fast=True)
    with add_hook(model, "stack.blocks.1.feed_forward.hidden", lambda value, name: value * 0):
        changed = step_logits(model, ids, None, fast=True)
        assert_close(changed, step_logits(model, ids, None, fast=False), rtol=1e-4, atol=1e-4)

    assert (changed - without).abs().max() > 1e-3


@pytest.mark.parametrize("part", ["", ".attention", ".attention.output", ".feed_forward_residual"])
def test_hooks_of_pytorch_that_come_later_are_called(part: str, runs: list[int]) -> None:
    model = small()
    ids = words(2, 6)
    state = model.start()
    blocks = CpuBlocks(model)
    seen: list[Any] = []
    with blocks.installed():
        next_logits(model, ids[:, :3], state)
        next_logits(model, ids[:, 3:4], state)
        assert runs == [0, 1]

        module = model.get_submodule(f"stack.blocks.1{part}")
        hook = module.register_forward_hook(lambda *_: seen.append(1))
        next_logits(model, ids[:, 4:5], state)
        assert len(seen) == 1
        assert runs == [0, 1, 0]

        hook.remove()
        next_logits(model, ids[:, 5:6], state)

    assert len(seen) == 1
    assert runs == [0, 1, 0, 0, 1]


def test_hooks_of_all_modules_are_called(runs: list[int]) -> None:
    model = small()
    ids = words(1, 4)
    state = model.start()
    blocks = CpuBlocks(model)
    next_logits(model, ids[:, :3], state)
    seen: list[Any] = []
    hook = register_module_forward_hook(lambda module, *_: seen.append(type(module)))
    try:
        with blocks.installed():
            next_logits(model, ids[:, 3:], state)
    finally:
        hook.remove()

    assert FeedForward in seen
    assert not runs


def test_what_is_changed_keeps_its_modules() -> None:
    def supported(change: Any, model: Any) -> int:
        change(model)
        return len(CpuBlocks(model).forwards)

    def replace_attend(model: Any) -> None:
        model.stack.blocks[0].attention.attend = lambda *args: None

    def replace_forward(model: Any) -> None:
        model.stack.blocks[0].forward = lambda x, **_: x

    def watch(model: Any) -> None:
        model.stack.blocks[0].attention.output.register_forward_hook(lambda *_: None)

    assert supported(lambda model: None, small()) == 2
    assert supported(replace_attend, small()) == 1
    assert supported(replace_forward, small()) == 1
    assert supported(watch, small()) == 1
    assert supported(lambda model: attach_adapters(model, AdapterConfig(rank=2)), small()) < 2
    assert supported(lambda model: model.train(), small()) == 0
    assert supported(lambda model: model.double(), small()) == 0
    assert supported(lambda model: None, transformer().float().eval()) == 2  # the encoder


def test_gradients_and_other_states_take_the_modules(runs: list[int]) -> None:
    model = small()
    ids = words(2, 1)
    with CpuBlocks(model).installed():
        model(ids).sum().backward()
        with torch.no_grad():
            model(ids)

    assert model.stack.blocks[0].attention.qkv.weight.grad is not None
    assert not runs
    assert cpu_block.supports(model.stack.blocks[0])
