"""A training run: model, optimizers, data and files, and everything that happens between steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rich.console import Console
from torch import Tensor, nn

from qkv import artifact
from qkv.checkpoint import CHECKPOINTS, Checkpoint
from qkv.data.batches.batch import Batch
from qkv.models.model import Model
from qkv.models.registry import with_weights
from qkv.training.average import ExponentialAverage, copy_weights, mean_of
from qkv.training.finetune.task_metrics import merit
from qkv.training.logging.metrics import Metrics, read_metrics
from qkv.training.logging.progress import Progress
from qkv.training.optimizer import Optimizers
from qkv.training.resilience.checkpoint_writer import Checkpoints
from qkv.training.resilience.guard import Diverged, Guard, LossScale
from qkv.training.resilience.run_state import Learner, RunState
from qkv.training.resilience.sharded_checkpoints import ShardedCheckpoints
from qkv.training.run_config import OptimizerConfig, RunConfig
from qkv.training.schedule import highest_rate, learning_rate
from qkv.training.setup.cost import cost, measured_peak, memory_used
from qkv.training.setup.objective_setup import build_objective, configure_torch, micro_batches
from qkv.training.setup.training_task import TrainingTask
from qkv.training.step import HostCopy, PendingStep, validate
from qkv.training.systems.distributed import World, uses_fsdp

AVERAGED = 3
"""Checkpoints that --average last averages when --keep is all."""


@dataclass
class Run:
    """Everything that takes part in training, and what is done between two steps."""

    task: TrainingTask
    optimizer: OptimizerConfig
    config: RunConfig
    world: World
    model: Model
    objective: nn.Module
    """The loss of a batch, as every rank calls it."""
    learner: Learner
    state: RunState
    checkpoints: Checkpoints
    metrics: Metrics
    progress: Progress
    highest: float
    """The highest learning rate."""
    flops_per_token: float
    peak: float
    """Floating-point operations per second of a large matrix product, over all devices."""
    pending: list[PendingStep] = field(default_factory=list)

    # Creation

    @classmethod
    def create(
        cls,
        task: TrainingTask,
        optimizer: OptimizerConfig,
        config: RunConfig,
        world: World,
        *,
        description: dict[str, Any] | None = None,
        console: Console | None = None,
        model: Model | None = None,
    ) -> Run:
        """A run at its first step, or at the newest checkpoint in its folder.

        `description` is the content of run.json; `model` is trained instead of the task's.
        """
        # Model, objective and what learns
        precision = configure_torch(config, world.device)
        model, objective = build_objective(task, optimizer, config, world, precision, model)
        average = None
        if optimizer.average == "exponential":
            average = ExponentialAverage(model, optimizer.average_decay)

        learner = Learner(
            model,
            Optimizers(model, optimizer),
            LossScale(precision == "fp16", world.device),
            Guard(config.spike, config.patience),
            average,
            getattr(objective, "memory", None),
        )

        # Files and display
        metrics = Metrics(config.out, sinks=config.sinks, config=description, active=world.first)
        progress = Progress(
            config.steps,
            every=config.log_every,
            console=console,
            active=world.first,
            metric=task.metric,
        )
        keep = None if config.keep == "all" else config.keep
        checkpoints = Checkpoints(config.out / CHECKPOINTS, keep, log=progress.log)
        if uses_fsdp(world, config.distributed):
            checkpoints = ShardedCheckpoints(checkpoints.folder, keep, progress.log, world)

        # The run, from its beginning or resumed
        parts = micro_batches(task, config, world)
        run = cls(
            task, optimizer, config, world, model, objective, learner,
            RunState(parts=parts, requested_parts=parts), checkpoints, metrics, progress,
            highest=highest_rate(optimizer, task.config.width, config.steps),
            flops_per_token=cost(task.config, 1, precision, task.workload).flops_per_token,
            peak=measured_peak(world.device, precision) * world.size,
        )  # fmt: skip
        run.resume()

        return run

    def resume(self) -> None:
        """Restore the newest checkpoint; where there is none, save the first."""
        out = self.config.out
        state = self.state
        requested_parts = state.requested_parts

        with self.world.first_rank_first():  # nothing is written before all ranks have read
            newest = self.checkpoints.newest()
            if newest is not None:
                self.learner.restore(newest, state)
                if state.requested_parts != requested_parts:
                    # Otherwise the split that an out-of-memory error led to stays.
                    state.parts = state.requested_parts = requested_parts

                self.progress.log(f"Resuming after step {state.step} of {self.steps}.")
            elif self.checkpoints.steps():
                raise ValueError(
                    f"out: none of the checkpoints in {out} is whole; "
                    "choose another folder to begin anew"
                )

            self.metrics.rewind(state.step)
            if self.world.first and self.metrics.path.exists():
                self.progress.restore_best(read_metrics(out))

        if self.world.any_rank(state.step != self.world.broadcast(state.step)):
            raise ValueError(
                f"out: all processes must see the same checkpoints in {out}; use a disk they share"
            )

        if newest is None:
            self.save_checkpoint(best=False)

    # Steps

    @property
    def sharded(self) -> bool:
        """Whether the model is sharded over the ranks."""
        return uses_fsdp(self.world, self.config.distributed)

    @property
    def steps(self) -> int:
        return self.config.steps

    def learning_rate(self, step: int) -> float:
        return learning_rate(self.optimizer, step, self.steps, self.highest)

    def stopped_early(self) -> bool:
        """Whether early stopping ended the run: no better validation for `stop_after` in a row."""
        return self.config.stop_after is not None and self.state.stale >= self.config.stop_after

    def prepare_batch(self, batch: Batch) -> Batch:
        """The batch as the device takes it, made ahead by the prefetching thread."""
        graphs = getattr(self.objective, "cuda_graphs", None)
        if graphs is not None and self.state.parts == 1:
            batch = graphs.shaped(batch)

        return batch.pin()

    def count_step(self, position: int, statistics: Tensor, tokens: int, seconds: float) -> None:
        """Note that a step was sent to the device; its statistics are logged later."""
        state = self.state
        sent = HostCopy(statistics)
        self.pending.append(PendingStep(state.step, position, sent, tokens, seconds))
        state.step += 1
        state.tokens += tokens
        state.seconds += seconds

    def log_pending_steps(self) -> bool:
        """Read back and log the steps sent to the device; True if that made the run rewind."""
        while self.pending:
            self.observe_step(self.pending.pop(0))
            if self.learner.guard.exhausted:
                self.rewind()
                return True

        return False

    def observe_step(self, done: PendingStep) -> None:
        """Write a step's metrics, and its event if it was skipped."""
        loss, norm, bad, scale = done.statistics.read()
        speed = done.tokens / done.seconds
        # The peak was measured while the machine was busy if a step exceeds it.
        self.peak = max(self.peak, self.flops_per_token * speed)

        row = {
            "step": done.step + 1,
            "loss": loss,
            "gradient_norm": norm,
            "learning_rate": self.learning_rate(done.step),
            "tokens": self.state.tokens,
            "seconds": round(self.state.seconds, 3),
            "tokens_per_second": round(speed, 1),
            "utilisation": round(self.flops_per_token * speed / self.peak, 4),
            "memory": memory_used(self.world.device),
        }
        self.metrics.write(row)
        self.progress.step(row)

        # Why the step was skipped, if it was
        if scale <= 1 or not math.isfinite(loss) or math.isfinite(norm):
            reason = self.learner.guard.observe(done.step, done.position, loss, norm, bool(bad))
        else:
            reason = f"its gradient overflows fp16 at a scale of {scale:.0f}, which is now halved"
        if reason is None:
            return

        self.metrics.write(
            {"step": done.step + 1, "event": "skipped", "reason": reason, "position": done.position}
        )
        self.progress.log(
            f"Step {done.step + 1} is skipped: {reason}. "
            f"Its batch is number {done.position} of the data."
        )

    # Rewinding

    def rewind(self) -> None:
        """Go back to a checkpoint before the bad steps and leave their data out from there on."""
        state = self.state
        guard = self.learner.guard
        bad = guard.bad
        step, first = bad[0]
        _, last = bad[-1]

        checkpoint = self.checkpoint_before(step)
        rewinds = state.rewinds + 1
        left_out = state.left_out

        # Restore all but what was learned about the data
        self.learner.restore(checkpoint, state)
        state.rewinds = rewinds
        state.left_out = left_out
        first = max(first, state.position(state.step))
        state.leave_out(first, last)
        guard.bad = []
        self.pending.clear()

        # Log it
        reason = f"{len(bad)} bad steps in a row, from step {step + 1} on"
        self.metrics.rewind(state.step, keep_events=True)
        self.metrics.write(
            {"step": state.step, "event": "rewound", "reason": reason, "position": first}
        )
        self.progress.log(
            f"{reason}: back to the checkpoint of step {state.step}. "
            f"From there on the batches {first} to {last} of the data are left out."
        )

        # Save at once, so that a run killed now does not read that data again when resumed; but
        # only when every rank has read the checkpoint that is replaced.
        self.world.barrier()
        self.save_checkpoint(best=checkpoint.best)

    def checkpoint_before(self, step: int) -> Checkpoint:
        """The newest checkpoint up to a step, or else the newest; raises after too many rewinds."""
        self.checkpoints.wait()
        if self.state.rewinds >= self.config.patience:
            raise Diverged(
                f"training fails again and again, now at step {step + 1}: it went back "
                f"{self.state.rewinds} times, each time past other data, so the data is not to "
                "blame; lower the learning rate or raise the warmup"
            )

        earlier = self.checkpoints.last(1, up_to=step)
        checkpoint = earlier[0] if earlier else self.checkpoints.newest()
        if checkpoint is None:
            raise Diverged(
                "training fails, and there is no whole checkpoint to go back to; begin a new run"
            )

        return checkpoint

    # Checkpoints and the saved model

    def save_checkpoint(self, *, best: bool, temporary: bool = False) -> None:
        """Save a checkpoint; a temporary one where the run is interrupted."""
        # The model comes first, so that wherever there is a checkpoint there is a model to open.
        if self.state.best is None:
            with self.averaged_weights():
                self.save_model()

        save = partial(
            self.checkpoints.save,
            self.state.step,
            self.learner.tensors(frozen=self.sharded),
            self.learner.numbers(self.state),
            best=best,
            temporary=temporary,
        )
        if self.sharded:
            save()
            return

        with self.world.all_or_none():
            if self.world.first:
                save()

    def averaged_weights(self) -> AbstractContextManager[None]:
        """While the context is open, the model has the weights that are validated and saved."""
        if self.learner.average is None:
            return nullcontext()

        return self.learner.average.in_place(self.model)

    def save_model(self) -> None:
        """Write the current weights as the model of the run's folder.

        With FSDP no rank has them whole; `finish` turns the best checkpoint into the model.
        """
        if not self.sharded:
            self.write_model(lambda: dict(self.model.named_parameters()))

    def write_model(self, weights: Callable[[], Mapping[str, Tensor]]) -> None:
        """Write weights, which only the first rank computes, as the model of the run's folder."""
        with self.world.all_or_none():
            if not self.world.first:
                return

            tensors = {name: weight.detach() for name, weight in weights().items()}
            if self.task.save is not None:
                self.task.save(tensors, self.config.out)
            else:
                model = with_weights(self.task.config, tensors)
                artifact.save(model, self.config.out, tokenizer=self.task.tokenizer, replace=True)

    def best_weights(self) -> Mapping[str, Tensor]:
        """The weights of the best checkpoint, or of the newest before the first validation."""
        checkpoint = self.checkpoints.best() or self.checkpoints.newest()
        if checkpoint is None:
            raise ValueError(f"out: none of the checkpoints in {self.config.out} is whole")

        return checkpoint.weights()

    def describe_model(self) -> str:
        """Which weights the model in the folder has, in a sentence."""
        self.checkpoints.wait()
        best = self.checkpoints.marked_best()
        model = f"The model in {self.config.out} is that of step"
        if self.state.best is None or not best:
            return f"{model} {self.state.step}, not validated yet"

        return f"{model} {best[-1]}, the best on validation so far"

    # Validation

    def validate(self) -> bool:
        """Validate the weights, averaged if they are; True if they are the best, and then saved."""
        state = self.state
        with self.averaged_weights():
            measured = self.measure()
            score = merit(measured, self.task.metric)
            better = state.merit is None or score > state.merit
            tied = score == state.merit
            best = better or state.best is None or (tied and measured["loss"] < state.best)

            state.stale = 0 if better else state.stale + 1
            if best:
                state.best = measured["loss"]
                state.merit = score
                self.save_model()

        row = {"step": state.step, "validation_loss": measured.pop("loss"), **measured}
        if not math.isfinite(row["validation_loss"]):
            self.progress.log(
                "The validation loss is not finite; lower the learning rate or raise the warmup."
            )

        self.metrics.write(row)
        self.progress.validation(row)

        return best

    def measure(self) -> dict[str, float]:
        """Validation loss and metrics of the current weights; the run's own metric comes first."""
        loss, counted = validate(self.objective, self.task.validation, self.world, self.state.parts)
        if math.isnan(loss):
            loss = math.inf  # worse than any other

        metrics = {"loss": loss}
        if self.task.measure is not None:
            metrics |= self.task.measure(counted)

        return {self.task.metric: metrics[self.task.metric], **metrics}

    # The end

    def finish(self, finished: bool) -> None:
        """Complete the run's model, and write the final event of a run that has `finished`."""
        self.checkpoints.wait()
        if finished and self.optimizer.average == "last":
            self.save_mean_of_checkpoints()
        elif self.sharded:
            self.write_model(self.best_weights)

        if not finished:
            return

        row: dict[str, Any] = {
            "step": self.state.step,
            "event": "finished",
            "validation_loss": self.state.best,
            "tokens": self.state.tokens,
            "seconds": self.state.seconds,
            "flops": self.flops_per_token * self.state.tokens,
        }

        # A run that is resumed at its end has the event already.
        if self.world.first and row not in read_metrics(self.config.out):
            self.metrics.write(row)

    def save_mean_of_checkpoints(self) -> None:
        """Validate the mean of the last checkpoints' weights and save it as the run's model."""
        last = self.checkpoints.last(self.checkpoints.keep or AVERAGED)
        mean = mean_of(last, "model/", dict(self.model.named_parameters()))
        copy_weights(mean, self.model, origin=str(self.config.out))
        measured = self.measure()
        self.state.best = measured["loss"]
        self.state.merit = merit(measured, self.task.metric)
        if self.sharded:
            self.write_model(lambda: last[-1].weights() | mean_of(last, "model/"))

        self.save_model()
        steps = ", ".join(str(checkpoint.step) for checkpoint in last)
        self.progress.log(
            f"The mean of the checkpoints {steps} has a validation loss of {self.state.best:.4f}."
        )
