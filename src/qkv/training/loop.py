"""The loop, the same for every model: batch, loss, gradients, good or bad, update; then whatever is
due.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from types import FrameType

import torch

from qkv.models.registry import Model
from qkv.training.optimizer import gradient_norm
from qkv.training.run import Done, Run
from qkv.training.step import gradients_of
from qkv.training.systems.prefetcher import Prefetcher

Samples = Callable[[Model], list[str]]


@dataclass(frozen=True)
class TrainingResult:
    """How training ended."""

    steps: int
    finished: bool
    """False when it was stopped before its last step; it can be resumed."""
    validation_loss: float | None
    """Of the weights that were kept."""
    tokens: int
    seconds: float
    flops: float


def training_loop(run: Run, samples: Samples | None = None) -> TrainingResult:
    """Take the run to its last step, or to where it is told to stop. `samples` shows what the model
    says by now.
    """
    config, state, memory, progress = run.config, run.state, run.memory, run.progress
    validate_every, save_every = (
        config.every(config.validate_every, 10),
        config.every(config.checkpoint_every, 20),
    )
    sample_every = config.every(config.sample_every, 4)

    if run.gave_up():
        progress.say(
            f"The run has ended early, after step {state.step}; a higher --stop-after lets it go on."
        )
    elif state.step >= run.steps:
        more = "--steps" if run.task.steps is None else "--epochs"
        progress.say(f"All {run.steps} steps are done; give more {more} to go on.")

    with (
        closing(run.metrics),
        run.progress,
        stop_on_signals() as told_to_stop,
        closing(Prefetcher(run.task.training)) as ahead,
    ):
        begun = time.perf_counter()
        while state.step < run.steps and not run.gave_up():
            step, position = state.step, state.position(state.step)
            batch = ahead.take(position, following=state.position(step + 1))
            loss, state.parts = gradients_of(
                run.objective, batch, run.world, parts=state.parts, scale=memory.scale.factor,
                seed=(config.seed, step), say=progress.say,
            )  # fmt: skip
            norm = gradient_norm(run.model.parameters()) / memory.scale.factor
            bad = memory.guard.judge(step, loss, norm)
            clip = (norm / run.optimizer.clip).clamp(min=1.0) if run.optimizer.clip else 1.0
            memory.optimizers.set_rate(run.rate(step), run.highest)
            memory.optimizers.step(bad, divisor=memory.scale.factor * clip)
            memory.optimizers.forget_gradients()
            numbers = torch.stack([loss, norm, bad, memory.scale.factor])
            memory.scale.update(overflow=~norm.isfinite())
            if memory.average is not None:
                memory.average.update(run.model, step)

            if (
                run.hear()
            ):  # of the step before this one: the device has this one to work on meanwhile
                continue

            now = time.perf_counter()
            state.step, state.tokens, state.seconds = (
                step + 1,
                state.tokens + batch.tokens,
                state.seconds + now - begun,
            )
            run.pending.append(Done(step, position, numbers, batch.tokens, now - begun))
            begun = now

            last, stop = state.step == run.steps, run.world.anyone(told_to_stop())
            validating = last or state.step % validate_every == 0
            saving = last or state.step % save_every == 0
            sampling = (
                samples is not None and sample_every and (last or state.step % sample_every == 0)
            )
            if not (validating or saving or sampling or stop):
                continue
            if run.hear():
                continue

            best = validating and run.check()
            if saving or best or stop or run.gave_up():
                run.save(best=best, passing=not (saving or best or run.gave_up()))

            if sampling and samples is not None:
                show_samples(run, samples)

            if stop and not last:
                progress.say(
                    f"Stopped after step {state.step} of {run.steps}; all is saved. Go on with --resume."
                )
                progress.say(
                    f"{run.kept_model()}; {run.config.out}@{state.step} opens the newest weights."
                )
                break

            if run.gave_up() and not last:
                progress.say(
                    f"No better for {state.stale} validations: the run ends early, after step {state.step}."
                )

            begun = time.perf_counter()

        finished = state.step >= run.steps or run.gave_up()
        if finished:
            run.finish()

    flops = run.flops_per_token * state.tokens

    return TrainingResult(state.step, finished, state.best, state.tokens, state.seconds, flops)


def show_samples(run: Run, samples: Samples) -> None:
    """What the model generates by now. A model that cannot (its logits are not finite) does not end
    the run.
    """
    try:
        run.progress.samples(f"after step {run.state.step}", samples(run.model))
    except ValueError as error:
        run.progress.say(f"There is no sample after step {run.state.step}: {error}.")


@contextmanager
def stop_on_signals() -> Iterator[Callable[[], bool]]:
    """SIGINT, SIGTERM and SIGHUP end the run after the step it is in, saved; a second SIGINT or
    SIGTERM does at once.

    A terminal that is closed may send SIGHUP twice, by the kernel and by the shell: the second one
    changes nothing. Where SIGHUP is ignored, as under nohup, it stays ignored.
    """
    told: list[int] = []

    def hear(number: int, frame: FrameType | None) -> None:
        if told and number != hang_up:
            signal.signal(number, before[signal.Signals(number)])
            signal.raise_signal(number)

        told.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    hang_up = getattr(signal, "SIGHUP", None)  # which Windows does not have
    numbers = [signal.SIGINT, signal.SIGTERM]
    if hang_up is not None and signal.getsignal(hang_up) != signal.SIG_IGN:
        numbers.append(hang_up)

    before = {number: signal.signal(number, hear) for number in numbers}

    try:
        yield lambda: bool(told)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
