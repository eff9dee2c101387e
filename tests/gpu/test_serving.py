"""The engine on a GPU, with CUDA graphs and one step ahead of the host, gives the same tokens.

Triton cannot compile functions that the shape checks have rewritten, so every test imports a copy
of qkv without them.
"""

from __future__ import annotations

import random
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from support.families import GPT_KINDS, SMALL, gpt, transformer
from unit.serving.engine.test_engine import PROMPTS

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("qkv_unchecked")]


def steps_of(model: Any, **options: Any) -> Any:
    """support.engines.Steps, with that copy of qkv."""
    path = Path(__file__).parents[1] / "support" / "engines.py"
    return runpy.run_path(str(path))["Steps"](model, **options)


def on_gpu(like: torch.nn.Module) -> Any:
    """The same model in that copy of qkv, in float32."""
    from qkv import models

    config = like.config
    model = models.build(getattr(models, type(config).__name__)(**vars(config))).eval()
    model.load_state_dict(like.state_dict())
    return model.float().cuda()


@pytest.mark.parametrize(
    ("length", "dtype"), [(3, torch.float32), (700, torch.float32), (2500, torch.bfloat16)]
)
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_attention_to_pages_is_attention(length: int, dtype: torch.dtype, kv_heads: int) -> None:
    from qkv.nn.attention.attend import eager
    from qkv.nn.attention.kernels.decode import attend_paged
    from qkv.nn.attention.score import scaled_dot

    R, H, D = 5, 4, 32
    positions = 16384
    query = torch.randn(R, H, 1, D, device="cuda", dtype=dtype)
    keys, values = torch.randn(2, positions, kv_heads, D, device="cuda", dtype=dtype)
    rows = [torch.randperm(positions, device="cuda")[:4096] for _ in range(9)]
    block_table = torch.stack(rows).int()
    slots = torch.tensor([8, 0, 3, 5, 1], device="cuda")
    lengths = torch.tensor([length, 1, length // 2 + 1, max(1, length - 1), 2], device="cuda")
    with torch.no_grad():
        heads = attend_paged(query, keys, values, block_table, slots, lengths, length)
    for row in range(R):
        mapping = block_table[slots[row], : lengths[row]].long()
        key, value = (
            store[mapping].transpose(0, 1).unsqueeze(0).double() for store in (keys, values)
        )
        expected, _ = eager(query[row : row + 1].double(), key, value, None, scaled_dot, None)
        torch.testing.assert_close(
            heads[row : row + 1].double(),
            expected,
            atol=1e-5 if dtype is torch.float32 else 1e-2,
            rtol=1e-2,
        )


@pytest.mark.parametrize(
    "kind", ["position learned", "llama", "position alibi", "window", "fixed", "one key head"]
)
@pytest.mark.parametrize(
    "params", [{"temperature": 0}, {"top_k": 9, "repetition": 1.2}, {"minimum": 5}], ids=str
)
def test_requests_that_join_and_leave_get_the_same_tokens_as_alone(
    kind: str, params: dict[str, Any]
) -> None:
    """With a head width that the kernels support."""
    from qkv.generation import SamplingParams, generate, row_seeds
    from qkv.models import GPT, GPTConfig

    torch.manual_seed(1)
    model = GPT(GPTConfig(**(SMALL | {"head_width": 16, "context": 64} | GPT_KINDS[kind]))).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.4)
    model = model.cuda()
    steps = steps_of(model, rows=4, tokens=3, cache=1 << 20)
    sampling = SamplingParams(**params)
    handles = []
    for number, prompt in enumerate(PROMPTS):
        handles.append(
            steps.request(
                prompt, max_tokens=20 + number % 3, sampling=sampling, seed=number, end_ids=(6,)
            )
        )
        steps.step(number % 3)
    steps.finish()
    for number, (prompt, handle) in enumerate(zip(PROMPTS, handles, strict=True)):
        alone = generate(
            model,
            [prompt],
            length=20 + number % 3,
            sampling_params=sampling,
            end=6,
            seed=row_seeds(number, 1),
        )
        assert steps.ids(handle) == alone
    assert steps.used == 0
    graphs = steps.engine.runner.graphs
    assert (graphs is None) == (kind in ("position alibi", "window", "fixed"))
    assert graphs is None or graphs.captured


def test_mixed_sampling_parameters_in_one_graph() -> None:
    """Each sequence gets the tokens that `generate` gives with its parameters and seed."""
    from qkv.generation import SamplingParams, generate, row_seeds

    settings: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 1.3},
        {"temperature": 0.8, "top_k": 4},
        {"top_p": 0.7},
        {"min_p": 0.2},
        {"temperature": 1.2, "top_k": 9, "top_p": 0.9, "min_p": 0.01},
    ]
    model = on_gpu(gpt(context=128, head_width=16))
    steps = steps_of(model, rows=8, cache=1 << 20)
    handles = []
    for number, fields in enumerate(settings * 2):
        handles.append(
            steps.request(
                PROMPTS[number % len(PROMPTS)],
                max_tokens=70,
                sampling=SamplingParams(**fields),
                seed=number,
            )
        )
        steps.step(number % 3)

    runner = steps.engine.runner
    sampled = []
    decode = runner.decode
    runner.decode = lambda batch: sampled.append(len(batch.decode)) or decode(batch)
    steps.finish()
    assert max(sampled) == 8
    for number, (handle, fields) in enumerate(zip(handles, settings * 2, strict=True)):
        alone = generate(
            model,
            [PROMPTS[number % len(PROMPTS)]],
            length=70,
            sampling_params=SamplingParams(**fields),
            seed=row_seeds(number, 1),
        )
        assert steps.ids(handle) == alone, fields


def test_greedy_beside_sampled_sequences_and_logprobs() -> None:
    """A CUDA graph chooses greedy tokens itself, unless a sequence samples or wants logprobs."""
    from qkv.generation import SamplingParams, generate, row_seeds

    model = on_gpu(gpt(context=64, head_width=16))
    steps = steps_of(model, rows=8, cache=1 << 20)
    greedy = [
        steps.request(prompt, max_tokens=9, sampling=SamplingParams(temperature=0))
        for prompt in PROMPTS[:3]
    ]
    steps.step(4)
    sampled = [
        steps.request(prompt, max_tokens=5, seed=number)
        for number, prompt in enumerate(PROMPTS[3:])
    ]
    scored = steps.request(
        PROMPTS[0], max_tokens=3, sampling=SamplingParams(temperature=0), logprobs=2
    )
    steps.finish()
    for prompt, handle in zip(PROMPTS[:3], greedy, strict=True):
        assert steps.ids(handle) == generate(model, [prompt], length=9, temperature=0)
    for number, (prompt, handle) in enumerate(zip(PROMPTS[3:], sampled, strict=True)):
        assert steps.ids(handle) == generate(model, [prompt], length=5, seed=row_seeds(number, 1))
    tokens = [token for chunk in steps.chunks(scored) for token in chunk.tokens]
    assert [token.alternatives[0].id for token in tokens] == steps.ids(greedy[0])[0][:3]


def test_an_aborted_request_and_a_full_cache() -> None:
    from qkv.generation import generate, row_seeds

    model = on_gpu(gpt(context=64, head_width=16))
    steps = steps_of(model, rows=8, cache=7 * 16 * 2 * 2 * 4 * 16 * 4)
    handles = [steps.request([number, 1, 2], max_tokens=40, seed=number) for number in range(6)]
    steps.step(9)
    handles[1].abort()
    steps.finish()
    for number, handle in enumerate(handles):
        if number != 1:
            assert steps.ids(handle) == generate(
                model, [[number, 1, 2]], length=40, seed=row_seeds(number, 1)
            )
    assert steps.used == 0


def test_graphs_that_are_captured_while_sequences_decode() -> None:
    """For larger batches or longer sequences: the steps before a capture change no sequence."""
    from qkv.generation import generate, row_seeds

    model = on_gpu(gpt(context=2048, head_width=16))
    steps = steps_of(model, rows=8, cache=1 << 22)
    prompts = [[number % 13 for number in range(1019)], *PROMPTS[:3]]
    handles = []
    for number, prompt in enumerate(prompts):
        handles.append(steps.request(prompt, max_tokens=20, seed=number))
        steps.step(3)
    steps.finish()
    for number, (prompt, handle) in enumerate(zip(prompts, handles, strict=True)):
        assert steps.ids(handle) == generate(model, [prompt], length=20, seed=row_seeds(number, 1))
    sizes, parts = map(set, zip(*steps.engine.runner.graphs.captured, strict=True))
    assert len(sizes) > 1
    assert parts == {1, 2}


@pytest.mark.parametrize("budget", [40, 128, 8192])
def test_prompts_are_read_by_graphs(budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of any length, in chunks, with cached prefixes, while other sequences decode."""
    from qkv.generation import generate, row_seeds

    model = on_gpu(gpt(context=256, head_width=16, position="rotary", kv_heads=2))
    steps = steps_of(model, rows=24, tokens=budget, cache=1 << 23)
    runner = steps.engine.runner

    def no_pass(batch: Any) -> None:
        raise AssertionError("a pass without a graph")

    monkeypatch.setattr(runner, "hidden", no_pass)
    lengths = [1, 63, 64, 65, 128, 129, 200, *[3] * 12, 17, 33]
    rng = random.Random(5)
    prefix = [rng.randrange(13) for _ in range(32)]
    prompts = [[rng.randrange(13) for _ in range(length)] for length in lengths]
    prompts += [prefix + prompt for prompt in prompts[-4:]]
    handles = []
    for number, prompt in enumerate(prompts):
        handles.append(steps.request(prompt, max_tokens=9, seed=number))
        if number % 5 == 4:
            steps.step(2)

    steps.finish()
    handles.append(steps.request([*prefix, 1], max_tokens=9, seed=len(prompts)))
    prompts.append([*prefix, 1])
    steps.finish()
    for number, (prompt, handle) in enumerate(zip(prompts, handles, strict=True)):
        assert steps.ids(handle) == generate(model, [prompt], length=9, seed=row_seeds(number, 1))

    assert runner.prefill_graphs.captured
    assert steps.engine.metrics()["shared_tokens"] >= 32
    for store in (*runner.pages.keys, *runner.pages.values):
        assert store.isfinite().all()


@pytest.mark.parametrize(
    "lengths", [[1], [64], [65], [5] * 60, [128] * 64, [1000, 700, 3]], ids=str
)
def test_graphs_give_the_logits_of_a_plain_pass(lengths: list[int]) -> None:
    """In bf16, where tokens may differ if two are almost equally likely."""
    from qkv.serving.engine.runners.runner import Runner

    model = on_gpu(gpt(context=1024, head_width=64)).bfloat16()
    steps = steps_of(model, rows=64, cache=1 << 26)
    for number, length in enumerate(lengths):
        steps.request([(number * 5 + place * place) % 13 for place in range(length)])

    runner = steps.engine.runner
    with torch.inference_mode():
        batch = steps.engine.scheduler.schedule()
        logits, _ = runner.prefill_graphs.run(batch.prefill)
        logits = logits.clone()
        plain = Runner.run(runner, batch)

    assert logits.shape == plain.shape
    scale = plain.abs().max().item()
    torch.testing.assert_close(logits.float(), plain.float(), atol=2e-2 * scale, rtol=0)


def test_a_warm_engine_captures_nothing_more() -> None:
    model = on_gpu(gpt(context=64, head_width=16))
    steps = steps_of(model, rows=8, tokens=100, cache=1 << 20)
    runner = steps.engine.runner
    runner.warm_up(8)
    captured = dict(runner.prefill_graphs.captured)
    assert list(captured) == [64, 128]
    for prompt in PROMPTS:
        steps.request(prompt, max_tokens=3)

    steps.finish()
    assert runner.prefill_graphs.captured == captured


def test_beam_search_of_a_translator() -> None:
    from qkv.generation import SamplingParams, beam_search

    model = on_gpu(transformer(head_width=16))
    steps = steps_of(model, rows=12, cache=1 << 20)
    start = steps.engine.tokenizer.start
    handles = [
        steps.request(prompt, max_tokens=7, end_ids=(2,), beams=3, samples=2) for prompt in PROMPTS
    ]
    drawn = [
        steps.request(prompt, max_tokens=7, end_ids=(2,), sampling=SamplingParams(temperature=0))
        for prompt in PROMPTS
    ]
    steps.finish()
    for prompt, handle, greedy in zip(PROMPTS, handles, drawn, strict=True):
        (best,) = beam_search(model, [prompt], start=start, end=2, length=7, beams=3, n_best=2)
        assert [chunk.score for chunk in steps.chunks(handle)] == pytest.approx(
            [hypothesis.score for hypothesis in best], abs=1e-4
        )
        (one,) = beam_search(model, [prompt], start=start, end=2, length=7, beams=1)
        assert (steps.ids(greedy) or [[]])[0] == one[0].ids
    assert steps.used == 0
