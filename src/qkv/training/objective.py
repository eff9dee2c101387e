"""What is minimised: a model, asked what a batch asks, answers with the sum of its losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from qkv.data.batches.batch import Batch
from qkv.models.gpt import GPT
from qkv.models.registry import Model
from qkv.models.task_model import TaskModel
from qkv.training.loss import loss_sum
from qkv.training.systems.gradient_checkpointing import recompute_activations
from qkv.training.systems.precision import DTYPES, Cast, Precision
from qkv.training.systems.training_cuda_graph import StepGraphRunner


class FeatureExtractor(nn.Module):
    """A batch through the model, up to what its output layer reads at the places that are asked."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model: Any = (
            model  # which kind of model goes with which kind of batch, `assemble` knows
        )

    def forward(self, batch: Batch) -> Float[Tensor, "B M E"]:
        model = self.model
        if batch.source is not None:
            hidden = model.forced(
                batch.source,
                batch.ids,
                source_padding_mask=batch.source_padding_mask,
                target_padding_mask=batch.padding_mask,
            )
        elif isinstance(model, GPT) and model.config.memory:
            hidden = in_segments(model, batch.ids)
        else:
            hidden = model.hidden(
                batch.ids,
                padding_mask=batch.padding_mask,
                documents=batch.documents,
                positions=batch.positions,
            )

        if batch.target_positions is not None:
            target_positions = batch.target_positions.unsqueeze(-1).expand(
                -1, -1, hidden.shape[-1]
            )  # (B, M, E)
            hidden = hidden.gather(1, target_positions)

        return model.features(hidden)


def in_segments(model: GPT, ids: Int[Tensor, "B T"]) -> Float[Tensor, "B T E"]:
    """Transformer-XL: a row is read segment after segment, each remembering the ones before."""
    state = model.start()
    return torch.cat(
        [model.hidden(part, state=state) for part in ids.split(model.config.context, dim=1)], dim=1
    )


class Objective(nn.Module):
    """`objective(batch)` is the sum of the batch's losses, in float32."""

    def __init__(
        self,
        model: Model,
        *,
        precision: Precision = "float32",
        smoothing: float = 0.0,
        reader: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.smoothing = smoothing
        reader = FeatureExtractor(model) if reader is None else reader
        self.reader = reader if precision == "float32" else Cast(reader, DTYPES[precision])
        self.compiled: Callable[[Batch], Any] | None = None
        self.replay: StepGraphRunner | None = None

    def compile_reader(self) -> None:
        """For training; validation has batches of many shapes, and compiling would take longer than
        it saves.
        """
        recompute_activations(
            self.model
        )  # costs next to nothing where the compiler joins it with what follows
        self.compiled = torch.compile(self.reader)

    def record(self, wait: int = 0) -> None:
        """On one GPU: a step's kernels are launched as one, for shapes that have come more than
        `wait` times.
        """
        self.replay = StepGraphRunner(self, wait)

    def forward(self, batch: Batch) -> Float[Tensor, ""]:
        assert not isinstance(self.model, TaskModel)  # whose objective is TaskObjective
        weight, bias = self.model.output_layer
        if not isinstance(weight, Tensor):
            raise TypeError("model: int8 weights are frozen; train the float32 model")

        read = self.compiled if self.compiled is not None and self.training else self.reader
        smoothing = self.smoothing if self.training else 0.0

        return loss_sum(read(batch), weight, bias, batch.targets, smoothing=smoothing)
