"""What is minimised in fine-tuning: the loss of the answers, and, as in GPT-1, a little of the language model's.

    L = L_task + language x L_words

where the second is, of each text, the mean loss of its words: it counts as often as its text is asked something. The
head's own numbers are few, so nothing is chunked.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from qkv.data.batch import IGNORE, Batch
from qkv.models.gpt import GPT
from qkv.models.tuned import Tuned, apart
from qkv.training.loss import loss_sum
from qkv.training.objective import Objective
from qkv.training.precision import Precision
from qkv.training.tally import tally


class AnswerReader(nn.Module):
    """A batch through body and head: the scores, and what the body's output layer would read."""

    def __init__(self, model: Tuned) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> tuple[Float[Tensor, "B M C"], Float[Tensor, "R T E"]]:
        assert batch.places is not None
        hidden = self.model.hidden(batch.ids, keep=batch.keep, segments=batch.segments, group=batch.group)
        return self.model.scores(hidden, batch.places, batch.keep, batch.group), hidden


class AnswerObjective(Objective):
    """`objective(batch)` is the sum of the batch's losses; in evaluation, what was answered is counted behind it."""

    def __init__(
        self,
        model: Tuned,
        *,
        precision: Precision = "float32",
        smoothing: float = 0.0,
        language: float = 0.0,
        class_weights: tuple[float, ...] | None = None,
    ) -> None:
        super().__init__(model, precision=precision, smoothing=smoothing, reader=AnswerReader(model))
        if language and not isinstance(model.body, GPT):
            raise ValueError("language: only a GPT predicts the next word; leave it out")
        self.language = language
        # On the model's device at once: a step that is recorded may not fetch it.
        weights = None if class_weights is None else torch.tensor(class_weights, device=model.head.weight.device)
        self.register_buffer("class_weights", weights, persistent=False)

    class_weights: Tensor | None

    def forward(self, batch: Batch) -> Float[Tensor, "*k"]:
        read = self.compiled if self.compiled is not None and self.training else self.reader
        scores, hidden = read(batch)
        loss = self.answer_loss(scores.to(torch.promote_types(scores.dtype, torch.float32)), batch)
        if not self.training:
            return torch.cat([loss.reshape(1), tally(self.model.config.head, scores, batch)])  # type: ignore[union-attr]
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
        """For each target that a row is asked, the mean over the row's texts of the mean loss of their words."""
        assert isinstance(self.model, Tuned)
        body = self.model.body
        assert isinstance(body, GPT)
        weight, bias = body.output_layer
        assert isinstance(weight, Tensor)
        said = next_words(batch)  # (R, T)
        words = (said != IGNORE).sum(1).unflatten(0, (-1, batch.group))  # (B, G)
        texts = (words > 0).sum(1, keepdim=True)  # (B, 1)
        asked = (batch.targets != IGNORE).sum(1, keepdim=True)  # (B, 1): what the sum is divided by in the end
        shares = asked / (texts * words).clamp(min=1)  # (B, G)
        return loss_sum(body.features(hidden), weight, bias, said, shares=shares.flatten()[:, None].expand_as(said))


def next_words(batch: Batch) -> Int[Tensor, "R T"]:
    """What follows each word in its sequence; nothing after the last, in a row that asks nothing, or in a sequence that
    only stands for a choice that this row does not have."""
    ids = apart(batch.ids, batch.group)  # (R, T)
    said = torch.full_like(ids, IGNORE)
    said[:, :-1] = ids[:, 1:]
    if batch.keep is not None:
        said[:, :-1].masked_fill_(~apart(batch.keep, batch.group)[:, 1:], IGNORE)
    nothing = (batch.targets == IGNORE).all(1).repeat_interleave(batch.group)  # (R,)
    if batch.group > 1:
        assert batch.places is not None
        nothing = nothing | (batch.places < 0).flatten()
    return said.masked_fill(nothing.unsqueeze(1), IGNORE)
