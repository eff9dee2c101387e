"""Which tokens led a fine-tuned model to its answer, by gradient x input.

The gradient is that of the answer's own score: of the class, of the chosen ending, of the number,
or of each word's tag. Similarity reads both orders of a pair; their contributions are added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from qkv.data.batches.framing import Frame, Framed
from qkv.data.batches.labelled import collate
from qkv.generation.classify import example_of
from qkv.generation.generate import without_dropout
from qkv.insight.inspect.attribution import embedding_leaves
from qkv.models import TaskModel
from qkv.models.model import backbone_of
from qkv.text.tokenizer import Tokenizer

MAX_WORDS = 64
"""Words whose tags are explained: each needs a backward pass of its own."""
MAX_TOKENS = 2048
"""Tokens of all sequences of an example, whose activations are kept for the backward pass."""
MAX_TAGGED = 8192
"""Tokens times words whose tags are explained."""


class AnswerContributions(NamedTuple):
    """What each token contributes to the score of an answer."""

    ids: tuple[int, ...]
    """The tokens of the text, with the special tokens around it."""
    contributions: Float[Tensor, "N T"]
    """Signed gradient x input: one row, or for tags one of each word."""

    @property
    def shares(self) -> Float[Tensor, "N T"]:
        """The sizes of the contributions, divided by their sum; each row sums to 1."""
        size = self.contributions.abs()
        return size / size.sum(-1, keepdim=True).clamp(min=torch.finfo(size.dtype).tiny)


def answer_contributions(
    model: TaskModel, tokenizer: Tokenizer, text: str | Sequence[str]
) -> AnswerContributions:
    """Explain the answer of a fine-tuned model.

    Args:
        model: A model with a task head.
        tokenizer: Its tokenizer.
        text: A text, or several, as `classify` takes them.

    Returns:
        The contribution of each token to the answer's score.

    Raises:
        ValueError: If the text does not fit the task, or is too long to be explained.
    """
    head = model.config.head
    frame = Frame(**model.config.frame)
    framed = frame.encode(tokenizer, [example_of(head.task, text, "text")])[0]
    check_explainable(head.task, framed)
    products = answer_gradients(model, frame, framed)  # (N, G, T)

    # The sequence that the answer is about
    sequence = 0
    if head.task == "choice":
        sequence = int(products[0].abs().sum(-1).argmax())  # the others have no part in its score

    ids = tuple(framed.sequences[sequence].tolist())
    contributions = products[:, sequence, : len(ids)]
    if head.task == "similarity":
        contributions = contributions + products[:, 1, other_order(framed, frame)]

    return AnswerContributions(ids, contributions)


def check_explainable(task: str, framed: Framed) -> None:
    """Raise ValueError if the backward passes of an example would take too much time or memory."""
    tokens = sum(map(len, framed.sequences))
    if tokens > MAX_TOKENS:
        raise ValueError(
            f"explain: expected {MAX_TOKENS:,} tokens or fewer in all choices together, "
            f"not {tokens:,}; shorten the text or send fewer choices"
        )

    words = len(framed.target_positions)
    if task == "tag" and (words > MAX_WORDS or words * tokens > MAX_TAGGED):
        raise ValueError(
            f"explain: expected {MAX_WORDS} words or fewer, and at most {MAX_TAGGED:,} as the "
            f"product of words and tokens, not {words} words of {tokens} tokens; shorten the text"
        )


def answer_gradients(model: TaskModel, frame: Frame, framed: Framed) -> Float[Tensor, "N G T"]:
    """Gradient x input of each answer's score, for every sequence of the example."""
    batch = collate([framed], frame).to(next(model.parameters()).device)
    assert batch.target_positions is not None

    # cuDNN has no backward pass for an RNN in evaluation mode.
    with torch.enable_grad(), without_dropout(model), torch.backends.cudnn.flags(enabled=False):
        with embedding_leaves(backbone_of(model)) as embeddings:
            hidden = model.hidden(
                batch.ids,
                padding_mask=batch.padding_mask,
                segments=batch.segments,
                group=batch.group,
            )
            scores = model.scores(hidden, batch.target_positions, batch.padding_mask, batch.group)

        best = scores[0].max(-1).values[: max(1, answers_of(frame, framed))]  # (N,)
        products = []
        for score in best:
            (gradient,) = torch.autograd.grad(score, embeddings[-1], retain_graph=True)
            products.append((gradient * embeddings[-1]).sum(-1))  # (G, T)

    return torch.stack(products).detach().float().cpu()


def answers_of(frame: Frame, framed: Framed) -> int:
    """The number of answers: a tag for each word, one otherwise."""
    return len(framed.target_positions) if frame.task == "tag" else 1


def other_order(framed: Framed, frame: Frame) -> list[int]:
    """Where the tokens of (first, second) are in (second, first)."""
    before = len(frame.tokens.before)
    size = len(framed.sequences[0])
    first = int(framed.seconds[0]) - before - 1  # tokens of the first text
    second = size - before - first - 2

    positions = list(range(before))
    positions += range(before + second + 1, size - 1)  # the first text
    positions.append(before + second)  # the delimiter
    positions += range(before, before + second)
    positions.append(size - 1)

    return positions
