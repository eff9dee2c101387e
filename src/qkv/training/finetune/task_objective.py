"""What is minimised in fine-tuning: the loss of the answers, and, as in GPT-1, a little of the
language model's.

    L = L_task + language x L_words

where the second is, of each text, the mean loss of its words: it counts as often as its text is
asked something. The head's own numbers are few, so nothing is chunked.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from qkv.data.batches.batch import IGNORE, Batch
from qkv.models.gpt import GPT
from qkv.models.task_model import TaskModel, apart
from qkv.training.finetune.task_metrics import count_metrics
from qkv.training.loss import loss_sum
from qkv.training.objective import Objective
from qkv.training.systems.precision import Precision


class TaskScorer(nn.Module):
    """A batch through body and head: the scores, and what the body's output layer would read."""

    def __init__(self, model: TaskModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> tuple[Float[Tensor, "B M C"], Float[Tensor, "R T E"]]:
        assert batch.target_positions is not None
        hidden = self.model.hidden(
            batch.ids, padding_mask=batch.padding_mask, segments=batch.segments, group=batch.group
        )
        return self.model.scores(
            hidden, batch.target_positions, batch.padding_mask, batch.group
        ), hidden


class TaskObjective(Objective):
    """`objective(batch)` is the sum of the batch's losses; in evaluation, what was answered is
    counted behind it.
    """

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
        if language and not isinstance(model.backbone, GPT):
            raise ValueError("language: only a GPT predicts the next word; leave it out")

        self.language = language
        # On the model's device at once: a step that is recorded may not fetch it.
        weights = (
            None
            if class_weights is None
            else torch.tensor(class_weights, device=model.head.weight.device)
        )
        self.register_buffer("class_weights", weights, persistent=False)

    class_weights: Tensor | None

    def forward(self, batch: Batch) -> Float[Tensor, "*k"]:
        read = self.compiled if self.compiled is not None and self.training else self.reader
        scores, hidden = read(batch)
        loss = self.answer_loss(scores.to(torch.promote_types(scores.dtype, torch.float32)), batch)
        if not self.training:
            return torch.cat(
                [loss.reshape(1), count_metrics(self.model.config.head, scores, batch)]  # type: ignore[union-attr]
            )

        return loss + self.language * self.word_loss(hidden, batch) if self.language else loss

    def answer_loss(self, scores: Float[Tensor, "B M C"], batch: Batch) -> Float[Tensor, ""]:
        head = self.model.config.head  # type: ignore[union-attr]
        if head.numbers:
            assert batch.numbers is not None
            error = scores.squeeze(-1) - batch.numbers.to(scores.dtype)  # (B, 1)
            return (error.square() * (batch.targets != IGNORE)).sum()

        losses = F.cross_entropy(
            scores.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORE, reduction="none",
            label_smoothing=self.smoothing if self.training and head.task != "choice" else 0.0,
        )  # fmt: skip
        if self.class_weights is not None and self.training:
            losses = losses * self.class_weights[batch.targets.flatten().clamp(min=0)]

        return losses.sum()

    def word_loss(self, hidden: Float[Tensor, "R T E"], batch: Batch) -> Float[Tensor, ""]:
        """For each target that a row is asked, the mean over the row's texts of the mean loss of
        their words.
        """
        assert isinstance(self.model, TaskModel)
        backbone = self.model.backbone
        assert isinstance(backbone, GPT)
        weight, bias = backbone.output_layer
        assert isinstance(weight, Tensor)
        said = next_tokens(batch)  # (R, T)
        words = (said != IGNORE).sum(1).unflatten(0, (-1, batch.group))  # (B, G)
        texts = (words > 0).sum(1, keepdim=True)  # (B, 1)
        asked = (batch.targets != IGNORE).sum(
            1, keepdim=True
        )  # (B, 1): what the sum is divided by in the end
        shares = asked / (texts * words).clamp(min=1)  # (B, G)

        return loss_sum(
            backbone.features(hidden),
            weight,
            bias,
            said,
            shares=shares.flatten()[:, None].expand_as(said),
        )


def next_tokens(batch: Batch) -> Int[Tensor, "R T"]:
    """What follows each word in its sequence; nothing after the last, in a row that asks nothing,
    or in a sequence that only stands for a choice that this row does not have."""
    ids = apart(batch.ids, batch.group)  # (R, T)
    said = torch.full_like(ids, IGNORE)
    said[:, :-1] = ids[:, 1:]
    if batch.padding_mask is not None:
        said[:, :-1].masked_fill_(~apart(batch.padding_mask, batch.group)[:, 1:], IGNORE)

    nothing = (batch.targets == IGNORE).all(1).repeat_interleave(batch.group)  # (R,)
    if batch.group > 1:
        assert batch.target_positions is not None
        nothing = nothing | (batch.target_positions < 0).flatten()

    return said.masked_fill(nothing.unsqueeze(1), IGNORE)
