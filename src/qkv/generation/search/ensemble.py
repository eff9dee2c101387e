"""Several models that translate together: the mean of their probabilities, word by word."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from qkv.models import RNN, Transformer
from qkv.models.registry import Config


class Ensemble(nn.Module):
    """Models of one vocabulary, be they of different families."""

    def __init__(self, models: Sequence[Transformer | RNN]) -> None:
        super().__init__()
        if not models:
            raise ValueError("models: expected one or more")

        for each in models:
            if not isinstance(each, Transformer | RNN):
                raise TypeError(
                    f"models: expected Transformers and RNNs, which translate, not {type(each).__name__}"
                )

        for side, sizes in (
            ("target", {each.config.vocabulary for each in models}),
            (
                "source",
                {each.config.source_vocabulary or each.config.vocabulary for each in models},
            ),
        ):
            if len(sizes) > 1:
                found = " and ".join(map(str, sorted(sizes)))
                raise ValueError(
                    f"models: expected one {side} vocabulary for all, not {found} words"
                )

        self.models: Any = nn.ModuleList(models)

    @property
    def config(self) -> Config:
        """The first one's: they agree in the vocabulary."""
        return self.models[0].config

    def start(
        self, source: Int[Tensor, "B S"], padding_mask: Bool[Tensor, "B S"] | None = None
    ) -> EnsembleState:
        return EnsembleState([each.start(source, padding_mask) for each in self.models])


class EnsembleState:
    """One state for each model."""

    def __init__(self, states: Sequence[Any]) -> None:
        self.states = list(states)

    @property
    def length(self) -> int:
        return self.states[0].length

    def reorder(self, rows: Int[Tensor, "B"]) -> None:
        for state in self.states:
            state.reorder(rows)


def mean_of(logits: Sequence[Float[Tensor, "B V"]]) -> Float[Tensor, "B V"]:
    """The logarithm of the mean of the models' probabilities."""
    each = torch.stack([one.log_softmax(-1) for one in logits])  # (N, B, V)
    return each.logsumexp(0) - math.log(len(logits))
