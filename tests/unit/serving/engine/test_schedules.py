"""Random schedules: requests that join, leave, abort or are preempted do not affect others."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from qkv.generation import generate
from qkv.generation.sampling_params import SamplingParams
from qkv.generation.translate import translate
from qkv.serving.engine.generation_request import RequestHandle
from support.engines import WORDS, Steps
from support.families import gpt, rnn, rnn_lm, transformer

MODELS: dict[str, Any] = {
    "gpt": lambda: gpt(context=48),
    "rotary": lambda: gpt(context=48, position="rotary", kv_heads=2),
    "transformer-xl": lambda: gpt(position="relative", memory=5, context=4),
    "translator": lambda: transformer(context=48),
    "rnn": rnn,
    "rnn-lm": rnn_lm,
}
SAMPLING = [
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
    """Every request gets the tokens that it gets alone; `ahead` runs a step ahead, as on a GPU."""
    rng = random.Random(schedule)
    model = MODELS[name]()
    steps = Steps(model, rows=5, tokens=rng.choice([3, 40]), cache=56 * 1024)
    steps.engine.runs_ahead = ahead and name not in ("rnn", "rnn-lm", "transformer-xl")
    requests: list[tuple[RequestHandle, dict[str, Any]]] = []
    prompts = [[rng.randrange(7) for _ in range(rng.randrange(1, 24))] for _ in range(4)]
    for _ in range(60):
        act = rng.random()
        if act < 0.3:
            requests.append(random_request(rng, steps, prompts))
        elif act < 0.37 and requests:
            rng.choice(requests)[0].abort()
        else:
            steps.step()
            assert steps.used <= steps.engine.scheduler.blocks.total
    steps.finish()
    assert steps.used == 0
    assert steps.engine.metrics()["preempted"] > 0 or name != "gpt", "no sequence was preempted"
    scheduler = steps.engine.scheduler
    assert sorted(scheduler.blocks.slots) == list(range(scheduler.max_sequences))
    for handle, fields in requests:
        if not handle.aborted:
            generated = steps.ids(handle)
            samples = fields["samples"]
            assert generated + [[]] * (samples - len(generated)) == alone(model, **fields)
            ended = [chunk for chunk in steps.chunks(handle) if chunk.reason is not None]
            assert len(ended) == samples


def random_request(
    rng: random.Random, steps: Steps, prompts: list[list[int]]
) -> tuple[RequestHandle, dict[str, Any]]:
    """A request that has joined the queue, and its fields."""
    prompt = rng.choice(prompts)[: rng.randrange(1, 24)]
    length = rng.randrange(1, 24)
    seed = rng.randrange(99)
    sampling = rng.choice(SAMPLING)
    samples = rng.choice([1, 1, 3])
    stream = rng.random() < 0.5
    handle = steps.request(
        prompt,
        max_tokens=length,
        seed=seed,
        sampling=sampling,
        samples=samples,
        end_ids=(6,),
        stream=stream,
    )
    fields = {"prompt": prompt, "length": length, "seed": seed, "sampling_params": sampling}
    return handle, {**fields, "samples": samples}


def alone(model: Any, prompt: list[int], **options: Any) -> list[list[int]]:
    """The tokens of a request outside of the engine."""
    if model.predicts == "next":
        return generate(model, [prompt], end=6, **options)
    return translate(model, torch.tensor([prompt]), start=WORDS.start, end=6, **options)
