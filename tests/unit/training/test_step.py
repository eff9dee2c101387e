"""A batch in parts gives the gradients of the whole batch; memory that runs out makes more parts,
not other ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

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
    torch.manual_seed(0)
    return build(replace(config, attention_dropout=dropout) if family == "gpt" else config)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {
        name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None
    }


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor], **tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], msg=name, **tolerance)


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 20])
@pytest.mark.parametrize("family", list(MODELS))
def test_parts_add_up_to_the_whole(family: str, parts: int) -> None:
    """Of rows of different lengths, whose means would not: the sum is divided once, by the count of
    all.
    """
    batch, model = random_batch(family), small(family)
    whole = Objective(model)(batch) / batch.count
    whole.backward()
    expected = gradients(model)
    other = small(family)
    loss, used = gradients_of(Objective(other), batch, ALONE, parts=parts)
    assert used == parts
    torch.testing.assert_close(loss.double(), whole, rtol=1e-6, atol=0)
    assert_close(gradients(other), expected, rtol=1e-10, atol=1e-12)


def test_a_part_of_pairs_has_only_its_own_padding() -> None:
    lengths = {part.ids.shape[1] for part in random_batch("transformer").split(7)}
    assert len(lengths) > 1, "or the test above would not prove it"


def test_the_scale_multiplies_gradients_and_not_the_loss() -> None:
    batch, model, other = random_batch("gpt"), small("gpt"), small("gpt")
    loss, _ = gradients_of(Objective(model), batch, ALONE)
    scaled, _ = gradients_of(Objective(other), batch, ALONE, parts=2, scale=torch.tensor(1024.0))
    torch.testing.assert_close(loss, scaled)
    assert_close({name: grad / 1024 for name, grad in gradients(other).items()}, gradients(model))


def test_dropout_depends_on_the_seed_the_step_and_the_part_alone() -> None:
    batch = random_batch("gpt")

    def losses(seed: tuple[int, int], parts: int = 2, disturbed: int = 0) -> float:
        model = small("gpt", dropout=0.3)
        torch.manual_seed(disturbed)
        return float(gradients_of(Objective(model), batch, ALONE, parts=parts, seed=seed)[0])

    assert losses((0, 5)) == losses((0, 5), disturbed=9)
    assert len({losses(seed) for seed in ((0, 5), (0, 6), (1, 5), (5, 0))}) == 4
    same = replace(batch.part(0, 1), padding_mask=None)
    twice = Batch(same.ids.repeat(2, 1), same.targets.repeat(2, 1))
    model = small("gpt", dropout=0.3)
    objective, seen = Objective(model), []
    objective.register_forward_hook(lambda module, inputs, loss: seen.append(loss.item()))
    gradients_of(objective, twice, ALONE, parts=2)
    assert seen[0] != seen[1], "two parts do not drop the same"


def test_seeds_are_mixed() -> None:
    drawn = {mix_seeds(seed, step, rank, part) for seed in range(4) for step in range(4) for rank in range(4) for part in range(4)}  # noqa: E501  # fmt: skip
    assert len(drawn) == 4**4
    assert all(0 <= number < 2**63 for number in drawn)


# Out of memory


class Cramped(nn.Module):
    """An objective with memory for so many rows."""

    def __init__(
        self, model: Model, rows: int, error: type[Exception] | str = torch.OutOfMemoryError
    ) -> None:
        super().__init__()
        self.objective, self.rows, self.error = Objective(model), rows, error
        self.seen: list[int] = []

    def forward(self, batch: Batch) -> Tensor:
        loss = self.objective(batch)
        self.seen.append(batch.rows)
        if batch.rows > self.rows:
            raise RuntimeError(self.error) if isinstance(self.error, str) else self.error("no room")
        return loss


CPU_MESSAGE = (
    "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory"
)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, MemoryError, CPU_MESSAGE])
@pytest.mark.parametrize(("rows", "parts"), [(7, 1), (6, 2), (4, 2), (2, 4), (1, 8)])
def test_the_parts_are_halved_and_the_gradient_stays(
    rows: int, parts: int, error: type[Exception] | str
) -> None:
    batch, model, other = random_batch("transformer"), small("transformer"), small("transformer")
    gradients_of(Objective(model), batch, ALONE)
    said: list[str] = []
    cramped = Cramped(other, rows, error)
    _, used = gradients_of(cramped, batch, ALONE, log=said.append)
    assert used == parts
    assert len(said) == {1: 0, 2: 1, 4: 2, 8: 3}[parts]
    assert all("Out of memory" in line for line in said)
    assert sum(cramped.seen[-min(parts, 7) :]) == batch.rows
    assert_close(gradients(other), gradients(model), rtol=1e-10, atol=1e-12)


def test_what_was_added_before_the_memory_ran_out_is_not_counted_twice() -> None:
    """The second part fails: the first one's gradients are there already."""
    batch, model, other = random_batch("gpt"), small("gpt"), small("gpt")
    gradients_of(Objective(model), batch, ALONE)
    cramped = Cramped(other, 3)  # parts of 3 and 4 rows
    _, used = gradients_of(cramped, batch, ALONE, parts=2, log=lambda line: None)
    assert cramped.seen[:2] == [3, 4]
    assert used == 4
    assert_close(gradients(other), gradients(model), rtol=1e-10, atol=1e-12)


def test_a_short_batch_does_not_forget_how_many_parts_fit() -> None:
    _, used = gradients_of(Objective(small("gpt")), random_batch("gpt", rows=2), ALONE, parts=4)
    assert used == 4


def test_one_row_too_many_is_told() -> None:
    with pytest.raises(
        MemoryError,
        match=r"out of memory with one row of 9 tokens at a time; lower the context or the model's size",
    ):
        gradients_of(Cramped(small("gpt"), 0), random_batch("gpt"), ALONE, log=lambda line: None)


def test_other_errors_pass() -> None:
    cramped = Cramped(small("gpt"), 0, "mat1 and mat2 shapes cannot be multiplied")
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        gradients_of(cramped, random_batch("gpt"), ALONE)
    assert cramped.seen == [7]


# Validation


class Listed:
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
def test_validation_is_the_mean_over_all_that_is_asked(family: str, parts: int) -> None:
    model = small(family, dropout=0.5)
    first, second = random_batch(family), random_batch(family, rows=2, length=5)
    objective = Objective(model, smoothing=0.4).train()
    found = validate(objective, Listed(first, second), ALONE, parts).loss
    assert objective.training
    assert model.training
    plain = Objective(model).eval()
    with torch.no_grad():
        expected = float(plain(first) + plain(second)) / (first.count + second.count)
    assert found == pytest.approx(expected, rel=1e-9)
    assert all(weight.grad is None for weight in model.parameters())


def test_validation_that_asks_nothing_is_told() -> None:
    batch = replace(random_batch("gpt"), targets=torch.full((7, 9), IGNORE))
    with pytest.raises(
        ValueError, match="validation: it asks for no word; give more text to validate on"
    ):
        validate(Objective(small("gpt")), Listed(batch), ALONE)


# Shares


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("parts", [1, 2, 5])
def test_the_ranks_share_a_batch_and_take_as_many_steps(size: int, parts: int) -> None:
    batch, model = random_batch("transformer"), small("transformer").eval()
    shares = [share(batch, World(torch.device("cpu"), rank, size), parts) for rank in range(size)]
    assert len({len(each) for each in shares}) == 1
    assert sum(part.count for each in shares for part in each) == batch.count
    objective = Objective(model)
    with torch.no_grad():
        total = sum(objective(part) for each in shares for part in each)
        torch.testing.assert_close(total, objective(batch))


def test_a_batch_that_asks_nothing_teaches_nothing() -> None:
    model = small("gpt")
    batch = replace(random_batch("gpt"), targets=torch.full((7, 9), IGNORE))
    loss, _ = gradients_of(Objective(model), batch, ALONE)
    assert float(loss) == 0
    assert all((gradient == 0).all() for gradient in gradients(model).values())
