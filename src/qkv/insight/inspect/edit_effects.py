"""What an edit changes: what comes next at each place, the loss, and the text that is said, before
and after.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from qkv.generation.fill import Guess
from qkv.generation.generate import without_dropout
from qkv.insight.inspect.attention_edits import Edit, check, edited
from qkv.insight.inspect.logit_lens import AT_ONCE, guesses, predicts_tokens
from qkv.insight.inspect.model_input import Reading, hidden, ids_of
from qkv.models import BERT, GPT, RNN, TaskModel, Transformer
from qkv.models.registry import Model, backbone_of
from qkv.text.tokenizer import Tokenizer


class Change(NamedTuple):
    reading: Reading
    edits: tuple[Edit, ...]
    before: list[list[Guess]] | None
    """The likeliest tokens at each place of the text; of a fine-tuned model its answers; None of a
    bare encoder.
    """
    after: list[list[Guess]] | None
    moved: Float[Tensor, "N"]
    """How far each place went: the KL divergence of before from after, in nats; of a bare encoder 1
    - cosine.
    """
    loss_before: float | None
    """Of the text itself, the mean in nats; None where there is none to speak of."""
    loss_after: float | None
    said_before: str | None
    """The likeliest continuation or translation, of a model that has one."""
    said_after: str | None


def edit_effects(
    model: Model,
    tokenizer: Tokenizer,
    reading: Reading,
    edits: Sequence[Edit],
    *,
    top: int = 5,
    length: int = 20,
) -> Change:
    """Read the text twice, and go on from it twice, with the model as it is and as the edits make
    it.
    """
    if not edits:
        raise ValueError("change: expected one or more, such as 3.5=off")
    if top < 1:
        raise ValueError(f"top: expected 1 or more, not {top}")

    for edit in edits:
        check(model, edit, reading)

    with torch.no_grad(), without_dropout(model):
        before = seen_by(model, tokenizer, reading, top, length)
        with edited(model, edits):
            after = seen_by(model, tokenizer, reading, top, length)

    if before.scores is None or after.scores is None:
        moved = 1 - F.cosine_similarity(before.vectors, after.vectors, dim=-1)
    else:
        moved = divergence(before.scores, after.scores)

    return Change(
        reading, tuple(edits), before.guesses, after.guesses, moved.clamp(min=0).float().cpu(),
        before.loss, after.loss, before.said, after.said,
    )  # fmt: skip


def divergence(before: Float[Tensor, "N V"], after: Float[Tensor, "N V"]) -> Float[Tensor, "N"]:
    """Kullback and Leibler's, of each place; some at a time, for a vocabulary is wide."""
    found = []
    for some in zip(before.split(AT_ONCE), after.split(AT_ONCE), strict=True):
        one, other = (each.cpu().double().log_softmax(-1) for each in some)
        found.append((one.exp() * (one - other)).nan_to_num(0.0).sum(-1))

    return torch.cat(found)


class Observation(NamedTuple):
    vectors: Float[Tensor, "T E"]
    scores: Float[Tensor, "N V"] | None
    guesses: list[list[Guess]] | None
    loss: float | None
    said: str | None


def seen_by(
    model: Model, tokenizer: Tokenizer, reading: Reading, top: int, length: int
) -> Observation:
    vectors = hidden(model, reading)[0]  # (T, E)
    if isinstance(model, TaskModel):
        return Observation(vectors, *answered(model, vectors, top), None, None)
    if not predicts_tokens(model):
        return Observation(vectors, None, None, None, None)

    backbone = backbone_of(model)
    scores = backbone.logits(vectors)[:, : tokenizer.vocabulary].float()
    loss = said = None
    if not isinstance(backbone, BERT):
        ids = torch.tensor(reading.text.ids, device=scores.device)
        loss = float(F.cross_entropy(scores[:-1], ids[1:])) if len(ids) > 1 else None
        said = gone_on(backbone, tokenizer, reading, length) if length else None

    return Observation(vectors, scores, guesses(model, tokenizer, vectors, top), loss, said)


def answered(
    model: TaskModel, vectors: Float[Tensor, "T E"], top: int
) -> tuple[Float[Tensor, "N C"] | None, list[list[Guess]] | None]:
    """A tagger answers at each place, any other model once, and that counts for all of its places."""
    head, T = model.config.head, len(vectors)
    if head.numbers or head.task == "choice":
        raise ValueError(
            f"model: its task is {head.task}, which has no classes to compare; expected another"
        )

    places = (
        torch.arange(T)
        if head.task == "tag"
        else torch.tensor([T - 1 if head.pooling == "last" else 0])
    )
    scores = model.scores(vectors.unsqueeze(0), places.unsqueeze(0).to(vectors.device), None, 1)[
        0
    ]  # (N, C)
    likeliest, ids = scores.softmax(-1).topk(min(top, len(head.labels)))
    said = [
        [Guess(head.labels[id], id, each) for id, each in zip(*row, strict=True)]
        for row in zip(ids.tolist(), likeliest.tolist(), strict=True)
    ]

    return scores, said


def gone_on(
    backbone: GPT | Transformer | RNN, tokenizer: Tokenizer, reading: Reading, length: int
) -> str:
    """The likeliest token again and again. The whole text is read for each: so an edit's tokens
    keep their places.
    """
    given = ids_of(backbone, reading)
    said: list[int] = []
    ids = given["target"][:, :1] if reading.source is not None else given["ids"]  # (1, T)
    limit = None if isinstance(backbone, RNN) else backbone.config.context

    while len(said) < length and (limit is None or ids.shape[1] < limit):
        now = (
            backbone.hidden(ids)
            if isinstance(backbone, GPT)
            else backbone.forced(given["source"], ids)
        )
        id = int(backbone.logits(now[:, -1])[0, : tokenizer.vocabulary].argmax())
        if id == tokenizer.end:
            break

        said.append(id)
        ids = torch.cat([ids, ids.new_tensor([[id]])], dim=1)

    return tokenizer.decode(said)
