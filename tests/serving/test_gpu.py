"""The engine on a GPU, where steps are recorded and the host hears each word a step late: the same words."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from models.families import GPT_KINDS, SMALL, gpt, transformer
from qkv.generation import beam_search, generate, row_seeds
from qkv.generation.choice import Choice
from qkv.models import GPT, GPTConfig
from qkv.nn.attention.attend import eager
from qkv.nn.attention.score import scaled_dot
from qkv.nn.attention.single import look_at_pages
from serving.engines import WORDS, Steps
from serving.test_engine import PROMPTS

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("without_shape_checks")]


@pytest.mark.parametrize(("length", "dtype"), [(3, torch.float32), (700, torch.float32), (2500, torch.bfloat16)])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_attention_to_pages_is_attention(length: int, dtype: torch.dtype, kv_heads: int) -> None:
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
            found[row : row + 1].double(), expected, atol=1e-5 if dtype is torch.float32 else 1e-2, rtol=1e-2
        )


@pytest.mark.parametrize("kind", ["position learned", "llama", "position alibi", "window", "fixed", "one key head"])
@pytest.mark.parametrize("choice", [Choice(temperature=0), Choice(top_k=9, repetition=1.2), Choice(minimum=5)])
def test_requests_that_come_and_go_do_not_mind_each_other(kind: str, choice: Choice) -> None:
    """With heads of a width that the kernels know, in float64 elsewhere and float32 where they serve."""
    config = GPTConfig(**(SMALL | {"head_width": 16, "context": 64} | GPT_KINDS[kind]))
    torch.manual_seed(1)
    model = GPT(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.4)
    model = model.cuda()
    steps = Steps(model, rows=4, tokens=3, cache=1 << 20)
    tickets = []
    for number, prompt in enumerate(PROMPTS):
        tickets.append(steps.ask(prompt, length=20 + number % 3, choice=choice, seed=number, ends=(6,)))
        steps.step(number % 3)
    steps.finish()
    for number, (prompt, ticket) in enumerate(zip(PROMPTS, tickets, strict=True)):
        how: dict[str, Any] = {"length": 20 + number % 3, "choice": choice, "end": 6}
        assert steps.ids(ticket) == generate(model, [prompt], seed=row_seeds(number, 1), **how)
    assert steps.used == 0
    replays = steps.engine.runner.replays
    assert (replays is None) == (kind in ("position alibi", "window", "fixed"))
    assert replays is None or replays.recorded


def test_a_client_that_is_gone_and_a_full_cache() -> None:
    model = gpt(context=64, head_width=16).float().cuda()
    steps = Steps(model, rows=8, cache=7 * 16 * 2 * 2 * 4 * 16 * 4)
    tickets = [steps.ask([number, 1, 2], length=40, seed=number) for number in range(6)]
    steps.step(9)
    tickets[1].cancel()
    steps.finish()
    for number, ticket in enumerate(tickets):
        if number != 1:
            assert steps.ids(ticket) == generate(model, [[number, 1, 2]], length=40, seed=row_seeds(number, 1))
    assert steps.used == 0


def test_beam_search_of_a_translator() -> None:
    model = transformer(head_width=16).float().cuda()
    steps = Steps(model, rows=12, cache=1 << 20)
    tickets = [steps.ask(prompt, length=7, ends=(2,), beams=3, samples=2) for prompt in PROMPTS]
    drawn = [steps.ask(prompt, length=7, ends=(2,), choice=Choice(temperature=0)) for prompt in PROMPTS]
    steps.finish()
    for prompt, ticket, greedy in zip(PROMPTS, tickets, drawn, strict=True):
        (best,) = beam_search(model, [prompt], start=WORDS.start, end=2, length=7, beams=3, n_best=2)
        assert [piece.score for piece in steps.pieces(ticket)] == pytest.approx([each.score for each in best], abs=1e-4)
        (one,) = beam_search(model, [prompt], start=WORDS.start, end=2, length=7, beams=1)
        assert (steps.ids(greedy) or [[]])[0] == one[0].ids
    assert steps.used == 0
