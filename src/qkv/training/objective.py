"""The training objective: the summed cross-entropy of a batch, for every family of models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from qkv.data.batches.batch import Batch
from qkv.models.model import Model
from qkv.nn.fused import fp8_feed_forward, fused_feed_forward
from qkv.training.carried_memory import CarriedMemory
from qkv.training.loss import loss_sum
from qkv.training.systems.gradient_checkpointing import recompute_activations
from qkv.training.systems.precision import DTYPES, Cast, Precision
from qkv.training.systems.training_cuda_graph import StepGraphRunner


class FeatureExtractor(nn.Module):
    """A batch through the model, up to the input of the output layer at the target positions."""

    def __init__(self, model: Model, memory: CarriedMemory | None = None) -> None:
        super().__init__()
        self.model = model
        self.memory = memory

    def forward(self, batch: Batch) -> Float[Tensor, "B M E"]:
        model = self.model
        if batch.source is not None:
            hidden = model.hidden(
                batch.source,
                batch.ids,
                source_padding_mask=batch.source_padding_mask,
                target_padding_mask=batch.padding_mask,
            )
        elif model.is_causal and model.reads_on:
            hidden = self.read_on(batch)  # Transformer-XL, a recurrent language model
        else:
            hidden = model.hidden(
                batch.ids,
                padding_mask=batch.padding_mask,
                documents=batch.documents,
                positions=batch.positions,
            )

        if batch.target_positions is not None:
            index = batch.target_positions.unsqueeze(-1)  # (B, M, 1)
            hidden = hidden.gather(1, index.expand(-1, -1, hidden.shape[-1]))  # (B, M, E)

        return model.features(hidden)

    def read_on(self, batch: Batch) -> Float[Tensor, "B T E"]:
        """The hidden states of a model with a memory, which begins empty or where streams are."""
        state = self.model.start()
        if self.memory is None or batch.first_stream is None:
            return self.model.decoder_hidden(batch.ids, state=state)

        self.memory.read(batch, state)
        hidden = self.model.decoder_hidden(batch.ids, state=state)
        self.memory.write(batch, state)

        return hidden


class Objective(nn.Module):
    """`objective(batch)` is the sum of the losses of a batch, in float32."""

    def __init__(
        self,
        model: Model,
        *,
        precision: Precision = "float32",
        smoothing: float = 0.0,
        reader: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.model: Any = model
        self.smoothing = smoothing
        self.memory = CarriedMemory()
        self.reader = reader or FeatureExtractor(model, self.memory)
        if precision != "float32":
            self.reader = Cast(self.reader, DTYPES[precision])

        self.fp8 = False
        self.compiled: Callable[[Batch], Any] | None = None
        self.cuda_graphs: StepGraphRunner | None = None

    def compile_reader(self) -> None:
        """Compile the forward pass for training.

        Validation stays in eager mode: its batches have many shapes, and compiling for them would
        take longer than it saves.
        """
        recompute_activations(self.model)  # nearly free where the compiler fuses it
        fused_feed_forward.install(self.model)
        self.compiled = torch.compile(self.reader)

    def use_fp8(self, *, feed_forward: bool = True) -> None:
        """In training, compute the output layer and wide feed-forward layers in FP8.

        Call it before `compile_reader`. The model's feed-forward layers stay so: another objective
        of the same model object trains them in FP8, too.
        """
        self.fp8 = True
        if feed_forward:
            fp8_feed_forward.install(self.model)

    def use_cuda_graph(self, wait: int = 0, shaped: Callable[[Batch], Batch] | None = None) -> None:
        """On one GPU: capture steps of shapes that have come more than `wait` times.

        `shaped` pads a batch to one of few shapes.
        """
        self.cuda_graphs = StepGraphRunner(self, wait, shaped)

    def read(self, batch: Batch) -> Any:
        """The forward pass of a batch, compiled where it is and in training."""
        if self.compiled is not None and self.training:
            return self.compiled(batch)

        return self.reader(batch)

    def forward(self, batch: Batch) -> Float[Tensor, ""]:
        smoothing = 0.0
        if self.training:
            smoothing = self.smoothing

        features = self.read(batch)
        return token_loss(self.model, features, batch.targets, smoothing=smoothing, fp8=self.fp8)


def token_loss(
    model: Model, features: Float[Tensor, "*n E"], targets: Int[Tensor, "*n"], **options: Any
) -> Float[Tensor, ""]:
    """The summed loss of tokens that a model predicts from its features; see `loss_sum`."""
    weight, bias = model.output_layer
    if not isinstance(weight, Tensor):
        raise TypeError(f"model: {weight.kind} weights are frozen; train the float32 model")

    return loss_sum(features, weight, bias, targets, **options)
