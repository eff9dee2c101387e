"""The objective of fine-tuning with a head: the task's loss, and GPT-1's auxiliary language loss.

    L = L_task + language x L_tokens

L_tokens is the mean next-token loss of each sequence, counted once per target of the sequence. The
head has few outputs, so nothing is chunked.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from qkv.data.batches.batch import IGNORE, Batch
from qkv.models.configs import HeadConfig
from qkv.models.task_model import TaskModel, split_groups
from qkv.training.finetune.task_metrics import count_metrics
from qkv.training.objective import Objective, token_loss
from qkv.training.systems.precision import Precision


class TaskScorer(nn.Module):
    """A batch through backbone and head: the head's scores, and the backbone's hidden states."""

    def __init__(self, model: TaskModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> tuple[Float[Tensor, "B M C"], Float[Tensor, "R T E"]]:
        assert batch.target_positions is not None
        hidden = self.model.hidden(
            batch.ids, padding_mask=batch.padding_mask, segments=batch.segments, group=batch.group
        )
        scores = self.model.scores(hidden, batch.target_positions, batch.padding_mask, batch.group)
        return scores, hidden


class TaskObjective(Objective):
    """`objective(batch)` is the sum of the losses; in evaluation the metrics' counts follow it."""

    class_weights: Tensor | None

    def __init__(
        self,
        model: TaskModel,
        *,
        precision: Precision = "float32",
        smoothing: float = 0.0,
        language: float = 0.0,
        class_weights: tuple[float, ...] | None = None,
    ) -> None:
        super().__init__(model, precision=precision, smoothing=smoothing, reader=TaskScorer(model))
        if language and model.backbone.predicts != "next":
            raise ValueError("language: only a GPT predicts the next token; leave it out")

        self.language = language
        weights = None
        if class_weights is not None:
            # On the device at once: a CUDA graph cannot capture a copy from the host.
            weights = torch.tensor(class_weights, device=model.head.weight.device)

        self.register_buffer("class_weights", weights, persistent=False)

    @property
    def head(self) -> HeadConfig:
        return self.model.task

    def forward(self, batch: Batch) -> Float[Tensor, "*k"]:
        scores, hidden = self.read(batch)
        loss = self.answer_loss(scores.to(torch.promote_types(scores.dtype, torch.float32)), batch)
        if not self.training:
            return torch.cat([loss.reshape(1), count_metrics(self.head, scores, batch)])

        if self.language:
            loss = loss + self.language * self.language_loss(hidden, batch)

        return loss

    def answer_loss(self, scores: Float[Tensor, "B M C"], batch: Batch) -> Float[Tensor, ""]:
        """Squared error for numbers, cross-entropy for classes and choices."""
        if self.head.numbers:
            assert batch.numbers is not None
            error = scores.squeeze(-1) - batch.numbers.to(scores.dtype)  # (B, 1)
            return (error.square() * (batch.targets != IGNORE)).sum()

        smoothing = 0.0
        if self.training and self.head.task != "choice":
            smoothing = self.smoothing

        targets = batch.targets.flatten()
        losses = F.cross_entropy(
            scores.flatten(0, 1),
            targets,
            ignore_index=IGNORE,
            reduction="none",
            label_smoothing=smoothing,
        )
        if self.class_weights is not None and self.training:
            losses = losses * self.class_weights[targets.clamp(min=0)]

        return losses.sum()

    def language_loss(self, hidden: Float[Tensor, "R T E"], batch: Batch) -> Float[Tensor, ""]:
        """Mean next-token loss of a row's sequences, times the number of the row's targets."""
        # The share of every token, so that means become one sum
        targets = next_tokens(batch)  # (R, T)
        tokens = (targets != IGNORE).sum(1).unflatten(0, (-1, batch.group))  # (B, G)
        sequences = (tokens > 0).sum(1, keepdim=True)  # (B, 1)
        row_targets = (batch.targets != IGNORE).sum(1, keepdim=True)  # (B, 1): the sum's divisor
        shares = row_targets / (sequences * tokens).clamp(min=1)  # (B, G)

        backbone = self.model.backbone
        every_share = shares.flatten()[:, None].expand_as(targets)
        return token_loss(backbone, backbone.features(hidden), targets, shares=every_share)


def next_tokens(batch: Batch) -> Int[Tensor, "R T"]:
    """The token after each position; IGNORE at the end of a sequence and in empty ones.

    Empty are rows without targets, and sequences that stand for a choice that a row does not have.
    """
    ids = split_groups(batch.ids, batch.group)  # (R, T)
    following = torch.full_like(ids, IGNORE)
    following[:, :-1] = ids[:, 1:]
    if batch.padding_mask is not None:
        padding = ~split_groups(batch.padding_mask, batch.group)
        following[:, :-1].masked_fill_(padding[:, 1:], IGNORE)

    empty = (batch.targets == IGNORE).all(1).repeat_interleave(batch.group)  # (R,)
    if batch.group > 1:
        assert batch.target_positions is not None
        empty = empty | (batch.target_positions < 0).flatten()

    return following.masked_fill(empty.unsqueeze(1), IGNORE)
