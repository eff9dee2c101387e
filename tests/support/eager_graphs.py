"""The step graphs of the engine without a GPU: every replay runs the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.generation.sampling_params import SamplingParams, sample_tokens
from qkv.serving.engine.engine import Engine
from qkv.serving.engine.runners import prefill_cuda_graph, runner_cuda_graph
from qkv.serving.engine.runners.prefill_cuda_graph import GraphSize, PrefillGraphs
from qkv.serving.engine.runners.runner import PagedRunner
from qkv.serving.engine.runners.runner_cuda_graph import StepGraphs


class EagerReplay:
    """A step that is run instead of replayed."""

    def __init__(self, step: Callable[[], Any], inputs: Tensor) -> None:
        self.step = step
        self.inputs = inputs

    def replay(self, values: Tensor) -> Any:
        self.inputs.copy_(values)
        return self.step()


class EagerGraphs(StepGraphs):
    """Counts its replays, and the rows of each."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.replayed: list[int] = []

    def graph_for(self, size: int, parts: int) -> Any:
        self.replayed.append(size)
        return EagerReplay(lambda: self.step(size, parts * runner_cuda_graph.PART), self.inputs)


class EagerPrefill(PrefillGraphs):
    """Notes the size of each of its replays."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.replayed: list[GraphSize] = []

    def graph_for(self, size: GraphSize) -> Any:
        self.replayed.append(size)
        return EagerReplay(lambda: self.step(size), self.inputs[: size.numbers])


def sample_rows(logits: Tensor, uniform: Tensor, filters: Tensor) -> Tensor:
    """The tokens of the sampling kernel, by the eager definition."""
    tokens = []
    for row in range(len(logits)):
        temperature, top_k, top_p, min_p = filters[:, row].tolist()
        params = SamplingParams(
            temperature=temperature, top_k=int(top_k) or None, top_p=top_p, min_p=min_p
        )
        tokens.append(sample_tokens(logits[row : row + 1], uniform[row : row + 1], params))

    return torch.cat(tokens)


def install(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> EagerGraphs:
    """Let an engine on a CPU run as on a GPU: by graphs, and a step ahead of the host."""
    monkeypatch.setattr(runner_cuda_graph, "sample_rows", sample_rows)
    monkeypatch.setattr(prefill_cuda_graph, "sample_rows", sample_rows)
    runner = engine.runner
    assert isinstance(runner, PagedRunner)
    graphs = EagerGraphs(runner.model, runner.pages, runner.last_tokens, runner.table)
    runner.graphs = graphs
    scheduler = engine.scheduler
    runner.prefill_graphs = EagerPrefill(
        graphs, scheduler.max_sequences, scheduler.max_prefill_tokens
    )
    engine.runs_ahead = True

    return graphs
