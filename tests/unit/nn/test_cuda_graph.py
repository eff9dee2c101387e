"""A captured step: warm-up, capture and replay, in this order, with a stand-in for the GPU."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from qkv.nn.cuda_graph import WARM_UP, CudaGraph


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens on the stand-in; a replay runs nothing, so only copies can be seen."""
    happened: list[str] = []
    stream = SimpleNamespace(wait_stream=lambda other: None)
    graph = SimpleNamespace(replay=lambda: happened.append("replay"))

    def capture(graph: Any, **options: Any) -> Any:
        happened.append(f"capture in {options['pool']}")
        return nullcontext()

    monkeypatch.setattr(torch.cuda, "Stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: graph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    return happened


def test_a_step_is_warmed_up_captured_and_replayed(events: list[str]) -> None:
    x = torch.zeros(2)
    graph = CudaGraph(
        lambda: events.append("step"), [x], pool="pool", reset=lambda: events.append("reset")
    )
    assert events == [*["step", "reset"] * WARM_UP, "capture in pool", "step"]
    graph.replay(torch.ones(2))
    assert events[-1] == "replay"
    assert x.tolist() == [1, 1]


def test_every_input_needs_a_value(events: list[str]) -> None:
    graph = CudaGraph(lambda: None, [torch.zeros(1)])
    with pytest.raises(ValueError, match="zip"):
        graph.replay()


def test_no_garbage_is_collected_during_a_capture(events: list[str]) -> None:
    during: list[bool] = []
    CudaGraph(lambda: during.append(gc.isenabled()))

    assert during == [*[True] * WARM_UP, False]
    assert gc.isenabled()


@pytest.mark.parametrize("enabled", [True, False])
def test_collections_are_as_before_after_a_capture_that_failed(
    events: list[str], enabled: bool
) -> None:
    calls: list[None] = []

    def step() -> None:
        calls.append(None)
        if len(calls) > WARM_UP:
            raise RuntimeError("this operation waits for the GPU")

    if not enabled:
        gc.disable()

    try:
        with pytest.raises(RuntimeError, match="waits for the GPU"):
            CudaGraph(step)

        assert gc.isenabled() is enabled
    finally:
        gc.enable()
