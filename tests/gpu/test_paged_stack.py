"""On a GPU: the fused blocks over a paged cache give the numbers of the plain blocks."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from support import gpu_models

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("qkv_unchecked")]

KINDS = gpu_models.KINDS | {
    "one key head": {"activation": "relu", "position": "none", "kv_heads": 1},
    "wide heads": {"activation": "silu", "position": "rotary", "head_width": 64},
}
LENGTHS = ([1], [3, 17, 128, 129], [700, 1, 1024, 255, 40], [2000, 5, 1025])
CONTEXT = 2048


def qkv() -> SimpleNamespace:
    """A copy of qkv without runtime shape checks, which Triton cannot compile."""
    from qkv import models
    from qkv.nn import cache
    from qkv.nn.attention.mask import Causal
    from qkv.nn.decode import paged_stack

    everything = gpu_models.names_of((models, cache))
    return SimpleNamespace(**everything | {"paged_stack": paged_stack, "Causal": Causal})


def model_of(kind: dict[str, Any], dtype: torch.dtype) -> Any:
    return gpu_models.small_gpt(qkv(), kind, CONTEXT, dtype)


def filled_cache(model: Any, rows: int) -> Any:
    """A cache with random keys and values, and a block table without common slots."""
    torch.manual_seed(4)
    config = model.config
    pages = qkv().PagedCache(
        rows * CONTEXT,
        rows,
        CONTEXT,
        depth=2,
        kv_heads=config.kv_heads or config.heads,
        head_width=config.width_of_head,
        like=model.embedding.token.weight,
    )
    for store in (*pages.keys, *pages.values):
        store.copy_(torch.randn(store.shape).bfloat16())  # the same numbers in every precision

    slots = torch.randperm(rows * CONTEXT).view(rows, CONTEXT)
    pages.block_table.copy_(slots.int())
    return pages


def outputs(model: Any, dtype: torch.dtype, fused: bool, inputs: Any) -> tuple[Tensor, Any]:
    """The hidden states of a step, and the cache after it."""
    model = model.to(dtype)
    pages, state, ids, positions = inputs(model)
    parts = qkv().paged_stack.PlainParts([], [])
    if fused:
        parts = qkv().paged_stack.plain_parts(model)

    with torch.inference_mode(), qkv().paged_stack.installed(parts):
        hidden = model.hidden(ids, positions=positions, state=state)

    return hidden, pages


def assert_equal(kind: str, dtype: torch.dtype, inputs: Any) -> None:
    model = model_of(KINDS[kind], dtype)
    assert all(qkv().paged_stack.plain_parts(model))
    expected, plain = outputs(model, torch.float64, False, inputs)
    actual, fused = outputs(model, dtype, True, inputs)
    tolerance = 2e-5 if dtype is torch.float32 else 5e-2
    torch.testing.assert_close(actual.double(), expected, atol=tolerance, rtol=tolerance)
    for one, other in zip((*plain.keys, *plain.values), (*fused.keys, *fused.values), strict=True):
        torch.testing.assert_close(other.double(), one.double(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_decoding(
    kind: str, lengths: list[int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One new token of each sequence."""
    rows = len(lengths)
    calls = counted(monkeypatch)

    def inputs(model: Any) -> Any:
        pages = filled_cache(model, rows)
        table_rows = torch.arange(rows, device="cuda")
        length = torch.tensor(lengths, device="cuda")
        slots = pages.block_table[table_rows, length - 1].long()
        group = qkv().SequenceGroup(
            0, rows, 1, table_rows, length, max(lengths), len(set(lengths)) == 1
        )
        state = qkv().PackedBatch(pages, [group], slots)
        ids = torch.arange(rows, device="cuda").unsqueeze(0) + 7
        return pages, state, ids, (length - 1).unsqueeze(0)

    assert_equal(kind, dtype, inputs)
    assert len(calls) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_prompts(kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two prompts of 33 tokens and one of 5 in one row."""
    calls = counted(monkeypatch)

    def inputs(model: Any) -> Any:
        pages = filled_cache(model, 3)
        groups = [qkv().SequenceGroup(0, 2, 33, None), qkv().SequenceGroup(66, 1, 5, None)]
        table = pages.block_table
        slots = torch.cat([table[0, :33], table[1, :33], table[2, :5]]).long()
        first = torch.arange(33, device="cuda")
        positions = torch.cat([first, first, first[:5]]).unsqueeze(0)
        state = qkv().PackedBatch(pages, groups, slots)
        return pages, state, torch.arange(71, device="cuda").unsqueeze(0), positions

    assert_equal(kind, dtype, inputs)
    assert len(calls) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_prompts_in_tiles(kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts with and without a past, and padding, as a CUDA graph reads them."""
    calls = counted(monkeypatch)
    counts = [33, 70, 5, 1]
    pasts = [0, 40, 7, 1500]

    def inputs(model: Any) -> Any:
        pages = filled_cache(model, 4)
        tiles = []
        positions = []
        rows = []
        for row, (count, past) in enumerate(zip(counts, pasts, strict=True)):
            for done in range(0, count, 32):
                tokens = min(32, count - done)
                tiles.append([len(rows) + done, tokens, past + done + tokens])

            positions += range(past, past + count)
            rows += [row] * count

        # Padding: tokens without keys, whose own go to an unused slot
        slots = pages.block_table[rows, positions].tolist()
        padding = 19
        tiles += [[len(rows), padding, 0], [0, 0, 0]]
        slots += [int(pages.block_table[0, -1])] * padding
        positions += [0] * padding
        rows += [0] * padding
        ids = [*range(sum(counts)), *[0] * padding]

        to_gpu = partial(torch.tensor, device="cuda")
        state = qkv().PackedPrompts(
            pages, to_gpu(slots), to_gpu(rows), to_gpu(tiles).t().contiguous()
        )
        return pages, state, to_gpu([ids]), to_gpu([positions])

    assert_equal(kind, dtype, inputs)
    assert len(calls) == 1


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the passes that the fused kernels compute."""
    calls: list[int] = []
    run = qkv().paged_stack.run

    def counting(*arguments: Any) -> Tensor:
        calls.append(1)
        return run(*arguments)

    monkeypatch.setattr(qkv().paged_stack, "run", counting)
    return calls


def test_a_hook_sees_the_plain_blocks() -> None:
    from qkv.nn.hooks import add_hook

    model = model_of(KINDS["gpt-2"], torch.float32)
    seen: list[Tensor] = []

    def inputs(model: Any) -> Any:
        pages = filled_cache(model, 1)
        state = qkv().PackedBatch(
            pages, [qkv().SequenceGroup(0, 1, 4, None)], pages.block_table[0, :4].long()
        )
        positions = torch.arange(4, device="cuda").unsqueeze(0)
        return pages, state, positions, positions

    def look(value: Tensor, name: str) -> None:
        seen.append(value)

    with add_hook(model, "stack.blocks.0.before", look):
        outputs(model, torch.float32, True, inputs)

    assert len(seen) == 1
