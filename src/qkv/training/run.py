"""A run: everything that takes part in training, and what happens to it besides the steps
themselves.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from qkv import artifact
from qkv.checkpoint import CHECKPOINTS
from qkv.data.batches.causal import CausalData
from qkv.data.batches.chat import ConversationData
from qkv.data.batches.labelled import LabelledData
from qkv.data.batches.masked import MaskedData
from qkv.data.batches.paired import PairedData
from qkv.models.registry import Model, build, with_weights
from qkv.training.average import ExponentialAverage, mean_of
from qkv.training.finetune.task_metrics import merit
from qkv.training.logging.metrics import Metrics, read_metrics
from qkv.training.logging.progress import Progress
from qkv.training.optimizer import Optimizers
from qkv.training.resilience.checkpoint_writer import Checkpoints
from qkv.training.resilience.guard import Guard, LossScale
from qkv.training.resilience.run_state import Memory, RunState, put_weights
from qkv.training.run_config import OptimizerConfig, RunConfig
from qkv.training.schedule import highest_rate, learning_rate
from qkv.training.setup.cost import Cost, cost, measured_peak, memory_used
from qkv.training.setup.training_task import TrainingData, TrainingTask
from qkv.training.step import validate
from qkv.training.systems.distributed import World, gathered, sharded, spread
from qkv.training.systems.gradient_checkpointing import recompute_blocks
from qkv.training.systems.precision import Precision, best_precision, check_precision

FEW = 2
"""Batches of a shape that come before it is recorded: some shapes come once."""
AVERAGED = 3
"""Checkpoints whose mean is kept, with --average last and --keep all."""


class Diverged(RuntimeError):
    """Training cannot go on, whatever data it is given."""


class Done(NamedTuple):
    """A step that was sent to the device; its numbers are known there, and here a little later."""

    step: int
    position: int
    numbers: Tensor
    """Loss, gradient norm, 1 if the step was bad, fp16's scale."""
    tokens: int
    seconds: float


@dataclass
class Run:
    task: TrainingTask
    optimizer: OptimizerConfig
    config: RunConfig
    world: World
    model: Model
    objective: nn.Module
    """The loss of a batch, as every rank calls it."""
    memory: Memory
    state: RunState
    checkpoints: Checkpoints
    metrics: Metrics
    progress: Progress
    highest: float
    flops_per_token: float
    peak: float
    pending: list[Done] = field(default_factory=list)

    @property
    def steps(self) -> int:
        return self.config.steps

    def rate(self, step: int) -> float:
        return learning_rate(self.optimizer, step, self.steps, self.highest)

    def hear(self) -> bool:
        """Learn what became of the steps sent before, and write it down; True if that made the run
        go back.
        """
        while self.pending:
            done = self.pending.pop(0)
            loss, norm, bad, scale = done.numbers.tolist()
            speed = done.tokens / done.seconds
            self.peak = max(
                self.peak, self.flops_per_token * speed
            )  # it was measured on a machine that was busy
            row = {
                "step": done.step + 1,
                "loss": loss,
                "gradient_norm": norm,
                "learning_rate": self.rate(done.step),
                "tokens": self.state.tokens,
                "seconds": round(self.state.seconds, 3),
                "tokens_per_second": round(speed, 1),
                "utilisation": round(self.flops_per_token * speed / self.peak, 4),
                "memory": memory_used(self.world.device),
            }

            self.metrics.write(row)
            self.progress.step(row)
            if scale > 1 and math.isfinite(loss) and not math.isfinite(norm):
                self.skipped(
                    done,
                    f"its gradient overflows fp16 at a scale of {scale:.0f}, which is now halved",
                )
            elif reason := self.memory.guard.hear(done.step, done.position, loss, norm, bool(bad)):
                self.skipped(done, reason)

            if self.memory.guard.exhausted:
                self.go_back()
                return True

        return False

    def skipped(self, done: Done, reason: str) -> None:
        self.metrics.write(
            {"step": done.step + 1, "event": "skipped", "reason": reason, "position": done.position}
        )
        self.progress.say(
            f"Step {done.step + 1} is skipped: {reason}. Its batch is number {done.position} of the data."
        )

    def go_back(self) -> None:
        """To the newest checkpoint, and from there past the data of the bad steps."""
        bad = self.memory.guard.bad
        (step, first), (_, last) = bad[0], bad[-1]
        good = self.checkpoints.last(1, up_to=step)
        if self.state.rewinds >= self.config.patience:
            raise Diverged(
                f"training fails again and again, now at step {step + 1}: it went back {self.state.rewinds} times, "
                "each time past other data, so the data is not to blame; lower the learning rate or raise the warmup"
            )

        rewinds, left_out = self.state.rewinds + 1, self.state.left_out
        checkpoint = good[0] if good else self.checkpoints.newest()
        if checkpoint is None:
            raise Diverged(
                "training fails, and there is no whole checkpoint to go back to; begin a new run"
            )

        self.memory.restore(checkpoint, self.state)
        self.state.rewinds, self.state.left_out = rewinds, left_out
        first = max(first, self.state.position(self.state.step))
        self.state.leave_out(first, last)
        self.memory.guard.bad = []
        self.pending.clear()
        reason = f"{len(bad)} bad steps in a row, from step {step + 1} on"
        self.metrics.rewind(self.state.step, keep_events=True)
        self.metrics.write(
            {"step": self.state.step, "event": "rewound", "reason": reason, "position": first}
        )
        self.progress.say(
            f"{reason}: back to the checkpoint of step {self.state.step}. "
            f"On the new way the batches {first} to {last} of the data are left out."
        )
        self.world.wait()  # until every rank has read the checkpoint that is now replaced
        self.write_checkpoint(
            best=checkpoint.best
        )  # so that, killed now, the run does not meet them again

    def save(self, *, best: bool, passing: bool = False) -> None:
        """A checkpoint on the run's way, or, passing, where it is told to stop."""
        if not (self.memory.guard.bad or passing):
            self.state.rewinds = 0

        self.write_checkpoint(best, passing)

    def write_checkpoint(self, best: bool, passing: bool = False) -> None:
        if (
            self.state.best is None
        ):  # first, so that there is a model to open wherever there is a checkpoint
            with self.averaged():
                self.keep()

        tensors = self.memory.tensors(self.world.first)
        with self.world.together():
            if self.world.first:
                numbers = self.memory.numbers(self.state)
                self.checkpoints.save(self.state.step, tensors, numbers, best=best, passing=passing)

    def check(self) -> bool:
        """Validate the weights as they would be kept. If they are the best so far they are, at
        once, and it is True.
        """
        state = self.state
        with self.averaged():
            measured = self.measured()
            now = merit(measured, self.task.metric)
            better = state.merit is None or now > state.merit
            best = (
                better
                or state.best is None
                or (now == state.merit and measured["loss"] < state.best)
            )
            state.stale = 0 if better else state.stale + 1
            if best:
                state.best, state.merit = measured["loss"], now
                self.keep()

        row = {"step": state.step, "validation_loss": measured.pop("loss"), **measured}
        if not math.isfinite(row["validation_loss"]):
            self.progress.say(
                "The validation loss is not finite; lower the learning rate or raise the warmup."
            )

        self.metrics.write(row)
        self.progress.validation(row)

        return best

    def averaged(self) -> AbstractContextManager[None]:
        """While the context is open, the model has the weights that are validated and kept."""
        return self.memory.average.in_place(self.model) if self.memory.average else nullcontext()

    def kept_model(self) -> str:
        """Which weights the folder's model has, in words."""
        best = self.checkpoints.marked_best()
        if self.state.best is None or not best:
            return f"The model in {self.config.out} is that of step {self.state.step}, not validated yet"

        return f"The model in {self.config.out} is that of step {best[-1]}, the best on validation so far"

    def measured(self) -> dict[str, float]:
        """The validation loss and the task's metrics of the weights as they are."""
        loss, counted = validate(self.objective, self.task.validation, self.world, self.state.parts)
        loss = math.inf if math.isnan(loss) else loss  # which any other is better than
        found = {"loss": loss, **(self.task.measure(counted) if self.task.measure else {})}

        return {
            self.task.metric: found[self.task.metric],
            **found,
        }  # the one that the run is judged by comes first

    def gave_up(self) -> bool:
        """Whether validation has not become better for as long as was asked to wait."""
        return self.config.stop_after is not None and self.state.stale >= self.config.stop_after

    def keep(self) -> None:
        """The weights of this moment become the run's model."""
        own = ((name, weight.detach()) for name, weight in self.model.named_parameters())
        weights = gathered(own, self.world.first)

        with self.world.together():
            if not self.world.first:
                pass
            elif self.task.save is not None:
                self.task.save(weights, self.config.out)
            else:
                model = with_weights(self.task.config, weights)
                artifact.save(model, self.config.out, tokenizer=self.task.tokenizer, replace=True)

    def finish(self) -> None:
        if self.optimizer.average == "last":
            last = self.checkpoints.last(
                AVERAGED if self.config.keep == "all" else self.config.keep
            )
            put_weights(self.model, mean_of(last, "model/"), str(self.config.out))
            measured = self.measured()
            self.state.best, self.state.merit = measured["loss"], merit(measured, self.task.metric)
            self.keep()
            steps = ", ".join(str(checkpoint.step) for checkpoint in last)
            self.progress.say(
                f"The mean of the checkpoints {steps} has a validation loss of {self.state.best:.4f}."
            )

        row = {
            "step": self.state.step,
            "event": "finished",
            "validation_loss": self.state.best,
            "tokens": self.state.tokens,
            "seconds": self.state.seconds,
            "flops": self.flops_per_token * self.state.tokens,
        }

        if self.world.first and row not in read_metrics(
            self.config.out
        ):  # it may have been resumed at its end
            self.metrics.write(row)


def begin(
    task: TrainingTask,
    optimizer: OptimizerConfig,
    config: RunConfig,
    world: World,
    *,
    metrics: Metrics | None = None,
    progress: Progress | None = None,
    model: Model | None = None,
) -> Run:
    """A run from its beginning, or from the newest checkpoint in its folder. `model` is one that is
    trained on.
    """
    device = world.device
    precision = config.precision or best_precision(device)
    check_precision(precision, device)
    torch.set_float32_matmul_precision("high")
    torch.use_deterministic_algorithms(config.deterministic)
    torch.manual_seed(config.seed)
    shards = sharded(world, config.distributed)
    if model is None:
        model = build(task.config) if task.begin is None else task.begin()

    model = model.to("cpu" if shards else device).train()
    if config.recompute:
        recompute_blocks(model)

    own = task.objective(
        model, precision="float32" if shards else precision, smoothing=optimizer.smoothing
    )
    if compiles(config.compile, device.type, task.training):
        own.compile_reader()

    if device.type == "cuda":
        # cuDNN's attention plans for half a second whenever a shape is new.
        torch.backends.cuda.enable_cudnn_sdp(isinstance(task.training, CausalData | MaskedData))
        if (
            world.talk is None
            and own.compiled is not None
            and not isinstance(task.training, PairedData)
        ):
            own.record()  # of pairs, every batch has a shape of its own
        elif world.talk is None and isinstance(task.training, LabelledData | ConversationData):
            own.record(wait=FEW)

    objective = spread(own, world, config.distributed, precision)
    average = (
        ExponentialAverage(model, optimizer.average_decay)
        if optimizer.average == "exponential"
        else None
    )
    memory = Memory(
        model,
        Optimizers(model, optimizer),
        LossScale(precision == "fp16", device),
        Guard(config.spike, config.patience),
        average,
    )

    metrics = metrics or Metrics(config.out, sinks=config.sinks, active=world.first)
    progress = progress or Progress(
        config.steps, every=config.log_every, active=world.first, metric=task.metric
    )
    keep = None if config.keep == "all" else config.keep
    checkpoints = Checkpoints(config.out / CHECKPOINTS, keep, say=progress.say)
    asked = parts_of(task, config, world)
    state = RunState(parts=asked, asked=asked)
    run = Run(
        task, optimizer, config, world, model, objective, memory, state, checkpoints, metrics, progress,
        highest=highest_rate(optimizer, task.config.width, config.steps),
        flops_per_token=cost_of(task, 1, precision).flops_per_token,
        peak=measured_peak(device, precision) * world.size,
    )  # fmt: skip

    with world.in_turn():  # nothing is written before all have read
        newest = checkpoints.newest()
        if newest is not None:
            memory.restore(newest, state)
            if state.asked != asked:  # else what a lack of memory made of it stays
                state.parts = state.asked = asked

            progress.say(f"Resuming after step {state.step} of {config.steps}.")
        elif checkpoints.steps():
            raise ValueError(
                f"out: none of the checkpoints in {config.out} is whole; choose another folder to begin anew"
            )

        metrics.rewind(state.step)
        if world.first and metrics.path.exists():
            progress.recall(read_metrics(config.out))

    if world.anyone(state.step != world.agreed(state.step)):
        raise ValueError(
            f"out: all processes must see the same checkpoints in {config.out}; use a disk they share"
        )

    if newest is None:
        run.save(best=False)

    return run


def compiles(asked: bool | None, device: str, data: TrainingData) -> bool:
    """Whether the model is compiled. Unless asked for, only where it pays: on a GPU, for rows of
    one shape. Pairs have a shape for every batch: the compiler takes minutes over them, and its
    general code is slower than none."""
    return (
        device == "cuda" and isinstance(data, CausalData | MaskedData) if asked is None else asked
    )


def cost_of(task: TrainingTask, micro_tokens: int, precision: Precision, **how: bool) -> Cost:
    shares: dict[str, Any] = {"asked": task.asked, "trained": task.trained, "through": task.through}
    return cost(task.config, micro_tokens, precision, length=task.length, **shares, **how)


def parts_of(task: TrainingTask, config: RunConfig, world: World) -> int:
    """Micro-batches a batch, so that none has more tokens than asked for; of pairs, whose rows
    differ, about.
    """
    if config.micro_batch_tokens is None:
        return 1

    data, micro = task.training, config.micro_batch_tokens
    if isinstance(data, CausalData | MaskedData):
        length = data.tokens_per_step // data.rows
        return -(-data.rows // (max(1, micro // length) * world.size))

    tokens = (
        config.batch_tokens if task.steps is None else data.tokens_per_step
    )  # else the batch counts examples

    return max(1, -(-tokens // (micro * world.size)))
