"""Random schedules: whoever comes, goes, is cancelled or has to give way, everyone else says what
it says alone.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from qkv.generation import generate, translate
from qkv.generation.sampling_params import SamplingParams
from qkv.models import GPT
from qkv.serving.engine.generation_request import RequestHandle
from support.engines import WORDS, Steps
from support.families import gpt, rnn, transformer

MODELS: dict[str, Any] = {
    "gpt": lambda: gpt(context=48),
    "rotary": lambda: gpt(context=48, position="rotary", kv_heads=2),
    "transformer-xl": lambda: gpt(position="relative", memory=5, context=4),
    "translator": lambda: transformer(context=48),
    "rnn": rnn,
}
CHOICES = [
    SamplingParams(temperature=0),
    SamplingParams(top_k=5),
    SamplingParams(repetition=1.2, frequency=0.4),
    SamplingParams(minimum=4, temperature=1.5),
]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("schedule", range(2))
@pytest.mark.usefixtures("without_shape_checks")
def test_any_schedule(name: str, ahead: bool, schedule: int) -> None:
    """`ahead` as on a GPU: the next step begins before the words of the last one are heard."""
    rng, model = random.Random(schedule), MODELS[name]()
    steps = Steps(model, rows=5, tokens=rng.choice([3, 40]), cache=56 * 1024)
    steps.engine.ahead = ahead and name != "rnn" and name != "transformer-xl"
    asked: list[tuple[RequestHandle, dict[str, Any]]] = []
    prompts = [[rng.randrange(7) for _ in range(rng.randrange(1, 24))] for _ in range(4)]
    for _ in range(60):
        act = rng.random()
        if act < 0.3:
            prompt = rng.choice(prompts)[: rng.randrange(1, 24)]
            how = {
                "length": rng.randrange(1, 24),
                "seed": rng.randrange(99),
                "choice": rng.choice(CHOICES),
            }
            more = {"samples": rng.choice([1, 1, 3]), "ends": (6,), "stream": rng.random() < 0.5}
            asked.append(
                (
                    steps.request(prompt, **how, **more),
                    {"prompt": prompt, **how, "samples": more["samples"]},
                )
            )
        elif act < 0.37 and asked:
            rng.choice(asked)[0].abort()
        else:
            steps.step()
            assert steps.used <= steps.engine.scheduler.blocks.total
    steps.finish()
    assert steps.used == 0
    assert steps.engine.metrics()["preempted"] > 0 or name != "gpt", "nobody had to give way"
    assert sorted(steps.engine.scheduler.slots) == list(range(steps.engine.scheduler.rows))
    for handle, how in asked:
        if not handle.gone:
            said = steps.ids(handle)
            assert said + [[]] * (how["samples"] - len(said)) == alone(model, **how)
            assert sum(chunk.reason is not None for chunk in steps.chunks(handle)) == how["samples"]


def alone(model: Any, prompt: list[int], **how: Any) -> list[list[int]]:
    if isinstance(model, GPT):
        return generate(model, [prompt], end=6, **how)
    return translate(model, torch.tensor([prompt]), start=WORDS.start, end=6, **how)
