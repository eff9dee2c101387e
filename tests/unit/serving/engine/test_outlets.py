"""Outlets: streamed tokens that are sent as numbers are the tokens of the request, each once."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from jaxtyping import Int64

from qkv.generation import SamplingParams, generate, row_seeds
from qkv.serving.engine.generation_request import GenerationRequest, RequestHandle
from support.engines import Steps
from support.families import gpt

PROMPTS = [[1, 2, 3, 4, 5], [6], [7, 8, 9], [10, 11, 12, 1, 2, 3, 4]]


class TokenLists:
    """An outlet that keeps the tokens of each number."""

    def __init__(self) -> None:
        self.received: dict[int, list[int]] = defaultdict(list)
        self.frames = 0

    def deliver(self, updates: Any) -> None:
        raise AssertionError("a host delivers updates, and there is none here")

    def deliver_tokens(
        self, numbers: Int64[np.ndarray, "M"], token_ids: Int64[np.ndarray, "M"]
    ) -> None:
        self.frames += 1
        for number, token_id in zip(numbers.tolist(), token_ids.tolist(), strict=True):
            self.received[number].append(token_id)


def request(steps: Steps, outlet: TokenLists, number: int, **fields: Any) -> RequestHandle:
    """A streamed request whose text somebody else writes."""
    handle = RequestHandle(
        GenerationRequest(stream=True, detokenize=False, **fields), outlet=outlet
    )
    handle.number = number
    steps.engine.check(handle.request)
    steps.engine.add_request(handle)
    return handle


def received(steps: Steps, outlet: TokenLists, handle: RequestHandle) -> list[list[int]]:
    """The tokens of each sample: those of the outlet, then those of its chunks."""
    tokens = []
    chunks = steps.chunks(handle)
    for sample in range(handle.request.samples):
        mine = [chunk for chunk in chunks if chunk.sample == sample]
        in_chunks = [id for chunk in mine for id in chunk.token_ids]
        tokens.append(outlet.received[handle.number + sample] + in_chunks)
        assert mine[-1].reason is not None
        assert mine[-1].generated == len(tokens[-1])

    return tokens


@pytest.mark.parametrize("end_ids", [(), (6,), (6, 0, 1, 2, 3)], ids=["none", "one", "many"])
def test_tokens_of_an_outlet_are_those_of_the_request(end_ids: tuple[int, ...]) -> None:
    """With more end ids than a row has room for, every token is a chunk."""
    model = gpt(context=128)
    steps = Steps(model, rows=8, tokens=3, cache=1 << 22)
    outlets = [TokenLists(), TokenLists()]
    params = SamplingParams(top_k=9)
    handles = []
    for number, prompt in enumerate(PROMPTS):
        handle = request(
            steps, outlets[number % 2], 10 * number, prompt=prompt, max_tokens=70,
            samples=1 + number % 2, sampling=params, seed=number, end_ids=end_ids,
        )  # fmt: skip
        handles.append(handle)
        steps.step(number)

    steps.finish()
    for number, handle in enumerate(handles):
        samples = handle.request.samples
        alone = generate(
            model, [PROMPTS[number]] * samples, length=70, sampling_params=params,
            seed=row_seeds(number, samples), end=end_ids or None,
        )  # fmt: skip
        assert received(steps, outlets[number % 2], handle) == alone

    relayed = sum(outlet.frames for outlet in outlets)
    assert (relayed > 0) == (len(end_ids) < 5)
    assert steps.used == 0


def test_a_preempted_stream_sends_each_token_once() -> None:
    model = gpt(context=128)
    steps = Steps(model, rows=8, cache=1 << 16)
    blocks = steps.engine.scheduler.blocks.total
    outlet = TokenLists()
    params = SamplingParams(temperature=0)
    handles = []
    for number, prompt in enumerate(PROMPTS):
        fields: dict[str, Any] = {"prompt": prompt, "max_tokens": 90, "sampling": params}
        handles.append(request(steps, outlet, number, **fields))

    steps.finish()
    assert steps.engine.metrics()["preempted"] > 0, f"{blocks} blocks are too many"
    for prompt, handle in zip(PROMPTS, handles, strict=True):
        alone = generate(model, [prompt], length=90, sampling_params=params)
        assert received(steps, outlet, handle) == alone
        assert len(steps.chunks(handle)[-1].token_ids) == 1


def test_a_whole_response_is_one_chunk() -> None:
    steps = Steps(gpt(), cache=1 << 20)
    outlet = TokenLists()
    handle = RequestHandle(
        GenerationRequest(prompt=[1, 2, 3], max_tokens=5, detokenize=False), outlet=outlet
    )
    steps.engine.add_request(handle)
    steps.finish()
    (chunk,) = steps.chunks(handle)
    assert len(chunk.token_ids) == 5
    assert not outlet.received


def test_an_outlet_that_fails_aborts_its_own_requests(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(TokenLists):
        def deliver_tokens(self, numbers: Any, token_ids: Any) -> None:
            raise RuntimeError("the event loop is closed")

    model = gpt()
    steps = Steps(model, cache=1 << 20)
    params = SamplingParams(temperature=0)
    broken = request(steps, Broken(), 1, prompt=[1, 2, 3], max_tokens=9, sampling=params)
    outlet = TokenLists()
    other = request(steps, outlet, 2, prompt=[4, 5], max_tokens=9, sampling=params)
    steps.finish()
    alone = generate(model, [[4, 5]], length=9, sampling_params=params)
    assert received(steps, outlet, other) == alone
    assert broken.aborted
    assert not steps.chunks(broken)
    assert steps.used == 0
    assert "RuntimeError" in caplog.text
