"""What a run is, between two steps: all that a checkpoint must hold to go on as if nothing had
happened.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from qkv.training.average import ExponentialAverage, learning
from qkv.training.optimizer import Optimizers
from qkv.training.resilience.checkpoint_writer import Checkpoint
from qkv.training.resilience.guard import Guard, LossScale, position_of
from qkv.training.systems.distributed import gathered, like


@dataclass
class RunState:
    """The numbers. There is no random state: what is drawn at a step depends on the seed and the
    step alone.
    """

    step: int = 0
    """Steps done."""
    tokens: int = 0
    seconds: float = 0.0
    """Of training, validation and checkpoints not counted."""
    best: float | None = None
    """The validation loss of the weights that are kept."""
    merit: float | None = None
    """How good they are by the metric that the run is judged by; higher is better."""
    stale: int = 0
    """Validations since then."""
    parts: int = 1
    """Micro-batches a batch."""
    asked: int = 1
    """How many a person asked for; the rest came of a lack of memory."""
    rewinds: int = 0
    """Times that the run went back since the last checkpoint on its way."""
    left_out: list[tuple[int, int]] = field(default_factory=list)
    """Stretches of the data that are left out: first position, how many."""

    def position(self, step: int) -> int:
        return position_of(step, self.left_out)

    def leave_out(self, first: int, last: int) -> None:
        """The data from one position to another, stretches between them that are left out already
        included.
        """
        others = [stretch for stretch in self.left_out if not first <= stretch[0] <= last]
        self.left_out = sorted([*others, (first, last - first + 1)])


@dataclass(frozen=True)
class Memory:
    """Everything with a memory."""

    model: nn.Module
    optimizers: Optimizers
    scale: LossScale
    guard: Guard
    average: ExponentialAverage | None = None

    def tensors(self, here: bool = True) -> dict[str, Tensor]:
        """Whole tensors by name, on the rank that says `here`; every rank must ask, as each has a
        part to give.
        """
        tensors = {f"model/{name}": weight.detach() for name, weight in learning(self.model)}
        tensors |= {f"optimizer/{name}": tensor for name, tensor in self.optimizers.state().items()}
        tensors |= {f"scale/{name}": tensor for name, tensor in self.scale.tensors().items()}
        if self.average is not None:
            tensors |= {f"average/{name}": weight for name, weight in self.average.weights.items()}

        return gathered(tensors.items(), here)

    def numbers(self, state: RunState) -> dict[str, Any]:
        return {**asdict(state), "guard": self.guard.state()}

    def restore(self, checkpoint: Checkpoint, state: RunState) -> None:
        """Everything, and `state`, as it was when the checkpoint was saved."""
        weights = checkpoint.tensors("model/")
        put_weights(self.model, weights, str(checkpoint.path))
        self.optimizers.load(checkpoint.tensors("optimizer/"))
        self.scale.load(checkpoint.tensors("scale/"))
        if self.average is not None:
            averages = (
                checkpoint.tensors("average/") or weights
            )  # averaging may have been asked for later
            own = learning(self.model)
            self.average.weights = {
                name: like(averages[name], parameter) for name, parameter in own
            }

        numbers = dict(checkpoint.state)
        self.guard.load(numbers.pop("guard"))
        if (
            "merit" not in numbers and numbers["best"] is not None
        ):  # of version 0.3, which knew losses alone
            numbers["merit"] = -numbers["best"]

        numbers["left_out"] = [(int(first), int(count)) for first, count in numbers["left_out"]]

        for name, value in numbers.items():
            setattr(state, name, value)


@torch.no_grad()
def put_weights(model: nn.Module, weights: dict[str, Tensor], origin: str) -> None:
    parameters = dict(learning(model))
    if weights.keys() != parameters.keys():
        other = sorted(weights.keys() ^ parameters.keys())[0]
        raise ValueError(f"{origin}: it is of another model: {other} is only in one of them")

    for name, parameter in parameters.items():
        parameter.copy_(like(weights[name], parameter))
