"""Gradients in micro-batches and over ranks equal those of the whole batch; out of memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor, nn

from qkv.data.batches.batch import IGNORE, Batch
from qkv.models import Model, build
from qkv.training.objective import Objective
from qkv.training.step import gradients_of, mix_seeds, share, validate
from qkv.training.systems.distributed import World
from support.small_training import ALONE, MODELS, random_batch

pytestmark = pytest.mark.usefixtures("double_by_default")


def small(family: str, dropout: float = 0.0) -> Model:
    config = replace(MODELS[family], dropout=dropout)
    if family == "gpt":
        config = replace(config, attention_dropout=dropout)

    torch.manual_seed(0)
    return build(config)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {
        name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None
    }


def assert_close(
    actual: dict[str, Tensor], expected: dict[str, Tensor], **tolerance: float
) -> None:
    assert actual.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(actual[name], expected[name], msg=name, **tolerance)


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 20])
@pytest.mark.parametrize("family", list(MODELS))
def test_micro_batches_add_up_to_the_whole_batch(family: str, parts: int) -> None:
    """Rows have different lengths: the sum is divided once, by the count of all targets."""
    batch = random_batch(family)
    model = small(family)
    whole = Objective(model)(batch) / batch.count
    whole.backward()
    expected = gradients(model)
    other = small(family)
    loss, used = gradients_of(Objective(other), batch, ALONE, parts=parts)
    assert used == parts
    torch.testing.assert_close(loss.double(), whole, rtol=1e-6, atol=0)
    assert_close(gradients(other), expected, rtol=1e-10, atol=1e-12)


def test_micro_batches_of_pairs_are_padded_to_their_own_length() -> None:
    lengths = {part.ids.shape[1] for part in random_batch("transformer").split(7)}
    assert len(lengths) > 1, "otherwise the test above proves less"


def test_the_scale_multiplies_gradients_and_not_the_loss() -> None:
    batch = random_batch("gpt")
    model = small("gpt")
    other = small("gpt")
    loss, _ = gradients_of(Objective(model), batch, ALONE)
    scaled, _ = gradients_of(Objective(other), batch, ALONE, parts=2, scale=torch.tensor(1024.0))
    torch.testing.assert_close(loss, scaled)
    assert_close({name: grad / 1024 for name, grad in gradients(other).items()}, gradients(model))


def test_dropout_depends_only_on_seed_step_and_micro_batch() -> None:
    batch = random_batch("gpt")

    def loss_of(seed: tuple[int, int], global_seed: int = 0) -> float:
        model = small("gpt", dropout=0.3)
        torch.manual_seed(global_seed)
        return float(gradients_of(Objective(model), batch, ALONE, parts=2, seed=seed)[0])

    assert loss_of((0, 5)) == loss_of((0, 5), global_seed=9)
    assert len({loss_of(seed) for seed in ((0, 5), (0, 6), (1, 5), (5, 0))}) == 4

    # Two equal micro-batches have different dropout
    row = replace(batch.part(0, 1), padding_mask=None)
    twice = Batch(row.ids.repeat(2, 1), row.targets.repeat(2, 1))
    objective = Objective(small("gpt", dropout=0.3))
    losses: list[float] = []
    objective.register_forward_hook(lambda module, inputs, loss: losses.append(loss.item()))
    gradients_of(objective, twice, ALONE, parts=2)
    assert losses[0] != losses[1]


def test_mixed_seeds_differ() -> None:
    seeds = {mix_seeds(*numbers) for numbers in product(range(4), repeat=4)}
    assert len(seeds) == 4**4
    assert min(seeds) >= 0
    assert max(seeds) < 2**63


# Out of memory


class CrampedObjective(nn.Module):
    """An objective that is out of memory with more than a few rows."""

    def __init__(
        self, model: Model, rows: int, error: type[Exception] | str = torch.OutOfMemoryError
    ) -> None:
        super().__init__()
        self.objective = Objective(model)
        self.rows = rows
        self.error = error
        self.sizes: list[int] = []

    def forward(self, batch: Batch) -> Tensor:
        loss = self.objective(batch)
        self.sizes.append(batch.rows)
        if batch.rows <= self.rows:
            return loss
        if isinstance(self.error, str):
            raise RuntimeError(self.error)

        raise self.error("no room")


CPU_MESSAGE = (
    "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory"
)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, MemoryError, CPU_MESSAGE])
@pytest.mark.parametrize(
    ("rows", "parts", "messages"), [(7, 1, 0), (6, 2, 1), (4, 2, 1), (2, 4, 2), (1, 8, 3)]
)
def test_out_of_memory_halves_the_micro_batches_and_keeps_the_gradient(
    rows: int, parts: int, messages: int, error: type[Exception] | str
) -> None:
    batch = random_batch("transformer")
    model = small("transformer")
    other = small("transformer")
    gradients_of(Objective(model), batch, ALONE)
    lines: list[str] = []
    cramped = CrampedObjective(other, rows, error)
    _, used = gradients_of(cramped, batch, ALONE, log=lines.append)
    assert used == parts
    assert len(lines) == messages
    for line in lines:
        assert "Out of memory" in line

    assert sum(cramped.sizes[-min(parts, 7) :]) == batch.rows
    assert_close(gradients(other), gradients(model), rtol=1e-10, atol=1e-12)


def test_gradients_from_before_the_error_are_not_counted_twice() -> None:
    """The second micro-batch fails when the first one's gradients are computed already."""
    batch = random_batch("gpt")
    model = small("gpt")
    other = small("gpt")
    gradients_of(Objective(model), batch, ALONE)
    cramped = CrampedObjective(other, 3)
    _, used = gradients_of(cramped, batch, ALONE, parts=2, log=lambda line: None)
    assert cramped.sizes[:2] == [3, 4]
    assert used == 4
    assert_close(gradients(other), gradients(model), rtol=1e-10, atol=1e-12)


def test_a_short_batch_keeps_the_number_of_micro_batches() -> None:
    _, used = gradients_of(Objective(small("gpt")), random_batch("gpt", rows=2), ALONE, parts=4)
    assert used == 4


def test_a_single_row_that_does_not_fit_raises() -> None:
    cramped = CrampedObjective(small("gpt"), 0)
    with pytest.raises(MemoryError, match=r"one row of 9 tokens .*lower the context"):
        gradients_of(cramped, random_batch("gpt"), ALONE, log=lambda line: None)


def test_other_errors_pass() -> None:
    cramped = CrampedObjective(small("gpt"), 0, "mat1 and mat2 shapes cannot be multiplied")
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        gradients_of(cramped, random_batch("gpt"), ALONE)

    assert cramped.sizes == [7]


# Validation


class ListedData:
    """Validation data as a list of batches."""

    steps_per_epoch = tokens_per_step = order_version = 1

    def __init__(self, *batches: Batch) -> None:
        self.batches = batches

    def batch(self, step: int) -> Batch:
        return self.batches[step]

    def ordered(self) -> Iterator[Batch]:
        return iter(self.batches)


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("family", list(MODELS))
def test_validation_is_the_mean_over_all_targets(family: str, parts: int) -> None:
    model = small(family, dropout=0.5)
    first = random_batch(family)
    second = random_batch(family, rows=2, length=5)
    objective = Objective(model, smoothing=0.4).train()
    loss, _ = validate(objective, ListedData(first, second), ALONE, parts)
    assert objective.training
    assert model.training
    plain = Objective(model).eval()
    with torch.no_grad():
        expected = float(plain(first) + plain(second)) / (first.count + second.count)

    assert loss == pytest.approx(expected, rel=1e-9)
    assert all(weight.grad is None for weight in model.parameters())


def test_validation_without_targets_raises() -> None:
    batch = replace(random_batch("gpt"), targets=torch.full((7, 9), IGNORE))
    with pytest.raises(ValueError, match=r"validation: .*no token"):
        validate(Objective(small("gpt")), ListedData(batch), ALONE)


# Data-parallel ranks


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("parts", [1, 2, 5])
def test_ranks_share_a_batch_in_equally_many_micro_batches(size: int, parts: int) -> None:
    batch = random_batch("transformer")
    micro_batches: list[Batch] = []
    counts = set()
    for rank in range(size):
        rank_share = share(batch, World(torch.device("cpu"), rank, size), parts)
        micro_batches += rank_share
        counts.add(len(rank_share))

    assert len(counts) == 1
    assert sum(part.count for part in micro_batches) == batch.count
    objective = Objective(small("transformer").eval())
    with torch.no_grad():
        total = sum(objective(part) for part in micro_batches)
        torch.testing.assert_close(total, objective(batch))


def test_a_batch_without_targets_has_no_gradient() -> None:
    model = small("gpt")
    batch = replace(random_batch("gpt"), targets=torch.full((7, 9), IGNORE))
    loss, _ = gradients_of(Objective(model), batch, ALONE)
    assert float(loss) == 0
    assert all((gradient == 0).all() for gradient in gradients(model).values())
