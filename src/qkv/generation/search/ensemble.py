"""Ensembles: several models translate together, by the mean of their probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from qkv.models.model import Model, Predicts


class Ensemble(Model):
    """Translators with the same vocabularies; they may be of different families."""

    predicts: Predicts = "target"
    has_source = True

    def __init__(self, models: Sequence[Model]) -> None:
        super().__init__()
        if not models:
            raise ValueError("models: expected one or more")

        for model in models:
            if not getattr(model, "has_source", False):
                raise TypeError(
                    "models: expected Transformers and RNNs, which translate, "
                    f"not {type(model).__name__}"
                )

        configs = [model.config for model in models]
        check_equal("target", {config.vocabulary for config in configs})
        check_equal("source", {config.source_vocabulary or config.vocabulary for config in configs})
        self.models: Any = nn.ModuleList(models)
        self.config = configs[0]  # all have its vocabularies

    def start(
        self, source: Int[Tensor, "B S"], padding_mask: Bool[Tensor, "B S"] | None = None
    ) -> EnsembleState:
        """Read the source with every model."""
        return EnsembleState([model.start(source, padding_mask) for model in self.models])


def check_equal(side: str, sizes: set[int]) -> None:
    if len(sizes) > 1:
        different = " and ".join(map(str, sorted(sizes)))
        raise ValueError(f"models: expected one {side} vocabulary for all, not {different} tokens")


class EnsembleState:
    """One state for each model."""

    def __init__(self, states: Sequence[Any]) -> None:
        self.states = list(states)

    @property
    def length(self) -> int:
        return self.states[0].length

    def reorder(self, rows: Int[Tensor, "B"]) -> None:
        """Let row i continue the old row rows[i]."""
        for state in self.states:
            state.reorder(rows)


def mean_of(logits: Sequence[Float[Tensor, "B V"]]) -> Float[Tensor, "B V"]:
    """The logarithm of the mean of the models' probabilities."""
    logprobs = torch.stack([scores.log_softmax(-1) for scores in logits])  # (N, B, V)
    return logprobs.logsumexp(0) - math.log(len(logits))
