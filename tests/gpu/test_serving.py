"""The engine on a GPU, where steps are recorded and the host hears each word a step late: the same
words.

Triton cannot compile what the shape checks have rewritten, so every test imports a copy of qkv
without them.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from support.families import GPT_KINDS, SMALL, gpt, transformer
from unit.serving.engine.test_engine import PROMPTS

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("qkv_unchecked")]


def steps_of(model: Any, **how: Any) -> Any:
    """serving.engines.Steps, with that copy."""
    return runpy.run_path(str(Path(__file__).parents[1] / "support" / "engines.py"))["Steps"](
        model, **how
    )


def on_gpu(like: torch.nn.Module) -> Any:
    """The same model in that copy, in float32."""
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
    from qkv.nn.attention.kernels.decode import look_at_pages
    from qkv.nn.attention.score import scaled_dot

    R, H, D, places = 5, 4, 32, 16384
    query = torch.randn(R, H, 1, D, device="cuda", dtype=dtype)
    keys, values = torch.randn(2, places, kv_heads, D, device="cuda", dtype=dtype)
    at = torch.stack([torch.randperm(places, device="cuda")[:4096] for _ in range(9)]).int()
    slots = torch.tensor([8, 0, 3, 5, 1], device="cuda")
    lengths = torch.tensor([length, 1, length // 2 + 1, max(1, length - 1), 2], device="cuda")
    with torch.no_grad():
        found = look_at_pages(query, keys, values, at, slots, lengths, length)
    for row in range(R):
        mine = at[slots[row], : lengths[row]].long()
        key, value = (store[mine].transpose(0, 1).unsqueeze(0).double() for store in (keys, values))
        expected, _ = eager(query[row : row + 1].double(), key, value, None, scaled_dot, None)
        torch.testing.assert_close(
            found[row : row + 1].double(),
            expected,
            atol=1e-5 if dtype is torch.float32 else 1e-2,
            rtol=1e-2,
        )


@pytest.mark.parametrize(
    "kind", ["position learned", "llama", "position alibi", "window", "fixed", "one key head"]
)
@pytest.mark.parametrize(
    "chosen", [{"temperature": 0}, {"top_k": 9, "repetition": 1.2}, {"minimum": 5}], ids=str
)
def test_requests_that_come_and_go_do_not_mind_each_other(
    kind: str, chosen: dict[str, Any]
) -> None:
    """With heads of a width that the kernels know."""
    from qkv.generation import SamplingParams, generate, row_seeds
    from qkv.models import GPT, GPTConfig

    torch.manual_seed(1)
    model = GPT(GPTConfig(**(SMALL | {"head_width": 16, "context": 64} | GPT_KINDS[kind]))).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.4)
    model = model.cuda()
    steps, choice = steps_of(model, rows=4, tokens=3, cache=1 << 20), SamplingParams(**chosen)
    handles = []
    for number, prompt in enumerate(PROMPTS):
        handles.append(
            steps.request(prompt, max_tokens=20 + number % 3, sampling=choice, seed=number, end_ids=(6,))
        )
        steps.step(number % 3)
    steps.finish()
    for number, (prompt, handle) in enumerate(zip(PROMPTS, handles, strict=True)):
        how: dict[str, Any] = {"length": 20 + number % 3, "choice": choice, "end": 6}
        assert steps.ids(handle) == generate(model, [prompt], seed=row_seeds(number, 1), **how)
    assert steps.used == 0
    replays = steps.engine.runner.replays
    assert (replays is None) == (kind in ("position alibi", "window", "fixed"))
    assert replays is None or replays.recorded


def test_likeliest_words_beside_drawn_ones_and_their_alternatives() -> None:
    """A recording chooses the likeliest word itself; where someone draws, or asks what else there
    was, it may not.
    """
    from qkv.generation import SamplingParams, generate, row_seeds

    model = on_gpu(gpt(context=64, head_width=16))
    steps = steps_of(model, rows=8, cache=1 << 20)
    greedy = [
        steps.request(prompt, max_tokens=9, sampling=SamplingParams(temperature=0)) for prompt in PROMPTS[:3]
    ]
    steps.step(4)
    drawn = [steps.request(prompt, max_tokens=5, seed=number) for number, prompt in enumerate(PROMPTS[3:])]
    told = steps.request(PROMPTS[0], max_tokens=3, sampling=SamplingParams(temperature=0), logprobs=2)
    steps.finish()
    for prompt, handle in zip(PROMPTS[:3], greedy, strict=True):
        assert steps.ids(handle) == generate(model, [prompt], length=9, temperature=0)
    for number, (prompt, handle) in enumerate(zip(PROMPTS[3:], drawn, strict=True)):
        assert steps.ids(handle) == generate(model, [prompt], length=5, seed=row_seeds(number, 1))
    assert [
        said.alternatives[0].id for chunk in steps.chunks(told) for said in chunk.tokens
    ] == steps.ids(greedy[0])[0][:3]


def test_a_client_that_is_gone_and_a_full_cache() -> None:
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


def test_recordings_that_are_made_while_texts_speak() -> None:
    """For more texts, or for longer ones: the steps that are run before one is recorded are no
    text's.
    """
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
    sizes, parts = map(set, zip(*steps.engine.runner.replays.recorded, strict=True))
    assert len(sizes) > 1
    assert parts == {1, 2}


def test_beam_search_of_a_translator() -> None:
    from qkv.generation import SamplingParams, beam_search

    model = on_gpu(transformer(head_width=16))
    steps = steps_of(model, rows=12, cache=1 << 20)
    start = steps.engine.tokenizer.start
    handles = [steps.request(prompt, max_tokens=7, end_ids=(2,), beams=3, samples=2) for prompt in PROMPTS]
    drawn = [
        steps.request(prompt, max_tokens=7, end_ids=(2,), sampling=SamplingParams(temperature=0))
        for prompt in PROMPTS
    ]
    steps.finish()
    for prompt, handle, greedy in zip(PROMPTS, handles, drawn, strict=True):
        (best,) = beam_search(model, [prompt], start=start, end=2, length=7, beams=3, n_best=2)
        assert [chunk.score for chunk in steps.chunks(handle)] == pytest.approx(
            [each.score for each in best], abs=1e-4
        )
        (one,) = beam_search(model, [prompt], start=start, end=2, length=7, beams=1)
        assert (steps.ids(greedy) or [[]])[0] == one[0].ids
    assert steps.used == 0
