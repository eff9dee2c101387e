"""The state of a run between two steps: what a checkpoint stores so that training can resume."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor, nn

from qkv.training.average import ExponentialAverage, copy_weights, trainable_parameters
from qkv.training.carried_memory import CarriedMemory
from qkv.training.optimizer import Optimizers
from qkv.training.resilience.checkpoint_writer import Checkpoint
from qkv.training.resilience.guard import Guard, LossScale

STORED_NAMES = {"requested_parts": "asked"}
"""Fields of RunState that checkpoints store under another name."""


@dataclass
class RunState:
    """Counters of a run. There is no random state: draws depend only on the seed and the step."""

    step: int = 0
    """Steps done."""
    tokens: int = 0
    seconds: float = 0.0
    """Time spent in training steps, without validation and checkpoints."""
    best: float | None = None
    """Validation loss of the saved model."""
    merit: float | None = None
    """The saved model's value of the task's metric, as a number where higher is better."""
    stale: int = 0
    """Validations since the best one."""
    parts: int = 1
    """Micro-batches per batch."""
    requested_parts: int = 1
    """Micro-batches per batch by --micro-batch-tokens; `parts` is larger where memory ran out."""
    rewinds: int = 0
    """Times the run went back since the last scheduled checkpoint."""
    left_out: list[tuple[int, int]] = field(default_factory=list)
    """Ranges of the data that are left out: first position, count."""

    def position(self, step: int) -> int:
        """The position in the data of a step's batch."""
        position = step
        for first, count in self.left_out:
            if position >= first:
                position += count

        return position

    def leave_out(self, first: int, last: int) -> None:
        """Leave out the data between two positions, which may include ranges left out before."""
        others = [part for part in self.left_out if not first <= part[0] <= last]
        self.left_out = sorted([*others, (first, last - first + 1)])

    def to_json(self) -> dict[str, Any]:
        """The fields under the names that checkpoints store."""
        return {STORED_NAMES.get(name, name): value for name, value in asdict(self).items()}

    def load_json(self, numbers: dict[str, Any]) -> None:
        """Set the fields to what `to_json` returned, in this version or an earlier one."""
        numbers = dict(numbers)
        if "merit" not in numbers and numbers["best"] is not None:  # version 0.3 knew losses only
            numbers["merit"] = -numbers["best"]

        numbers["left_out"] = [(int(first), int(count)) for first, count in numbers["left_out"]]
        for name, stored_name in STORED_NAMES.items():
            if stored_name in numbers:
                numbers[name] = numbers.pop(stored_name)

        for name, value in numbers.items():
            setattr(self, name, value)


@dataclass(frozen=True)
class Learner:
    """Everything whose state changes in training: weights, optimizers, scale, guard, average."""

    model: nn.Module
    optimizers: Optimizers
    scale: LossScale
    guard: Guard
    average: ExponentialAverage | None = None
    memory: CarriedMemory | None = None
    """What streams of text left behind, where the model carries its memory."""

    def tensors(self, *, frozen: bool = False) -> dict[str, Tensor]:
        """All tensors by name, sharded as they are; weights that are `frozen` only if asked for."""
        parts = {"model": {}, "frozen": {}, "optimizer": self.optimizers.state()}
        parts["scale"] = self.scale.tensors()
        if self.average is not None:
            parts["average"] = self.average.weights
        if self.memory is not None:
            parts["memory"] = self.memory.tensors()

        for name, weight in self.model.named_parameters():
            if weight.requires_grad:
                parts["model"][name] = weight.detach()
            elif frozen:
                parts["frozen"][name] = weight.detach()

        tensors: dict[str, Tensor] = {}
        for part, content in parts.items():
            tensors |= {f"{part}/{name}": tensor for name, tensor in content.items()}

        return tensors

    def numbers(self, state: RunState) -> dict[str, Any]:
        """What a checkpoint stores as JSON: the run's counters and the guard's losses."""
        return {**state.to_json(), "guard": self.guard.state()}

    def restore(self, checkpoint: Checkpoint, state: RunState) -> None:
        """Set everything, and `state`, to what the checkpoint holds."""
        # Tensors
        parameters = dict(trainable_parameters(self.model))
        weights = checkpoint.tensors("model/", parameters)
        copy_weights(weights, self.model, origin=str(checkpoint.path))
        self.optimizers.load(checkpoint.tensors("optimizer/", parameters))
        self.scale.load(checkpoint.tensors("scale/"))
        if self.average is not None:  # which may start on resuming
            self.average.weights = checkpoint.tensors("average/", parameters) or weights

        if self.memory is not None:
            self.memory.load(checkpoint.tensors("memory/"))

        # Numbers
        numbers = dict(checkpoint.state)
        self.guard.load(numbers.pop("guard"))
        state.load_json(numbers)
