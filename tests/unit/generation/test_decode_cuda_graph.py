"""Decoding with a CUDA graph generates what the decode loop generates, with a stand-in for the GPU.

The stand-in runs the captured steps at every replay; slots, positions and counters are the real
ones.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from qkv.generation import decode_cuda_graph, generate, stream
from qkv.generation.kernels import prompt_cuda_graph
from qkv.models import GPT, GPTConfig

SMALL: dict[str, Any] = {"vocabulary": 60, "context": 128, "width": 32, "depth": 2, "heads": 2}
LLAMA: dict[str, Any] = {"position": "rotary", "norm": "rms", "activation": "swiglu", "kv_heads": 1}
PROMPTS = [[3, 1, 4], [1, 5, 9, 2, 6, 5, 3], [5]]
SAMPLING: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.5, "top_k": 20, "top_p": 0.9},
    {"min_p": 0.05, "repetition": 1.3, "presence": 0.2, "frequency": 0.1, "forbidden": (5, 6)},
    {"minimum": 4, "forced": {1: 17, 3: 18}},
]


class RunSteps:
    """Runs the steps instead of replaying them."""

    def __init__(
        self,
        step: Callable[[], Any],
        *,
        pool: object = None,
        reset: Callable[[], object] = lambda: None,
    ) -> None:
        for _ in range(2):  # the warm-up of a capture
            step()
            reset()

        self.replay = step


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model decodes with the stand-in."""
    event = SimpleNamespace(synchronize=lambda: None)
    monkeypatch.setattr(decode_cuda_graph, "steps_are_alike", lambda model: True)
    monkeypatch.setattr(decode_cuda_graph, "CudaGraph", RunSteps)
    monkeypatch.setattr(prompt_cuda_graph, "CudaGraph", RunSteps)
    monkeypatch.setattr(decode_cuda_graph, "recorded_event", lambda: event)


def model_of(**fields: Any) -> GPT:
    torch.manual_seed(3)
    model = GPT(GPTConfig(**SMALL | fields)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)

    return model


def by_the_loop(model: GPT, prompts: Any, **options: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode_cuda_graph, "supports", lambda model, batch: False)
        return generate(model, prompts, **options)


@pytest.mark.usefixtures("graphs")
@pytest.mark.parametrize("fields", [{}, LLAMA], ids=["gpt-2", "llama"])
@pytest.mark.parametrize("sampling", SAMPLING, ids=str)
def test_a_graph_generates_what_the_loop_generates(
    fields: dict[str, Any], sampling: dict[str, Any]
) -> None:
    model = model_of(**fields)
    options: dict[str, Any] = {"length": 80, "end": 7, "seed": 3, "samples": 2, **sampling}
    first = generate(model, PROMPTS, **options)
    assert model in decode_cuda_graph.graphs
    assert first == generate(model, PROMPTS, **options)  # the same graph, with its counters reset
    assert first == by_the_loop(model, PROMPTS, **options)


@pytest.mark.usefixtures("graphs")
@pytest.mark.parametrize("fields", [{}, LLAMA], ids=["gpt-2", "llama"])
def test_the_prefill_of_a_length_is_captured_when_it_comes_again(fields: dict[str, Any]) -> None:
    """Prompts of 33, 50 and 64 tokens share a graph, whose padding changes no token.

    The second prompt is shorter than the first, so that slots of the first stay behind it.
    """
    model = model_of(**fields)
    options: dict[str, Any] = {"length": 60, "seed": 3, "temperature": 1.2, "samples": 2}
    captured: list[Any] = []
    for length in (64, 33, 50, 64):
        prompts = torch.randint(60, (2, length)).tolist()
        expected = by_the_loop(model, prompts, **options)
        assert generate(model, prompts, **options) == expected
        _, graph = decode_cuda_graph.graphs[model]
        assert list(graph.prefills.captured) == [(2, 64)]
        captured.append(graph.prefills.captured[2, 64].graph)

    assert captured[0] is None
    assert captured[1] is not None
    assert captured[3] is captured[1]


@pytest.mark.usefixtures("graphs")
def test_long_prompts_and_prompts_of_several_lengths_are_not_captured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = model_of()
    monkeypatch.setattr(prompt_cuda_graph, "MOST_TOKENS", 2 * 32)
    for prompts in ([[3] * 33, [4] * 33], [[3] * 20, [4] * 21]):
        for _ in range(3):
            actual = generate(model, prompts, length=60, seed=1)
            assert actual == by_the_loop(model, prompts, length=60, seed=1)
            assert not decode_cuda_graph.graphs[model][1].prefills.captured


@pytest.mark.usefixtures("graphs")
@pytest.mark.parametrize("beyond", ["refuse", "slide"])
def test_a_sequence_goes_on_where_the_graph_ends(beyond: str) -> None:
    """The last launch runs steps beyond the context, whose tokens are discarded."""
    model = model_of()
    options: dict[str, Any] = {"length": 150, "seed": 1, "beyond": beyond}
    actual = generate(model, [[3] * 60, [4] * 5], **options)
    assert actual == by_the_loop(model, [[3] * 60, [4] * 5], **options)


@pytest.mark.usefixtures("graphs")
def test_two_streams_of_one_model_do_not_mix() -> None:
    model = model_of()
    one, two = (stream(model, [[start]], length=60, seed=0) for start in (1, 2))
    both = list(zip(one, two, strict=True))
    assert [token.id for token, _ in both] == by_the_loop(model, [1], length=60, seed=0)
    assert [token.id for _, token in both] == by_the_loop(model, [2], length=60, seed=0)


@pytest.mark.usefixtures("graphs")
def test_a_graph_is_captured_again_when_a_setting_or_a_weight_is_another() -> None:
    model = model_of()
    options: dict[str, Any] = {"length": 60, "temperature": 0.0}
    before = generate(model, PROMPTS, **options)
    key, graph = decode_cuda_graph.graphs[model]
    generate(model, PROMPTS, **options)
    assert decode_cuda_graph.graphs[model] == (key, graph)

    norm: Any = model.stack.blocks[0].attention_residual.norm  # type: ignore[union-attr]
    norm.epsilon = 100.0
    changed = generate(model, PROMPTS, **options)
    assert decode_cuda_graph.graphs[model][0] != key
    assert changed == by_the_loop(model, PROMPTS, **options) != before

    model.stack.norm.gain = torch.nn.Parameter(2 * model.stack.norm.gain.detach())  # type: ignore
    other_key, _ = decode_cuda_graph.graphs[model]
    generate(model, PROMPTS, **options)
    assert decode_cuda_graph.graphs[model][0] != other_key
