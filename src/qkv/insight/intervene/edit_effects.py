"""The effect of attention edits and of steering on the next tokens, the loss and the text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from qkv.generation.fill import Guess
from qkv.generation.generate import without_dropout
from qkv.insight.inspect.attention_edits import Edit, apply_edits, check_edit
from qkv.insight.inspect.attribution import answer_positions
from qkv.insight.inspect.logit_lens import POSITIONS_PER_CHUNK, top_guesses, top_tokens
from qkv.insight.inspect.model_input import Reading, check_finite, hidden, ids_of
from qkv.insight.intervene.steering import Steering, steer
from qkv.models.model import Model
from qkv.text.tokenizer import Tokenizer


class EditEffects(NamedTuple):
    """A model's predictions before and after edits."""

    reading: Reading
    edits: tuple[Edit, ...]
    before: list[list[Guess]] | None
    """The likeliest tokens at each position, or the answers of a task model; None for an encoder
    that predicts nothing."""
    after: list[list[Guess]] | None
    moved: Float[Tensor, "N"]
    """KL divergence of before from after at each position in nats; for an encoder 1 - cosine."""
    loss_before: float | None
    """Mean loss of the text in nats; None if the model has no loss on it."""
    loss_after: float | None
    text_before: str | None
    """The greedy continuation or translation, if the model generates text."""
    text_after: str | None
    steering: Steering | None = None
    logprobs_before: Float[Tensor, "T-1"] | None = None
    """Log-probability of each token of the text after the first, if the model has a loss."""
    logprobs_after: Float[Tensor, "T-1"] | None = None
    next_before: Float[Tensor, "V"] | None = None
    """Probability of every token after the text, if the model predicts the next token."""
    next_after: Float[Tensor, "V"] | None = None

    @property
    def changes(self) -> tuple[str, ...]:
        """The changes in words."""
        names = tuple(map(str, self.edits))
        if self.steering is None:
            return names

        return (*names, str(self.steering))


class Prediction(NamedTuple):
    """What a model predicts for a text."""

    vectors: Float[Tensor, "T E"]
    scores: Float[Tensor, "N V"] | None
    guesses: list[list[Guess]] | None
    loss: float | None
    text: str | None
    logprobs: Float[Tensor, "T-1"] | None = None
    next: Float[Tensor, "V"] | None = None


def edit_effects(
    model: Model,
    tokenizer: Tokenizer,
    reading: Reading,
    edits: Sequence[Edit],
    *,
    top: int = 5,
    length: int = 20,
    steering: Steering | None = None,
) -> EditEffects:
    """Compare a model's predictions for a text with and without attention edits or steering.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        reading: The text, from `read`.
        edits: One edit or more; with steering also none.
        top: The number of likeliest tokens at each position.
        length: The number of tokens to generate from the text; 0 for none.
        steering: A direction to add to the residual stream.

    Returns:
        The predictions before and after, and how far they moved.

    Raises:
        ValueError: If there is no change, or one does not fit the model or the text, or the
            model's numbers are not finite.

    Example:
        >>> from qkv import insight, models, text
        >>> tokenizer = text.train("words", ["the cat sat on the mat"], 20)
        >>> model = models.GPT(models.GPTConfig(vocabulary=20, width=8, heads=2, depth=1))
        >>> reading = insight.read(model, tokenizer, "the cat sat")
        >>> edits = [insight.Edit.read("0.1=off")]
        >>> insight.edit_effects(model, tokenizer, reading, edits).moved.shape
        torch.Size([3])
    """
    check_edits(model, reading, edits, top, steering)
    with torch.no_grad(), without_dropout(model):
        before = predict(model, tokenizer, reading, top, length)
        with apply_changes(model, edits, steering):
            after = predict(model, tokenizer, reading, top, length)

    check_finite(before.vectors, after.vectors)
    if before.scores is None or after.scores is None:
        moved = 1 - F.cosine_similarity(before.vectors, after.vectors, dim=-1)
    else:
        moved = kl_divergence(before.scores, after.scores)
        check_finite(before.scores.amax(-1), moved)

    return EditEffects(
        reading,
        tuple(edits),
        before.guesses,
        after.guesses,
        moved.clamp(min=0).float().cpu(),
        before.loss,
        after.loss,
        before.text,
        after.text,
        steering,
        before.logprobs,
        after.logprobs,
        before.next,
        after.next,
    )


@contextmanager
def apply_changes(
    model: Model, edits: Sequence[Edit], steering: Steering | None = None
) -> Iterator[None]:
    """Apply attention edits and steering while the context is open."""
    steered: Any = nullcontext()
    if steering is not None:
        steered = steer(model, steering.direction, steering.layer, steering.strength)

    with apply_edits(model, edits), steered:
        yield


def check_edits(
    model: Model,
    reading: Reading,
    edits: Sequence[Edit],
    top: int,
    steering: Steering | None = None,
) -> None:
    """Raise if there is no change, or one does not fit the model or the text."""
    if not edits and steering is None:
        raise ValueError("change: expected one or more, such as 3.5=off")
    if top < 1:
        raise ValueError(f"top: expected 1 or more, not {top}")

    for edit in edits:
        check_edit(model, edit, reading)


def kl_divergence(before: Float[Tensor, "N V"], after: Float[Tensor, "N V"]) -> Float[Tensor, "N"]:
    """KL divergence at each position, computed in chunks, since a vocabulary is wide."""
    parts = []
    chunks = zip(before.split(POSITIONS_PER_CHUNK), after.split(POSITIONS_PER_CHUNK), strict=True)
    for chunk_before, chunk_after in chunks:
        p = chunk_before.cpu().double().log_softmax(-1)
        q = chunk_after.cpu().double().log_softmax(-1)
        terms = p.exp() * (p - q)
        parts.append(terms.masked_fill(p.isneginf(), 0).sum(-1))  # 0 log 0 is 0

    return torch.cat(parts)


def predict(
    model: Model, tokenizer: Tokenizer, reading: Reading, top: int, length: int
) -> Prediction:
    """The predictions of a model for a text, with the loss and the greedy continuation."""
    vectors = hidden(model, reading)[0]  # (T, E)
    if model.task is not None:
        scores, guesses = predict_classes(model, vectors, top)
        return Prediction(vectors, scores, guesses, None, None)
    if model.predicts is None:
        return Prediction(vectors, None, None, None, None)

    scores = model.logits(vectors)[:, : tokenizer.vocabulary].float()
    guesses = top_tokens(model, tokenizer, vectors, top)
    if model.predicts == "masked":
        return Prediction(vectors, scores, guesses, None, None)

    loss = text = None
    ids = torch.tensor(reading.text.ids, device=scores.device)
    if len(ids) > 1:
        loss = float(F.cross_entropy(scores[:-1], ids[1:]))
    if length:
        text = continue_greedily(model, tokenizer, reading, length)

    logprobs = text_logprobs(scores[:-1], ids[1:])
    following = scores[-1].cpu().double().softmax(-1)

    return Prediction(vectors, scores, guesses, loss, text, logprobs, following)


def text_logprobs(scores: Float[Tensor, "N V"], ids: Int[Tensor, "N"]) -> Float[Tensor, "N"]:
    """The log-probability of one token at each position, computed in chunks."""
    parts = [torch.zeros(0, dtype=torch.double)]
    chunks = zip(scores.split(POSITIONS_PER_CHUNK), ids.split(POSITIONS_PER_CHUNK), strict=True)
    for chunk, chunk_ids in chunks:
        logprobs = chunk.cpu().double().log_softmax(-1)  # (N, V)
        parts.append(logprobs.gather(1, chunk_ids.cpu().unsqueeze(1)).squeeze(1))

    return torch.cat(parts)


def predict_classes(
    model: Any, vectors: Float[Tensor, "T E"], top: int
) -> tuple[Float[Tensor, "N C"], list[list[Guess]]]:
    """The classes of a task model: at each position for a tagger, one prediction for others."""
    head = model.task
    if head.numbers or head.task == "choice":
        raise ValueError(
            f"model: its task is {head.task}, which has no classes to compare; expected another"
        )

    rows = torch.tensor([answer_positions(head, len(vectors))], device=vectors.device)
    scores = model.scores(vectors.unsqueeze(0), rows, None, 1)[0]  # (N, C)

    return scores, top_guesses(scores.softmax(-1), top, head.labels.__getitem__)


def continue_greedily(model: Model, tokenizer: Tokenizer, reading: Reading, length: int) -> str:
    """Generate greedily without a KV cache, so that the tokens of an edit keep their positions."""
    *source, ids = ids_of(model, reading).values()
    if source:
        ids = ids[:, :1]  # the start token of the target

    limit = getattr(model.config, "context", math.inf)
    generated: list[int] = []
    while len(generated) < length and ids.shape[1] < limit:
        vectors = model.hidden(*source, ids)
        id = int(model.logits(vectors[:, -1])[0, : tokenizer.vocabulary].argmax())
        if id == tokenizer.end:
            break

        generated.append(id)
        ids = torch.cat([ids, ids.new_tensor([[id]])], dim=1)

    return tokenizer.decode(generated)
