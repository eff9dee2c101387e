"""The loop: which weights are saved, when samples are shown, memory that runs out, and signals."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from qkv import artifact
from qkv.data.batches.batch import Batch
from qkv.models import build
from qkv.training.logging.metrics import read_metrics
from qkv.training.loop import TrainingResult, training_loop
from qkv.training.resilience.checkpoint_writer import Checkpoints
from qkv.training.run import Run
from qkv.training.setup.objective_setup import is_recurrent, should_compile
from support.small_training import MODELS, TrainingJob, model_of, rows_of, same_bits, small_job


def tensors_after(out: Path, step: int) -> dict[str, Tensor]:
    """The tensors of the checkpoint of a step."""
    (checkpoint,) = Checkpoints(out / "checkpoints").intact([step])
    return checkpoint.tensors()


# The saved model


@pytest.mark.parametrize("family", list(MODELS))
def test_it_learns_and_saves_the_best_weights(family: str, tmp_path: Path) -> None:
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


def test_the_exponential_moving_average_is_saved(tmp_path: Path) -> None:
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
    saved = model_of(job.run.out)
    tensors = best.tensors()
    assert same_bits({name: tensors[f"average/{name}"] for name in saved}, saved)
    assert not same_bits({name: tensors[f"model/{name}"] for name in saved}, saved)


def test_the_mean_of_the_last_checkpoints_is_saved(tmp_path: Path) -> None:
    job = small_job("gpt", tmp_path, keep=3, validate_every=12, optimizer={"average": "last"})
    outcome = job.start()
    assert outcome is not None
    saved = [tensors_after(job.run.out, step) for step in (6, 9, 12)]
    for name, weight in model_of(job.run.out).items():
        weights = [tensors[f"model/{name}"].double().numpy() for tensors in saved]
        mean = np.mean(weights, axis=0).astype(np.float32)
        np.testing.assert_array_equal(weight.numpy(), mean)

    assert read_metrics(job.run.out)[-1]["validation_loss"] == outcome.validation_loss


def test_a_validation_loss_of_nan_is_never_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = iter([math.nan, 3.0, math.nan])
    monkeypatch.setattr("qkv.training.run.validate", lambda *_: (next(losses), torch.zeros(0)))
    outcome = small_job("gpt", tmp_path).start()
    assert outcome is not None
    assert outcome.validation_loss == 3.0
    best = Checkpoints(tmp_path / "run" / "checkpoints").best()
    assert best is not None
    assert best.step == 8


def test_samples_are_shown_when_they_are_due(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = small_job("gpt", tmp_path, sample_every=5)
    job.start(samples=lambda task: lambda model: [f"a vocabulary of {task.tokenizer.vocabulary}"])
    printed = capsys.readouterr().out
    titles = [line for line in printed.splitlines() if line.startswith("after")]
    assert titles == ["after step 5", "after step 10", "after step 12"]
    assert printed.count("a vocabulary of") == 3


@pytest.mark.parametrize("family", list(MODELS))
def test_what_is_compiled_by_default(family: str, tmp_path: Path) -> None:
    """Models are compiled on a GPU, if every batch has the same shape."""
    data = small_job(family, tmp_path).task().training
    assert should_compile(None, "cuda", data) == (family in ("gpt", "bert", "rnn-lm"))
    assert is_recurrent(build(MODELS[family])) == family.startswith("rnn")  # not compiled
    assert not should_compile(None, "cpu", data)
    for device in ("cpu", "cuda"):
        assert should_compile(True, device, data)
        assert not should_compile(False, device, data)


# Out of memory


class CrampedObjective(nn.Module):
    """An objective that is out of memory with more than a few rows."""

    def __init__(self, objective: nn.Module, rows: int) -> None:
        super().__init__()
        self.objective = objective
        self.rows = rows

    def forward(self, batch: Batch) -> Tensor:
        if batch.rows > self.rows:
            raise torch.OutOfMemoryError("no room")

        return self.objective(batch)


def train_cramped(job: TrainingJob, rows: int) -> TrainingResult:
    run = job.create_run()
    run.objective = CrampedObjective(run.objective, rows)
    return training_loop(run)


def test_out_of_memory_halves_the_micro_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = replace(MODELS["gpt"], dropout=0.0, attention_dropout=0.0)
    usual = small_job("gpt", tmp_path)._replace(config=plain)
    usual.train()
    cramped = small_job("gpt", tmp_path, tmp_path / "cramped", steps=12)._replace(config=plain)
    train_cramped(cramped.with_run(steps=6, validate_every=6), rows=1)
    assert capsys.readouterr().out.count("Out of memory") == 2
    newest = Checkpoints(cramped.run.out / "checkpoints").newest()
    assert newest is not None
    assert newest.state["parts"] == 4

    again = small_job("gpt", tmp_path, tmp_path / "again")._replace(config=plain)
    train_cramped(again, rows=1)
    assert capsys.readouterr().out.count("Out of memory") == 2
    usual_losses = [row["loss"] for row in rows_of(usual.run.out) if "loss" in row]
    losses = [row["loss"] for row in rows_of(again.run.out) if "loss" in row]
    assert usual_losses == pytest.approx(losses, rel=1e-5)
    weights = model_of(again.run.out)
    for name, weight in model_of(usual.run.out).items():
        torch.testing.assert_close(weights[name], weight, rtol=1e-3, atol=1e-4, msg=name)

    train_cramped(cramped.with_run(resume=True), rows=1)
    assert "Out of memory" not in capsys.readouterr().out, "a resumed run knows what fits"


def test_a_row_that_does_not_fit_raises(tmp_path: Path) -> None:
    with pytest.raises(MemoryError, match=r"out of memory with one row of 16 tokens"):
        train_cramped(small_job("gpt", tmp_path), rows=0)


# Signals


def interrupt(run: Run, number: signal.Signals, at: int, times: int = 1) -> None:
    """Send a signal in the middle of a step."""
    objective = run.objective
    steps = iter(range(10**6))

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
def default_handlers() -> Iterator[None]:
    """Handle all signals: under nohup, or in the background of a shell, some are ignored."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("default_handlers")
@pytest.mark.parametrize(
    ("number", "times"), [(signal.SIGINT, 1), (signal.SIGTERM, 1), (signal.SIGHUP, 2)]
)
def test_a_signal_saves_and_stops_after_the_step(
    number: signal.Signals, times: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A closing terminal sends SIGHUP twice: from the kernel and from the shell."""
    handlers = [signal.getsignal(other) for other in SIGNALS]
    job = small_job("gpt", tmp_path)
    run = job.create_run()
    interrupt(run, number, at=4, times=times)
    outcome = training_loop(run)
    assert (outcome.steps, outcome.finished) == (5, False)
    printed = capsys.readouterr().out
    assert "Stopped after step 5 of 12; all is saved. Go on with --resume." in printed
    assert f"The model in {job.run.out} is that of step 4, the best on validation so far" in printed
    assert Checkpoints(job.run.out / "checkpoints").steps() == [0, 3, 4, 5]
    assert [signal.getsignal(other) for other in SIGNALS] == handlers


def test_a_model_that_cannot_generate_does_not_end_the_run(
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


def test_an_ignored_hang_up_stays_ignored(tmp_path: Path) -> None:
    """SIGHUP is ignored under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        run = small_job("gpt", tmp_path, steps=3).create_run()
        interrupt(run, signal.SIGHUP, at=1)
        assert training_loop(run).finished
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(("family", "uses_cudnn"), [("gpt", True), ("transformer", False)])
@pytest.mark.parametrize("fails", [False, True])
def test_the_attention_of_the_process_is_restored(
    tmp_path: Path, family: str, uses_cudnn: bool, fails: bool
) -> None:
    """cuDNN's attention, which plans for every new shape, is off while lengths of pairs vary."""
    run = small_job(family, tmp_path, steps=3, validate_every=2).create_run()
    seen = set()

    def measure() -> dict[str, float]:
        seen.add(torch.backends.cuda.cudnn_sdp_enabled())
        if fails:
            raise RuntimeError("out of luck")

        return {"loss": 1.0}

    run.measure = measure
    before = torch.backends.cuda.cudnn_sdp_enabled()
    if fails:
        with pytest.raises(RuntimeError, match="luck"):
            training_loop(run)
    else:
        training_loop(run)

    assert seen == {before and uses_cudnn}
    assert torch.backends.cuda.cudnn_sdp_enabled() == before


@pytest.mark.parametrize("average", ["none", "exponential"])
def test_before_the_first_validation_the_newest_weights_are_saved(
    average: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = small_job(
        "gpt", tmp_path, validate_every=50, optimizer={"average": average, "average_decay": 0.5}
    )
    run = job.create_run()
    assert artifact.load(job.run.out).tokenizer is not None, "before the first step, too"
    interrupt(run, signal.SIGINT, at=4)
    assert training_loop(run).validation_loss is None
    newest = {name: weight.detach() for name, weight in run.model.named_parameters()}
    if run.learner.average is not None:
        newest = run.learner.average.weights

    assert same_bits(model_of(job.run.out), newest)
    assert same_bits(dict(artifact.load(job.run.out).model.state_dict()), newest)
    printed = capsys.readouterr().out
    assert (
        f"The model in {job.run.out} is that of step 5, not validated yet; {job.run.out}@5 opens"
        in printed
    )


def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    run = small_job("gpt", tmp_path).create_run()
    interrupt(run, signal.SIGINT, at=4, times=2)
    # In the background of a shell SIGINT is ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            training_loop(run)

        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
