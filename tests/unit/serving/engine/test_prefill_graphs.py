"""Prompts that are read by graphs: the tokens are those that each request gets alone."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from qkv.generation import SamplingParams
from qkv.nn.hooks import add_hook
from qkv.serving.engine.block_allocator import BLOCK_SIZE
from qkv.serving.engine.runners import prefill_cuda_graph
from qkv.serving.engine.runners.prefill_cuda_graph import GraphSize, graph_sizes
from qkv.serving.engine.runners.prompt_packing import pack_prompts, tiles_of
from qkv.serving.engine.runners.runner import PagedRunner
from support.eager_graphs import EagerPrefill, install
from support.engines import Steps
from support.families import gpt
from unit.serving.engine.test_decode_rows import PLAIN, SAMPLING, assert_as_alone, random_request

pytestmark = pytest.mark.usefixtures("without_shape_checks")


@pytest.fixture
def small_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs of 8, 16, 32, ... tokens and tiles of 4, so that short prompts need several."""
    monkeypatch.setattr(prefill_cuda_graph, "SMALLEST", 8)
    monkeypatch.setattr(prefill_cuda_graph, "FEWEST", 2)
    monkeypatch.setattr(prefill_cuda_graph, "TOKENS_EACH", 4)
    monkeypatch.setattr(prefill_cuda_graph, "tile_tokens", lambda head_width, dtype: 4)


def by_graphs(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> EagerPrefill:
    """Let an engine read and decode by graphs alone: any other pass fails."""
    install(steps.engine, monkeypatch)
    runner = steps.engine.runner
    assert isinstance(runner, PagedRunner)
    assert isinstance(runner.prefill_graphs, EagerPrefill)

    def no_pass(batch: Any) -> None:
        raise AssertionError("a pass without a graph")

    monkeypatch.setattr(runner, "hidden", no_pass)
    return runner.prefill_graphs


@pytest.mark.parametrize("schedule", range(3))
@pytest.mark.parametrize("sampling", [PLAIN, SAMPLING], ids=["plain", "all"])
@pytest.mark.usefixtures("small_graphs")
def test_random_prompts(
    schedule: int, sampling: list[SamplingParams], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunked prompts, cached prefixes, preemptions and samples that share a prompt."""
    rng = random.Random(schedule)
    model = gpt(context=100, position="rotary", kv_heads=2)
    steps = Steps(model, rows=6, tokens=rng.choice([7, 40, 90]), cache=40 * 1024)
    graphs = by_graphs(steps, monkeypatch)
    requests = []
    prefix = [rng.randrange(7) for _ in range(2 * BLOCK_SIZE)]
    for _ in range(250):
        act = rng.random()
        if act < 0.1:
            requests.append(random_request(rng, steps, sampling))
        elif act < 0.14:
            fields = {"prompt": [*prefix, rng.randrange(7)], "max_tokens": 5, "end_ids": ()}
            fields |= {"sampling": rng.choice(PLAIN), "seed": rng.randrange(9)}
            requests.append((steps.request(**fields), fields))
        else:
            steps.step()

    steps.finish()
    assert steps.used == 0
    metrics = steps.engine.metrics()
    assert metrics["preempted"] > 0
    assert metrics["shared_tokens"] > 0
    for handle, fields in requests:
        assert_as_alone(steps, handle, fields)

    for store in (*graphs.pages.keys, *graphs.pages.values):
        assert store.isfinite().all()


@pytest.mark.parametrize(
    ("lengths", "size"),
    [
        ([1], 8),
        ([8], 8),
        ([9], 16),
        ([4, 4], 8),
        ([1, 1, 1], 16),  # 8 tokens have room for 2 sequences
        ([16, 16], 32),
        ([31, 2], 64),
        ([1] * 6, 32),
    ],
    ids=str,
)
@pytest.mark.usefixtures("small_graphs")
def test_prompts_are_padded_to_the_smallest_graph_with_room(
    lengths: list[int], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slots that no sequence has hold NaN, which nothing may read."""
    steps = Steps(gpt(context=100), rows=6, tokens=64, cache=1 << 20)
    graphs = by_graphs(steps, monkeypatch)
    for store in (*graphs.pages.keys, *graphs.pages.values):
        store[BLOCK_SIZE:] = torch.nan

    requests = []
    for number, length in enumerate(lengths):
        fields = {"prompt": [(number + place) % 13 for place in range(length)], "max_tokens": 4}
        fields |= {"sampling": PLAIN[number % len(PLAIN)], "seed": number, "end_ids": ()}
        requests.append((steps.request(**fields), fields))

    steps.step()
    assert [replayed.tokens for replayed in graphs.replayed] == [size]
    steps.finish()
    for handle, fields in requests:
        assert_as_alone(steps, handle, fields)

    for store in (*graphs.pages.keys, *graphs.pages.values):
        assert store[:BLOCK_SIZE].isfinite().all()  # the scratch block


def test_a_request_that_arrives_while_others_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(gpt(context=100), rows=6, cache=1 << 20)
    graphs = by_graphs(steps, monkeypatch)
    fields = {"max_tokens": 20, "sampling": PLAIN[1], "end_ids": ()}
    requests = []
    for seed in range(5):
        own = fields | {"prompt": [1, 2, 3, seed] * (seed + 1), "seed": seed}
        requests.append((steps.request(**own), own))
        steps.step(3)

    steps.finish()
    assert len(graphs.replayed) == 5
    for handle, own in requests:
        assert_as_alone(steps, handle, own)


@pytest.mark.parametrize(
    "fields", [{"prompt_logprobs": 1}, {"heads_off": ((0, 1),)}, {"hook": True}], ids=str
)
def test_what_graphs_do_not_support_runs_without_them(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = dict(fields)
    hooked = fields.pop("hook", False)
    model = gpt(context=100)
    expected = Steps(model, cache=1 << 20)
    steps = Steps(model, cache=1 << 20)
    install(steps.engine, monkeypatch)
    runner = steps.engine.runner
    assert isinstance(runner, PagedRunner)
    graphs = runner.prefill_graphs
    assert isinstance(graphs, EagerPrefill)
    for engine in (expected, steps):
        handle = engine.request([1, 2, 3], sampling=SamplingParams(temperature=0), **fields)
        if hooked:
            with add_hook(model, "stack.blocks.0.after", lambda value, name: None):
                engine.step()

        engine.finish()
        tokens = engine.ids(handle)
        if engine is expected:
            first = tokens

    assert tokens == first
    assert not graphs.replayed


def test_beams_start_from_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    model = gpt(context=100)
    fields: dict[str, Any] = {"max_tokens": 6, "beams": 3, "samples": 2, "end_ids": (6,)}
    found = []
    for graphs in (False, True):
        steps = Steps(model, cache=1 << 20)
        if graphs:
            by_graphs(steps, monkeypatch)

        handle = steps.request([1, 2, 3], **fields)
        steps.finish()
        found.append([(chunk.tokens, chunk.reason) for chunk in steps.chunks(handle)])

    assert found[0] == found[1]


@pytest.mark.parametrize("size", [1, 4, 64])
def test_every_token_is_in_one_tile(size: int) -> None:
    """Tiles of one sequence, with as many keys as their last token attends to."""
    rng = random.Random(size)
    steps = Steps(gpt(context=100), rows=6, cache=1 << 20)
    for _ in range(5):
        steps.request([rng.randrange(9) for _ in range(rng.randrange(1, 70))])

    prefill = steps.engine.scheduler.schedule().prefill
    packed = pack_prompts(prefill, steps.engine.runner.table)
    packed.computed[::2] += 3
    padding = 37
    tiles = tiles_of(packed, padding, size)
    keys: list[int] = []
    for first, count, last in tiles.T.tolist():
        assert first == len(keys)
        assert 1 <= count <= size
        keys += range(last - count + 1, last + 1)
        if first >= len(packed.ids):
            assert last == 0

    expected: list[int] = []
    for begin, count in zip(packed.computed, packed.counts, strict=True):
        expected += range(begin + 1, begin + count + 1)

    assert len(keys) == len(packed.ids) + padding
    assert keys[: len(expected)] == expected
    tokens = len(packed.ids) + padding
    assert tiles.shape[1] <= tokens // size + len(prefill) + 1


def test_packed_prompts_are_those_of_each_sequence() -> None:
    steps = Steps(gpt(context=100), rows=6, tokens=60, cache=1 << 20)
    prompts = [list(range(9)), [3], [5, 4] * 20, [2] * 31]
    for prompt in prompts:
        steps.request(prompt)

    prefill = steps.engine.scheduler.schedule().prefill
    packed = pack_prompts(prefill, steps.engine.runner.table)
    ids: list[int] = []
    mapping: list[int] = []
    for sequence, count in prefill:
        ids += sequence.token_ids[:count]
        for position in range(count):
            block, offset = divmod(position, BLOCK_SIZE)
            mapping.append(sequence.block_table[block] * BLOCK_SIZE + offset)

    assert packed.ids.tolist() == ids
    assert packed.new.mapping.tolist() == mapping
    assert packed.new.slots.tolist() == np.repeat(packed.slots, packed.counts).tolist()
    whole = [row for row, (sequence, count) in enumerate(prefill) if count == sequence.num_tokens]
    assert packed.completed.tolist() == whole
    assert len(whole) < len(prefill), "one prompt is read in part"


def test_sizes_reach_the_budget() -> None:
    sizes = graph_sizes(max_sequences=100, max_tokens=3000, tile=64)
    assert [size.tokens for size in sizes] == [64, 128, 256, 512, 1024, 2048, 4096]
    assert sizes[0] == GraphSize(64, 8, 10)
    assert sizes[-1].sequences == 100
    assert all(size.sequences <= 100 for size in sizes)
