"""Graphs of training steps: which shapes are captured, and where gradients go; without a GPU.

A stand-in runs the step at every replay, on the tensors that a graph would read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from qkv.data.batches.batch import Batch
from qkv.data.batches.shape_buckets import pad_to_bucket
from qkv.models import TransformerConfig, build
from qkv.nn.cuda_graph import CudaGraph
from qkv.training.objective import Objective
from qkv.training.step import HostCopy, gradients_of
from qkv.training.systems import training_cuda_graph
from qkv.training.systems.distributed import World

WORLD = World(torch.device("cpu"))
CONFIG = TransformerConfig(vocabulary=30, width=8, depth=1, heads=2, dropout=0.1)


class StandIn(CudaGraph[Any]):
    """A graph that is run anew at every replay."""

    made: ClassVar[list[Any]] = []

    def __init__(
        self,
        step: Callable[[], Any],
        inputs: Sequence[Tensor],
        *,
        pool: Any,
        reset: Callable[[], object],
    ) -> None:
        self.step = step
        self.inputs = inputs
        self.made.append(pool)
        step()  # the capture
        reset()

    def replay(self, *values: Tensor) -> Any:
        for target, value in zip(self.inputs, values, strict=True):
            target.copy_(value)

        return self.step()


def runs(step: Callable[[], object]) -> bool:
    step()
    return True


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    StandIn.made = []
    monkeypatch.setattr(training_cuda_graph, "CudaGraph", StandIn)
    monkeypatch.setattr(training_cuda_graph, "runs_without_waiting", runs)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "one pool")


def pairs(rows: int, length: int, seed: int) -> Batch:
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, length + 1, (rows, 1), generator=random)
    lengths[0] = length
    mask = torch.arange(length) < lengths
    ids = torch.randint(30, (rows, length), generator=random)

    return Batch(
        ids=ids, targets=ids.masked_fill(~mask, -100), source=ids, source_padding_mask=mask
    )


def step(objective: Objective, batch: Batch) -> tuple[Tensor, list[Tensor | None]]:
    objective.zero_grad(set_to_none=True)
    loss, _ = gradients_of(objective, batch, WORLD, seed=(3, 5))
    return loss.float(), [weight.grad for weight in objective.model.parameters()]


def test_every_shape_has_the_gradients_of_eager_mode() -> None:
    torch.manual_seed(0)
    model = build(CONFIG).double().train()
    plain = Objective(model)
    fast = Objective(model)
    fast.use_cuda_graph(wait=1, shaped=pad_to_bucket)
    assert fast.cuda_graphs is not None
    places = set()

    for number in range(8):  # two shapes in turn, each with the same dropout as in eager mode
        batch = pad_to_bucket(pairs(7, 18, number) if number % 2 else pairs(40, 6, number))
        expected_loss, expected = step(plain, batch)
        expected = [None if x is None else x.clone() for x in expected]
        loss, found = step(fast, batch)
        torch.testing.assert_close(loss, expected_loss)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)  # the factor is float32

        if number >= 2:
            places.add(tuple(gradient.data_ptr() for gradient in found if gradient is not None))

    assert len(fast.cuda_graphs.graphs) == 2
    assert StandIn.made == ["one pool"] * 2
    assert len(places) == 1  # both graphs write the gradients to the same tensors


def test_shapes_beyond_the_most_stay_in_eager_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_cuda_graph, "MOST_GRAPHS", 2)
    fast = Objective(build(CONFIG))
    fast.use_cuda_graph(shaped=pad_to_bucket)
    assert fast.cuda_graphs is not None
    for length in (3, 4, 5, 6, 3):
        step(fast, pairs(4, length, length))

    assert len(fast.cuda_graphs.graphs) == 2


def test_a_pass_that_waits_for_the_gpu_is_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_cuda_graph, "runs_without_waiting", lambda step: False)
    torch.manual_seed(0)
    model = build(CONFIG).double().train()
    plain = Objective(model)
    fast = Objective(model)
    fast.use_cuda_graph(shaped=pad_to_bucket)
    assert fast.cuda_graphs is not None
    batch = pad_to_bucket(pairs(4, 5, 0))
    expected_loss, _ = step(plain, batch)
    for _ in range(2):
        loss, gradients = step(fast, batch)
        torch.testing.assert_close(loss, expected_loss)
        assert gradients[0] is not None

    assert not fast.cuda_graphs.graphs


def test_parameters_that_moved_are_captured_anew() -> None:
    model = build(CONFIG)
    fast = Objective(model)
    fast.use_cuda_graph(shaped=pad_to_bucket)
    assert fast.cuda_graphs is not None
    batch = pairs(4, 5, 0)
    step(fast, batch)
    graphs = dict(fast.cuda_graphs.graphs)
    step(fast, batch)
    assert fast.cuda_graphs.graphs == graphs

    weight = model.embedding.token.weight
    weight.data = weight.data.clone()
    step(fast, batch)
    assert len(fast.cuda_graphs.graphs) == 1
    assert fast.cuda_graphs.graphs != graphs


def test_a_host_copy_keeps_the_values_that_it_was_made_of() -> None:
    values = torch.tensor([1.5, -2.0])
    assert HostCopy(values).read() == [1.5, -2.0]
