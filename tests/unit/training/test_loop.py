"""The loop: what is kept, what a bad step does, where the run goes back to, and what memory that
runs out changes.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from qkv import artifact
from qkv.data.batches.batch import Batch
from qkv.training.logging.metrics import read_metrics
from qkv.training.loop import TrainingResult, training_loop
from qkv.training.resilience.checkpoint_writer import Checkpoints
from qkv.training.run import Run
from qkv.training.setup.objective_setup import should_compile
from qkv.training.setup.training_task import TrainingData, TrainingTask
from qkv.training.step import Validation
from support.small_training import MODELS, TrainingJob, model_of, rows_of, same_bits, small_job

POISON = 4  # [mask], which no text of ours has


class Watched:
    """Data that remembers which positions were asked for; some begin with a word that is poison."""

    def __init__(
        self, data: TrainingData, poisoned: Callable[[int], bool] = lambda position: False
    ) -> None:
        self.data, self.poisoned = data, poisoned
        self.steps_per_epoch, self.tokens_per_step = data.steps_per_epoch, data.tokens_per_step
        self.order_version = data.order_version
        self.positions: list[int] = []

    def batch(self, position: int) -> Batch:
        self.positions.append(position)
        assert len(self.positions) < 200, "the run goes on and on"
        batch = self.data.batch(position)
        if not self.poisoned(position):
            return batch
        ids = batch.ids.clone()
        ids[0, 0] = POISON
        return replace(batch, ids=ids)

    def ordered(self) -> Iterator[Batch]:
        return self.data.ordered()


class Poisoned(nn.Module):
    """An objective that suffers from poison."""

    def __init__(self, objective: nn.Module, suffer: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.objective, self.suffer = objective, suffer

    def forward(self, batch: Batch) -> Tensor:
        loss = self.objective(batch)
        return self.suffer(loss) if bool((batch.ids == POISON).any()) else loss


def steep(loss: Tensor) -> Tensor:
    """Its gradient alone is no number."""
    loss.register_hook(lambda slope: slope * math.nan)
    return loss


SUFFERING = {
    "nan": lambda loss: loss * math.nan,
    "inf": lambda loss: loss / 0.0,
    "gradient": steep,
    "spike": lambda loss: loss * 10,
}


def poisoned_run(
    job: TrainingJob, task: TrainingTask, poisoned: Callable[[int], bool], how: str
) -> tuple[Run, Watched]:
    data = Watched(task.training, poisoned)
    run = job.create_run(replace(task, training=data))
    run.objective = Poisoned(run.objective, SUFFERING[how])
    return run, data


def events(out: Path) -> list[tuple[str, int, int]]:
    """What, after how many steps, and the position."""
    return [
        (row["event"], row["step"], row["position"])
        for row in rows_of(out)
        if row.get("position") is not None
    ]


def weights_after(out: Path, step: int) -> dict[str, Tensor]:
    (found,) = Checkpoints(out / "checkpoints").intact([step])
    return found.tensors()


# What is kept


@pytest.mark.parametrize("family", list(MODELS))
def test_it_learns_and_keeps_the_best(family: str, tmp_path: Path) -> None:
    job = small_job(
        family,
        tmp_path,
        steps=30,
        checkpoint_every=5,
        validate_every=5,
        optimizer={"learning_rate": 1e-2},
    )
    outcome = job.start()
    assert outcome is not None
    rows = read_metrics(job.run.out)
    validations = [
        row["validation_loss"] for row in rows if "validation_loss" in row and "event" not in row
    ]
    assert len(validations) == 6
    assert min(validations) == outcome.validation_loss < validations[0] - 0.05
    assert [row["step"] for row in rows if "loss" in row] == list(range(1, 31))
    assert rows[-1]["event"] == "finished"
    assert rows[-1]["flops"] == outcome.flops > 0
    best = Checkpoints(job.run.out / "checkpoints").best()
    assert best is not None
    assert best.state["best"] == outcome.validation_loss
    saved = {name: best.tensors()[f"model/{name}"] for name in model_of(job.run.out)}
    assert same_bits(saved, model_of(job.run.out))
    model, tokenizer = artifact.load(job.run.out)
    assert tokenizer is not None
    assert tokenizer.vocabulary == model.config.vocabulary


def test_the_exponential_average_is_kept(tmp_path: Path) -> None:
    job = small_job(
        "gpt",
        tmp_path,
        checkpoint_every=4,
        keep=9,
        optimizer={"average": "exponential", "average_decay": 0.5},
    )
    job.start()
    best = Checkpoints(job.run.out / "checkpoints").best()
    assert best is not None
    kept, tensors = model_of(job.run.out), best.tensors()
    assert same_bits({name: tensors[f"average/{name}"] for name in kept}, kept)
    assert not same_bits({name: tensors[f"model/{name}"] for name in kept}, kept)


def test_the_mean_of_the_last_checkpoints_is_kept(tmp_path: Path) -> None:
    job = small_job("gpt", tmp_path, keep=3, validate_every=12, optimizer={"average": "last"})
    outcome = job.start()
    assert outcome is not None
    saved = [weights_after(job.run.out, step) for step in (6, 9, 12)]
    for name, weight in model_of(job.run.out).items():
        mean = np.mean(
            [tensors[f"model/{name}"].double().numpy() for tensors in saved], axis=0
        ).astype(np.float32)
        np.testing.assert_array_equal(weight.numpy(), mean)
    assert read_metrics(job.run.out)[-1]["validation_loss"] == outcome.validation_loss


def test_a_validation_that_is_no_number_is_never_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = iter([math.nan, 3.0, math.nan])
    monkeypatch.setattr(
        "qkv.training.run.validate", lambda *_: Validation(next(losses), torch.zeros(0))
    )
    outcome = small_job("gpt", tmp_path).start()
    assert outcome is not None
    assert outcome.validation_loss == 3.0
    assert Checkpoints(tmp_path / "run" / "checkpoints").best().step == 8


def test_samples_are_shown_when_they_are_due(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = small_job("gpt", tmp_path, sample_every=5)
    job.start(samples=lambda task: lambda model: [f"a vocabulary of {task.tokenizer.vocabulary}"])
    said = capsys.readouterr().out
    assert [line for line in said.splitlines() if line.startswith("after")] == [
        "after step 5", "after step 10", "after step 12",
    ]  # fmt: skip
    assert said.count("a vocabulary of") == 3


@pytest.mark.parametrize("family", list(MODELS))
def test_what_is_compiled_unless_asked(family: str, tmp_path: Path) -> None:
    """On a GPU, and where every batch has the same shape."""
    data = small_job(family, tmp_path).task().training
    assert should_compile(None, "cuda", data) == (family in ("gpt", "bert"))
    assert not should_compile(None, "cpu", data)
    assert [should_compile(job, device, data) for job in (True, False) for device in ("cpu", "cuda")] == [
        True, True, False, False,
    ]  # fmt: skip


# Bad steps


@pytest.mark.parametrize("how", ["nan", "inf", "gradient"])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_bad_step_is_skipped(
    how: str, optimizer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = small_job("gpt", tmp_path, checkpoint_every=1, keep=20, optimizer={"optimizer": optimizer})
    run, _ = poisoned_run(job, job.task(), lambda position: position in (0, 5), how)
    outcome = training_loop(run)
    assert outcome.finished
    out = job.run.out
    assert events(out) == [("skipped", 1, 0), ("skipped", 6, 5)]
    models = [
        {
            name: tensor
            for name, tensor in weights_after(out, step).items()
            if name.startswith("model/")
        }
        for step in range(13)
    ]
    same = [step for step in range(1, 13) if same_bits(models[step - 1], models[step])]
    assert same == [1, 6]
    assert same_bits(weights_after(out, 5), weights_after(out, 6)), (
        "and what the optimizer remembers"
    )
    reason = {
        "nan": "the loss is nan",
        "inf": "the loss is inf",
        "gradient": "the gradient's norm is nan",
    }[how]
    assert next(row for row in rows_of(out) if row.get("event") == "skipped")["reason"] == reason
    assert (
        f"Step 6 is skipped: {reason}. Its batch is number 5 of the data."
        in capsys.readouterr().out
    )


def test_a_spike_is_skipped_once_it_is_known_what_is_usual(tmp_path: Path) -> None:
    job = small_job("gpt", tmp_path, steps=30, checkpoint_every=1, keep=40)
    run, _ = poisoned_run(job, job.task(), lambda position: position in (3, 27), "spike")
    assert training_loop(run).finished
    assert events(job.run.out) == [("skipped", 28, 27)]
    assert same_bits(weights_after(job.run.out, 27), weights_after(job.run.out, 28))
    assert not same_bits(weights_after(job.run.out, 3), weights_after(job.run.out, 4))
    (row,) = [row for row in rows_of(job.run.out) if row.get("event") == "skipped"]
    assert row["reason"].startswith("the loss is ")
    assert "more than" in row["reason"]


class Shorter(Watched):
    """The same data without some of its positions."""

    def __init__(self, data: TrainingData, first: int, count: int) -> None:
        super().__init__(data)
        self.first, self.count = first, count

    def batch(self, position: int) -> Batch:
        return super().batch(position if position < self.first else position + self.count)


@pytest.mark.parametrize("every", [2, 3, 5])
def test_three_in_a_row_go_back_and_leave_their_data_out(
    every: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From there on the run is, bit for bit, one over the same data without them."""
    job = small_job("gpt", tmp_path, checkpoint_every=every, validate_every=50)
    task = job.task()
    run, data = poisoned_run(job, task, lambda position: position in (7, 8, 9), "nan")
    assert training_loop(run).finished
    back = {2: 6, 3: 6, 5: 5}[every]
    assert events(job.run.out) == [
        ("skipped", 8, 7),
        ("skipped", 9, 8),
        ("skipped", 10, 9),
        ("rewound", back, 7),
    ]
    second = data.positions[data.positions.index(10) :]
    second = second[second.index(back) :]  # where it began again
    assert [position for position in second if position < 7] == list(range(back, 7))
    assert [position for position in second if position >= 7] == list(range(10, 16))
    said = capsys.readouterr().out
    assert f"3 bad steps in a row, from step 8 on: back to the checkpoint of step {back}." in said
    assert "the batches 7 to 9 of the data are left out" in said

    clean = small_job("gpt", tmp_path, tmp_path / "clean", checkpoint_every=every, validate_every=50)
    clean.train(replace(task, training=Shorter(task.training, 7, 3)))
    assert same_bits(model_of(job.run.out), model_of(clean.run.out))
    numbers = [row for row in rows_of(job.run.out) if "event" not in row]
    assert numbers == [row for row in rows_of(clean.run.out) if "event" not in row]


def test_it_goes_back_to_before_the_first_bad_step(tmp_path: Path) -> None:
    """Though a checkpoint was saved after it, and with only that one left, none of the data after
    it is lost.
    """
    for keep, back in ((3, 7), (1, 9)):
        job = small_job(
            "gpt", tmp_path, tmp_path / str(keep), checkpoint_every=1, keep=keep, validate_every=50
        )
        run, data = poisoned_run(job, job.task(), lambda position: position in (7, 8, 9), "nan")
        assert training_loop(run).finished
        assert [event for event in events(job.run.out) if event[0] == "rewound"] == [
            ("rewound", back, back)
        ]
        assert set(data.positions) == set(range(16 - (back - 7)))


def test_what_is_left_out_stays_out_after_the_run_was_killed(tmp_path: Path) -> None:
    def poisoned(position: int) -> bool:
        return position in (7, 8, 9)

    whole = small_job("gpt", tmp_path, tmp_path / "whole")
    task = whole.task()
    training_loop(poisoned_run(whole, task, poisoned, "nan")[0])
    job = small_job("gpt", tmp_path)

    class Died(Exception):
        pass

    class Dying(Run):
        def rewind(self) -> None:
            super().rewind()
            raise Died

    run, _ = poisoned_run(job, task, poisoned, "nan")
    run.__class__ = Dying
    with pytest.raises(Died):
        training_loop(run)
    again, data = poisoned_run(job, task, poisoned, "nan")
    assert training_loop(again).finished
    assert data.positions[0] == 6
    assert not {7, 8, 9} & set(data.positions)
    assert same_bits(model_of(whole.run.out), model_of(job.run.out))
    assert rows_of(whole.run.out) == rows_of(job.run.out)


@pytest.mark.parametrize("every", [1, 2, 4])
@pytest.mark.parametrize("how", ["nan", "gradient"])
def test_failing_again_and_again_is_told(how: str, every: int, tmp_path: Path) -> None:
    job = small_job("gpt", tmp_path, steps=200, checkpoint_every=every, validate_every=500)
    run, data = poisoned_run(job, job.task(), lambda position: position >= 6, how)
    with pytest.raises(
        RuntimeError, match=r"training fails again and again, now at step \d: it went back 3 times"
    ):
        training_loop(run)
    assert max(data.positions) < 30, "it does not go on and on"
    assert Checkpoints(job.run.out / "checkpoints", log=pytest.fail).newest().step <= 8


def test_an_overflow_of_fp16_halves_the_scale_and_is_no_bad_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = small_job("gpt", tmp_path)
    run, _ = poisoned_run(job, job.task(), lambda position: 2 <= position < 7, "gradient")
    scale = run.learner.scale
    scale.active, scale.factor = True, torch.tensor(8.0)
    assert training_loop(run).finished
    reasons = [row["reason"] for row in rows_of(job.run.out) if row.get("event") == "skipped"]
    assert [reason.partition(" at ")[0] for reason in reasons[:3]] == [
        "its gradient overflows fp16"
    ] * 3
    assert "at a scale of 8," in reasons[0]
    assert reasons[3:] == ["the gradient's norm is nan"] * 2, (
        "at a scale of 1 it is not the scale's fault"
    )
    assert "rewound" not in {row.get("event") for row in rows_of(job.run.out)}
    assert float(scale.factor) == 0.25


def test_a_spike_in_fp16_is_called_a_spike(tmp_path: Path) -> None:
    job = small_job("gpt", tmp_path, steps=30)
    run, _ = poisoned_run(job, job.task(), lambda position: position == 27, "spike")
    run.learner.scale.active, run.learner.scale.factor = True, torch.tensor(8.0)
    assert training_loop(run).finished
    (row,) = [row for row in rows_of(job.run.out) if row.get("event") == "skipped"]
    assert row["reason"].startswith("the loss is ")


# Memory


class Cramped(nn.Module):
    def __init__(self, objective: nn.Module, rows: int) -> None:
        super().__init__()
        self.objective, self.rows = objective, rows

    def forward(self, batch: Batch) -> Tensor:
        if batch.rows > self.rows:
            raise torch.OutOfMemoryError("no room")
        return self.objective(batch)


def test_memory_that_runs_out_halves_the_micro_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = replace(MODELS["gpt"], dropout=0.0, attention_dropout=0.0)
    usual = small_job("gpt", tmp_path)._replace(config=plain)
    usual.train()
    cramped = small_job("gpt", tmp_path, tmp_path / "cramped", steps=12)._replace(config=plain)

    def go(job: TrainingJob) -> TrainingResult:
        run = job.create_run()
        run.objective = Cramped(run.objective, rows=1)
        return training_loop(run)

    go(cramped.with_run(steps=6, validate_every=6))
    assert capsys.readouterr().out.count("Out of memory") == 2
    newest = Checkpoints(cramped.run.out / "checkpoints").newest()
    assert newest is not None
    assert newest.state["parts"] == 4
    go(small_job("gpt", tmp_path, tmp_path / "again")._replace(config=plain))
    assert capsys.readouterr().out.count("Out of memory") == 2
    losses = [
        [row["loss"] for row in rows_of(out) if "loss" in row]
        for out in (usual.run.out, tmp_path / "again")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for name, weight in model_of(usual.run.out).items():
        torch.testing.assert_close(
            model_of(tmp_path / "again")[name], weight, rtol=1e-3, atol=1e-4, msg=name
        )
    go(cramped.with_run(resume=True))
    assert "Out of memory" not in capsys.readouterr().out, "a resumed run knows how many parts fit"


def test_a_row_that_does_not_fit_is_told(tmp_path: Path) -> None:
    job = small_job("gpt", tmp_path)
    run = job.create_run()
    run.objective = Cramped(run.objective, rows=0)
    with pytest.raises(MemoryError, match="out of memory with one row of 16 tokens at a time"):
        training_loop(run)


# Signals


def interrupting(run: Run, number: signal.Signals, at: int, times: int = 1) -> None:
    """The signal comes in the middle of a step."""
    objective, steps = run.objective, iter(range(10**6))

    class Interrupted(nn.Module):
        def forward(self, batch: Batch) -> Tensor:
            if objective.training and next(steps) == at:
                for _ in range(times):
                    signal.raise_signal(number)
            return objective(batch)

        def train(self, mode: bool = True) -> Any:
            objective.train(mode)
            return self

    run.objective = Interrupted()


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def heeded() -> Iterator[None]:
    """The tests themselves may run under nohup, or as a background job of a shell, which ignore
    some of them.
    """
    before = {number: signal.signal(number, signal.default_int_handler) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("heeded")
@pytest.mark.parametrize(
    ("number", "times"), [(signal.SIGINT, 1), (signal.SIGTERM, 1), (signal.SIGHUP, 2)]
)
def test_a_signal_saves_and_stops_after_the_step(
    number: signal.Signals, times: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A closed terminal sends two: the kernel's, and the shell's."""
    handlers = [signal.getsignal(each) for each in SIGNALS]
    job = small_job("gpt", tmp_path)
    run = job.create_run()
    interrupting(run, number, at=4, times=times)
    outcome = training_loop(run)
    assert (outcome.steps, outcome.finished) == (5, False)
    said = capsys.readouterr().out
    assert "Stopped after step 5 of 12; all is saved. Go on with --resume." in said
    assert f"The model in {job.run.out} is that of step 4, the best on validation so far" in said
    assert Checkpoints(job.run.out / "checkpoints").steps() == [0, 3, 4, 5]
    assert [signal.getsignal(each) for each in SIGNALS] == handlers


def test_a_model_that_cannot_generate_does_not_end_its_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(model: object) -> list[str]:
        raise ValueError("logits: not finite")

    run = small_job("gpt", tmp_path, steps=3, sample_every=2).create_run()
    run.measure = lambda: {"loss": math.inf}
    assert training_loop(run, broken).finished
    printed = capsys.readouterr().out
    assert "There is no sample after step 2: logits: not finite." in printed
    assert (
        "The validation loss is not finite; lower the learning rate or raise the warmup." in printed
    )


def test_a_hang_up_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        run = small_job("gpt", tmp_path, steps=3).create_run()
        interrupting(run, signal.SIGHUP, at=1)
        assert training_loop(run).finished
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("average", ["none", "exponential"])
def test_stopped_before_the_first_validation_the_newest_weights_are_the_model(
    average: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = small_job(
        "gpt", tmp_path, validate_every=50, optimizer={"average": average, "average_decay": 0.5}
    )
    run = job.create_run()
    assert artifact.load(job.run.out).tokenizer is not None, "before the first step, too"
    interrupting(run, signal.SIGINT, at=4)
    assert training_loop(run).validation_loss is None
    newest = {name: run.learner.average.weights[name] if run.learner.average else weight.detach()
              for name, weight in run.model.named_parameters()}  # fmt: skip
    assert same_bits(model_of(job.run.out), newest)
    assert same_bits(dict(artifact.load(job.run.out).model.state_dict()), newest)
    said = capsys.readouterr().out
    assert (
        f"The model in {job.run.out} is that of step 5, not validated yet; {job.run.out}@5 opens"
        in said
    )


def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    run = small_job("gpt", tmp_path).create_run()
    interrupting(run, signal.SIGINT, at=4, times=2)
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell's background job ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            training_loop(run)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
