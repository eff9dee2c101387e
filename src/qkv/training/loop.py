"""The training loop, the same for every model: batch, gradients, update, then what is due."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.data.batches.batch import Batch
from qkv.models.model import Model
from qkv.training.optimizer import gradient_norm
from qkv.training.run import Run
from qkv.training.setup.objective_setup import attention_setting
from qkv.training.step import gradients_of
from qkv.training.systems.prefetcher import Prefetcher

SampleTexts = Callable[[Model], list[str]]


@dataclass(frozen=True)
class TrainingResult:
    """How training ended."""

    steps: int
    finished: bool
    """False when the run was stopped before its last step; it can be resumed."""
    validation_loss: float | None
    """Validation loss of the saved weights; None before the first validation."""
    tokens: int
    seconds: float
    flops: float


class Due(NamedTuple):
    """What happens after a step; `stop` is asked for by a signal, and never after the last."""

    stop: bool
    validation: bool
    checkpoint: bool
    samples: bool


def training_loop(run: Run, samples: SampleTexts | None = None) -> TrainingResult:
    """Train until the last step, early stopping or a signal; `samples` generates texts to show."""
    state = run.state
    report_if_done(run)

    with (
        closing(run.metrics),
        run.progress,
        attention_setting(run.task.training),
        stop_on_signals() as stop_requested,
        closing(Prefetcher(run.task.training, run.prepare_batch)) as prefetcher,
    ):
        started = time.perf_counter()
        while state.step < run.steps and not run.stopped_early():
            # One update of the weights, which the device computes asynchronously
            position = state.position(state.step)
            batch = prefetcher.take(position, following=state.position(state.step + 1))
            statistics = train_step(run, batch)

            # Log the step before this one while the device works; a rewind starts the loop anew
            if run.log_pending_steps():
                continue

            # Count this step
            now = time.perf_counter()
            run.count_step(position, statistics, batch.tokens, seconds=now - started)
            started = now

            # Validate, save and sample where due; first log this step, too
            due = due_now(run, samples, stop=run.world.any_rank(stop_requested()))
            if not any(due) or run.log_pending_steps():
                continue

            do_what_is_due(run, due, samples)
            if due.stop:
                break

            started = time.perf_counter()

        finished = state.step >= run.steps or run.stopped_early()
        run.finish(finished)

    flops = run.flops_per_token * state.tokens

    return TrainingResult(state.step, finished, state.best, state.tokens, state.seconds, flops)


def report_if_done(run: Run) -> None:
    """Log why there is nothing to do in a run that has ended already."""
    if run.stopped_early():
        run.progress.log(
            f"The run ended early, after step {run.state.step}; "
            "a higher --stop-after lets it continue."
        )
    elif run.state.step >= run.steps:
        flag = "--epochs"
        if run.task.steps is None:
            flag = "--steps"

        run.progress.log(f"All {run.steps} steps are done; give more {flag} to continue.")


def train_step(run: Run, batch: Batch) -> Tensor:
    """Update the weights with one batch; return loss, gradient norm, bad (0 or 1) and loss scale.

    Nothing is read back from the device, so the host does not wait for it. A bad step (see `Guard`)
    leaves the weights and the optimizers unchanged.
    """
    state = run.state
    learner = run.learner
    scale = learner.scale.factor

    # Forward and backward, in micro-batches
    loss, state.parts = gradients_of(
        run.objective,
        batch,
        run.world,
        parts=state.parts,
        scale=scale,
        seed=(run.config.seed, state.step),
        log=run.progress.log,
    )

    # Gradient clipping, by dividing the gradients in the optimizer
    norm = gradient_norm(run.model.parameters()) / scale
    divisor = scale
    if run.optimizer.clip:
        divisor = scale * (norm / run.optimizer.clip).clamp(min=1.0)

    # Update
    bad = learner.guard.is_bad(state.step, loss, norm)
    learner.optimizers.set_rate(run.learning_rate(state.step), run.highest)
    learner.optimizers.step(bad, divisor=divisor)
    learner.optimizers.zero_gradients()
    statistics = torch.stack([loss, norm, bad, scale])

    # What follows the weights: fp16's loss scale, the exponential moving average
    learner.scale.update(overflow=~norm.isfinite())
    if learner.average is not None:
        learner.average.update(run.model, state.step)

    return statistics


def due_now(run: Run, samples: SampleTexts | None, *, stop: bool) -> Due:
    """What is due after the step just counted; everything is after the last."""
    config = run.config
    step = run.state.step
    last = step == run.steps
    sample_every = config.every(config.sample_every, 4)

    return Due(
        stop=stop and not last,
        validation=last or step % config.every(config.validate_every, 10) == 0,
        checkpoint=last or step % config.every(config.checkpoint_every, 20) == 0,
        samples=samples is not None and sample_every > 0 and (last or step % sample_every == 0),
    )


def do_what_is_due(run: Run, due: Due, samples: SampleTexts | None) -> None:
    """Validate, save a checkpoint, show samples, and log why the run stops, if it does."""
    state = run.state
    best = due.validation and run.validate()
    scheduled = due.checkpoint or best or run.stopped_early()
    if scheduled and not run.learner.guard.bad:
        state.rewinds = 0
    if scheduled or due.stop:
        run.save_checkpoint(best=best, temporary=not scheduled)

    if due.samples and samples is not None:
        show_samples(run, samples)

    if due.stop:
        run.progress.log(
            f"Stopped after step {state.step} of {run.steps}; all is saved. Go on with --resume."
        )
        run.progress.log(
            f"{run.describe_model()}; {run.config.out}@{state.step} opens the newest weights."
        )
    elif run.stopped_early() and state.step < run.steps:
        run.progress.log(
            f"No improvement for {state.stale} validations: "
            f"the run ends early, after step {state.step}."
        )


def show_samples(run: Run, samples: SampleTexts) -> None:
    """Show generated texts; a model whose logits are not finite gives none and trains on."""
    try:
        run.progress.show_samples(f"after step {run.state.step}", samples(run.model))
    except ValueError as error:
        run.progress.log(f"There is no sample after step {run.state.step}: {error}.")


@contextmanager
def stop_on_signals() -> Iterator[Callable[[], bool]]:
    """Yield a function that is True once SIGINT, SIGTERM or SIGHUP has arrived.

    The loop then saves and stops after the current step; a second SIGINT or SIGTERM ends the
    process at once. A closing terminal may send SIGHUP twice, from the kernel and from the shell:
    the second is ignored. Where SIGHUP is ignored already, as under nohup, it stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    received: list[int] = []
    previous: dict[signal.Signals, Any] = {}
    hang_up = getattr(signal, "SIGHUP", None)  # Windows has none

    def handle(number: int, frame: FrameType | None) -> None:
        if received and number != hang_up:
            signal.signal(number, previous[signal.Signals(number)])
            signal.raise_signal(number)

        received.append(number)

    numbers = [signal.SIGINT, signal.SIGTERM]
    if hang_up is not None and signal.getsignal(hang_up) != signal.SIG_IGN:
        numbers.append(hang_up)

    for number in numbers:
        previous[number] = signal.signal(number, handle)

    try:
        yield lambda: bool(received)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
