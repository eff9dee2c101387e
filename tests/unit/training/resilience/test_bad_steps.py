"""Bad steps: loss spikes, NaN and overflow; what is skipped, and where the run goes back to."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from qkv.data.batches.batch import Batch
from qkv.training.loop import training_loop
from qkv.training.resilience.checkpoint_writer import Checkpoints
from qkv.training.run import Run
from qkv.training.setup.training_task import TrainingData, TrainingTask
from support.small_training import TrainingJob, model_of, rows_of, same_bits, small_job

POISON = 4  # the id of [mask], which no text of these jobs contains


class RecordingData:
    """Training data that notes the positions it is read at; poisoned batches start with POISON."""

    def __init__(
        self, data: TrainingData, poisoned: Callable[[int], bool] = lambda position: False
    ) -> None:
        self.data = data
        self.poisoned = poisoned
        self.steps_per_epoch = data.steps_per_epoch
        self.tokens_per_step = data.tokens_per_step
        self.order_version = data.order_version
        self.positions: list[int] = []

    def batch(self, position: int) -> Batch:
        self.positions.append(position)
        assert len(self.positions) < 200, "the run does not end"
        batch = self.data.batch(position)
        if not self.poisoned(position):
            return batch

        ids = batch.ids.clone()
        ids[0, 0] = POISON
        return replace(batch, ids=ids)

    def ordered(self) -> Iterator[Batch]:
        return self.data.ordered()


class ShorterData(RecordingData):
    """The same data without some of its positions."""

    def __init__(self, data: TrainingData, first: int, count: int) -> None:
        super().__init__(data)
        self.first = first
        self.count = count

    def batch(self, position: int) -> Batch:
        if position >= self.first:
            position += self.count

        return super().batch(position)


class PoisonedObjective(nn.Module):
    """An objective whose loss is damaged by poisoned batches."""

    def __init__(self, objective: nn.Module, damage: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.objective = objective
        self.damage = damage

    def forward(self, batch: Batch) -> Tensor:
        loss = self.objective(batch)
        if bool((batch.ids == POISON).any()):
            return self.damage(loss)

        return loss


def damage_gradient(loss: Tensor) -> Tensor:
    """The loss is finite, its gradient is NaN."""
    loss.register_hook(lambda slope: slope * math.nan)
    return loss


DAMAGE = {
    "nan": lambda loss: loss * math.nan,
    "inf": lambda loss: loss / 0.0,
    "gradient": damage_gradient,
    "spike": lambda loss: loss * 10,
}


def poisoned_run(
    job: TrainingJob, task: TrainingTask, poisoned: Callable[[int], bool], damage: str
) -> tuple[Run, RecordingData]:
    data = RecordingData(task.training, poisoned)
    run = job.create_run(replace(task, training=data))
    run.objective = PoisonedObjective(run.objective, DAMAGE[damage])
    return run, data


def events(out: Path) -> list[tuple[str, int, int]]:
    """Event, step and data position of the events with a position."""
    rows = [row for row in rows_of(out) if row.get("position") is not None]
    return [(row["event"], row["step"], row["position"]) for row in rows]


def skip_reasons(out: Path) -> list[str]:
    return [row["reason"] for row in rows_of(out) if row.get("event") == "skipped"]


def tensors_after(out: Path, step: int) -> dict[str, Tensor]:
    """The tensors of the checkpoint of a step."""
    (checkpoint,) = Checkpoints(out / "checkpoints").intact([step])
    return checkpoint.tensors()


def in_poisoned_range(position: int) -> bool:
    return position in (7, 8, 9)


# Skipping


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("nan", "the loss is nan"),
        ("inf", "the loss is inf"),
        ("gradient", "the gradient's norm is nan"),
    ],
)
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_bad_step_changes_nothing_and_is_logged(
    damage: str,
    reason: str,
    optimizer: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = small_job(
        "gpt", tmp_path, checkpoint_every=1, keep=20, optimizer={"optimizer": optimizer}
    )
    run, _ = poisoned_run(job, job.task(), lambda position: position in (0, 5), damage)
    assert training_loop(run).finished
    out = job.run.out
    assert events(out) == [("skipped", 1, 0), ("skipped", 6, 5)]

    unchanged = []
    for step in range(1, 13):
        before = tensors_after(out, step - 1)
        after = tensors_after(out, step)
        names = [name for name in before if name.startswith("model/")]
        if all(torch.equal(before[name], after[name]) for name in names):
            unchanged.append(step)

    assert unchanged == [1, 6]
    assert same_bits(tensors_after(out, 5), tensors_after(out, 6)), "the optimizer's state, too"
    assert skip_reasons(out)[0] == reason
    message = f"Step 6 is skipped: {reason}. Its batch is number 5 of the data."
    assert message in capsys.readouterr().out


def test_a_loss_spike_is_skipped_once_enough_losses_are_known(tmp_path: Path) -> None:
    job = small_job("gpt", tmp_path, steps=30, checkpoint_every=1, keep=40)
    run, _ = poisoned_run(job, job.task(), lambda position: position in (3, 27), "spike")
    assert training_loop(run).finished
    assert events(job.run.out) == [("skipped", 28, 27)]
    assert same_bits(tensors_after(job.run.out, 27), tensors_after(job.run.out, 28))
    assert not same_bits(tensors_after(job.run.out, 3), tensors_after(job.run.out, 4))
    (reason,) = skip_reasons(job.run.out)
    assert reason.startswith("the loss is ")
    assert "more than" in reason


# Rewinding


@pytest.mark.parametrize(("every", "back"), [(2, 6), (3, 6), (5, 5)])
def test_three_bad_steps_in_a_row_rewind_and_leave_their_data_out(
    every: int, back: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From there on the run equals, bit for bit, one over the same data without those batches."""
    job = small_job("gpt", tmp_path, checkpoint_every=every, validate_every=50)
    task = job.task()
    run, data = poisoned_run(job, task, in_poisoned_range, "nan")
    assert training_loop(run).finished
    assert events(job.run.out) == [
        ("skipped", 8, 7),
        ("skipped", 9, 8),
        ("skipped", 10, 9),
        ("rewound", back, 7),
    ]
    after_rewind = data.positions[data.positions.index(10) :]
    after_rewind = after_rewind[after_rewind.index(back) :]
    assert [position for position in after_rewind if position < 7] == list(range(back, 7))
    assert [position for position in after_rewind if position >= 7] == list(range(10, 16))
    printed = capsys.readouterr().out
    assert "3 bad steps in a row, from step 8 on" in printed
    assert f"back to the checkpoint of step {back}." in printed
    assert "the batches 7 to 9 of the data are left out" in printed

    clean = small_job(
        "gpt", tmp_path, tmp_path / "clean", checkpoint_every=every, validate_every=50
    )
    clean.train(replace(task, training=ShorterData(task.training, 7, 3)))
    assert same_bits(model_of(job.run.out), model_of(clean.run.out))
    numbers = [row for row in rows_of(job.run.out) if "event" not in row]
    assert numbers == [row for row in rows_of(clean.run.out) if "event" not in row]


@pytest.mark.parametrize(("keep", "back"), [(3, 7), (1, 9)])
def test_it_rewinds_to_before_the_first_bad_step(keep: int, back: int, tmp_path: Path) -> None:
    """Later checkpoints are passed over; where only those exist, no good data is left out."""
    job = small_job("gpt", tmp_path, checkpoint_every=1, keep=keep, validate_every=50)
    run, data = poisoned_run(job, job.task(), in_poisoned_range, "nan")
    assert training_loop(run).finished
    rewinds = [event for event in events(job.run.out) if event[0] == "rewound"]
    assert rewinds == [("rewound", back, back)]
    assert set(data.positions) == set(range(16 - (back - 7)))


def test_data_left_out_stays_out_after_the_run_was_killed(tmp_path: Path) -> None:
    whole = small_job("gpt", tmp_path, tmp_path / "whole")
    task = whole.task()
    training_loop(poisoned_run(whole, task, in_poisoned_range, "nan")[0])
    job = small_job("gpt", tmp_path)

    class Killed(Exception):
        pass

    class DyingRun(Run):
        def rewind(self) -> None:
            super().rewind()
            raise Killed

    run, _ = poisoned_run(job, task, in_poisoned_range, "nan")
    run.__class__ = DyingRun
    with pytest.raises(Killed):
        training_loop(run)

    resumed, data = poisoned_run(job, task, in_poisoned_range, "nan")
    assert training_loop(resumed).finished
    assert data.positions[0] == 6
    assert not {7, 8, 9} & set(data.positions)
    assert same_bits(model_of(whole.run.out), model_of(job.run.out))
    assert rows_of(whole.run.out) == rows_of(job.run.out)


@pytest.mark.parametrize("every", [1, 2, 4])
@pytest.mark.parametrize("damage", ["nan", "gradient"])
def test_repeated_rewinds_end_in_an_error(damage: str, every: int, tmp_path: Path) -> None:
    job = small_job("gpt", tmp_path, steps=200, checkpoint_every=every, validate_every=500)
    run, data = poisoned_run(job, job.task(), lambda position: position >= 6, damage)
    with pytest.raises(RuntimeError, match=r"now at step \d: it went back 3 times"):
        training_loop(run)

    assert max(data.positions) < 30
    newest = Checkpoints(job.run.out / "checkpoints", log=pytest.fail).newest()
    assert newest is not None
    assert newest.step <= 8


# fp16


def test_an_fp16_overflow_halves_the_scale_and_is_no_bad_step(tmp_path: Path) -> None:
    job = small_job("gpt", tmp_path)
    run, _ = poisoned_run(job, job.task(), lambda position: 2 <= position < 7, "gradient")
    scale = run.learner.scale
    scale.active = True
    scale.factor = torch.tensor(8.0)
    assert training_loop(run).finished
    reasons = skip_reasons(job.run.out)
    for reason in reasons[:3]:
        assert reason.startswith("its gradient overflows fp16 at ")

    assert "at a scale of 8," in reasons[0]
    assert reasons[3:] == ["the gradient's norm is nan"] * 2, "at a scale of 1 it is no overflow"
    assert "rewound" not in {row.get("event") for row in rows_of(job.run.out)}
    assert float(scale.factor) == 0.25


def test_a_loss_spike_in_fp16_is_reported_as_a_spike(tmp_path: Path) -> None:
    job = small_job("gpt", tmp_path, steps=30)
    run, _ = poisoned_run(job, job.task(), lambda position: position == 27, "spike")
    run.learner.scale.active = True
    run.learner.scale.factor = torch.tensor(8.0)
    assert training_loop(run).finished
    (reason,) = skip_reasons(job.run.out)
    assert reason.startswith("the loss is ")
