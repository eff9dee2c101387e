"""Decoding by graphs that sample every row: the tokens are those that each request gets alone."""

from __future__ import annotations

import random
from typing import Any

import pytest

from qkv.generation import generate, row_seeds
from qkv.generation.sampling_params import SamplingParams
from qkv.serving.engine.generation_request import RequestHandle
from support.eager_graphs import install
from support.engines import Steps
from support.families import gpt

pytestmark = pytest.mark.usefixtures("without_shape_checks")

SAMPLING = [
    SamplingParams(temperature=0),
    SamplingParams(),
    SamplingParams(temperature=1.4, top_k=5),
    SamplingParams(top_p=0.8),
    SamplingParams(min_p=0.1),
    SamplingParams(top_k=6, top_p=0.9),
    SamplingParams(repetition=1.2, frequency=0.4),
    SamplingParams(minimum=4, temperature=1.5),
    SamplingParams(forbidden=(1, 2)),
]
PLAIN = SAMPLING[:6]
"""Those that a graph can sample."""


def random_request(
    rng: random.Random, steps: Steps, sampling: list[SamplingParams]
) -> tuple[RequestHandle, dict[str, Any]]:
    fields: dict[str, Any] = {
        "prompt": [rng.randrange(7) for _ in range(rng.randrange(1, 30))],
        "max_tokens": rng.randrange(1, 90),
        "sampling": rng.choice(sampling),
        "seed": rng.randrange(1000),
        "end_ids": rng.choice([(), (6,), (3, 6)]),
        "stream": rng.random() < 0.4,
    }
    if rng.random() < 0.1:
        fields["samples"] = 2
    if sampling is SAMPLING and rng.random() < 0.1:
        fields["logprobs"] = 2

    return steps.request(**fields), fields


def assert_as_alone(steps: Steps, handle: RequestHandle, fields: dict[str, Any]) -> None:
    samples = fields.get("samples", 1)
    model = steps.engine.model
    prompt = fields["prompt"]
    length = min(fields["max_tokens"], model.config.context - len(prompt) + 1)
    alone = generate(
        model,
        [prompt] * samples,
        length=length,
        sampling_params=fields["sampling"],
        end=fields["end_ids"] or None,
        seed=row_seeds(fields["seed"], samples),
    )
    ids = steps.ids(handle)
    ids += [[] for _ in range(samples - len(ids))]  # samples that ended at once
    if handle.aborted:
        for generated, whole in zip(ids, alone, strict=True):
            assert generated == whole[: len(generated)]
    else:
        assert ids == alone
        reasons = [chunk.reason for chunk in steps.chunks(handle) if chunk.reason]
        assert len(reasons) == samples


@pytest.mark.parametrize("schedule", range(3))
@pytest.mark.parametrize("sampling", [PLAIN, SAMPLING], ids=["plain", "all"])
def test_random_joins_and_leaves(
    schedule: int, sampling: list[SamplingParams], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With preemptions, aborted requests, several samples, and outputs of up to 90 tokens."""
    rng = random.Random(schedule)
    model = gpt(context=100)
    steps = Steps(model, rows=6, tokens=rng.choice([7, 40]), cache=80 * 1024)
    graphs = install(steps.engine, monkeypatch)
    requests = []
    for _ in range(350):
        act = rng.random()
        if act < 0.08:
            requests.append(random_request(rng, steps, sampling))
        elif act < 0.09 and requests:
            rng.choice(requests)[0].abort()
        else:
            steps.step()

    steps.finish()
    assert graphs.replayed
    assert steps.used == 0
    assert not steps.engine.runner.table.owner.any()
    assert steps.engine.metrics()["preempted"] > 0
    for handle, fields in requests:
        assert_as_alone(steps, handle, fields)


def test_mixed_sampling_parameters_share_a_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(gpt(context=100), rows=8, cache=1 << 20)
    graphs = install(steps.engine, monkeypatch)
    requests = []
    for seed, sampling in enumerate(PLAIN):
        fields = {"prompt": [1, 2, seed], "max_tokens": 70, "sampling": sampling, "seed": seed}
        requests.append((steps.request(**fields), fields | {"end_ids": ()}))

    steps.finish()
    assert graphs.replayed == [8] * 69  # the first token comes with the prompt
    for handle, fields in requests:
        assert_as_alone(steps, handle, fields)


def test_prompts_are_read_beside_a_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that joins does not stop the others' graph."""
    steps = Steps(gpt(context=100), rows=8, cache=1 << 20)
    graphs = install(steps.engine, monkeypatch)
    first = {"prompt": [1, 2, 3], "max_tokens": 20, "sampling": PLAIN[1], "seed": 1, "end_ids": ()}
    second = first | {"prompt": [4, 5], "seed": 2, "logprobs": 1}
    one = steps.request(**first)
    steps.step(4)
    two = steps.request(**second)
    replayed = len(graphs.replayed)
    steps.step()
    assert len(graphs.replayed) == replayed + 1
    steps.finish()
    assert_as_alone(steps, one, first)
    assert_as_alone(steps, two, second)


def test_a_reused_slot_does_not_get_the_tokens_of_its_last_owner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The only slot changes its owner while a step is on its way."""
    steps = Steps(gpt(context=100), rows=1, cache=1 << 20)
    install(steps.engine, monkeypatch)
    fields = {"prompt": [1, 2], "max_tokens": 50, "sampling": PLAIN[1], "seed": 5, "end_ids": ()}
    gone = steps.request(**fields)
    steps.step(5)
    gone.abort()
    stays = steps.request(**(fields | {"seed": 6}))
    steps.finish()
    assert_as_alone(steps, stays, fields | {"seed": 6})
