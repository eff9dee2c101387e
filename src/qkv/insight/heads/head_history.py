"""How a head came to be: its attention patterns at every checkpoint of a training run.

The induction bump: within a few steps heads learn to attend to what followed an earlier copy, and
the loss on repeated tokens falls (Olsson et al. 2022).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from qkv.generation.generate import without_dropout
from qkv.insight.heads.head_patterns import HeadPatterns, head_patterns, repeated_tokens
from qkv.models.model import Model
from qkv.text.tokenizer import Tokenizer


class HeadHistory(NamedTuple):
    """The pattern scores of all heads of one kind of attention, by step of a training."""

    kind: str
    """self, or for a translator encoder or decoder."""
    steps: list[int]
    scores: dict[str, Float[Tensor, "C L H"]]
    """By pattern: the scores at each checkpoint."""
    uniform: dict[str, float]
    """Uniform baseline: the score of a head that attends equally to all visible tokens."""
    repeated: Float[Tensor, "C 2"] | None
    """Loss on random tokens and on their repetition; None for a model that is not a GPT."""

    def strongest(self, pattern: str, count: int) -> list[tuple[int, int]]:
        """Layer and head of those that follow a pattern most at the last checkpoint."""
        last = self.scores[pattern][-1]
        best = last.flatten().topk(min(count, last.numel())).indices.tolist()
        return [divmod(index, last.shape[1]) for index in best]

    def steepest(self, pattern: str) -> tuple[int, int] | None:
        """The two steps between which the strongest head's score grows most; None if it never does."""
        ((layer, head),) = self.strongest(pattern, 1)
        scores = self.scores[pattern][:, layer, head]
        growth = scores.diff()
        if not len(growth) or float(growth.max()) <= 0:
            return None

        at = int(growth.argmax())
        return self.steps[at], self.steps[at + 1]


def head_history(
    checkpoints: Iterable[tuple[int, Model]],
    tokenizer: Tokenizer,
    texts: Sequence[str | tuple[str, str]],
    progress: Callable[[int], None] | None = None,
    *,
    seed: int = 0,
) -> list[HeadHistory]:
    """Score every head for the known attention patterns at each checkpoint.

    Args:
        checkpoints: Steps and models in the order of the training, such as
            `(400, load("RUN@400"))`; each may be loaded when it is asked for.
        tokenizer: The tokenizer of all of them.
        texts: The texts; for a translator pairs, or sources.
        progress: Called with the number of finished checkpoints.
        seed: The seed of the random tokens for induction.

    Returns:
        The scores for each kind of self-attention.

    Raises:
        ValueError: If there is no checkpoint or no text, or the model is an RNN.

    Example:
        >>> from qkv import insight, models, text
        >>> tokenizer = text.train("words", ["the cat sat on the mat"], 20)
        >>> model = models.GPT(models.GPTConfig(vocabulary=20, width=8, heads=2, depth=1))
        >>> (history,) = insight.head_history([(0, model), (10, model)], tokenizer, ["the cat sat"])
        >>> history.steps, history.scores["induction"].shape
        ([0, 10], torch.Size([2, 1, 2]))
    """
    steps: list[int] = []
    measured: list[list[HeadPatterns]] = []
    losses: list[Tensor] = []
    for step, model in checkpoints:
        steps.append(step)
        measured.append(head_patterns(model, tokenizer, texts, seed=seed))
        if model.predicts == "next":
            losses.append(repeated_loss(model, tokenizer, seed))
        if progress is not None:
            progress(len(steps))

    if not steps:
        raise ValueError("checkpoints: expected one or more, not none")

    histories = []
    for site, last in enumerate(measured[-1]):
        scores = {}
        for pattern in last.scores:
            scores[pattern] = torch.stack([found[site].scores[pattern] for found in measured])

        repeated = torch.stack(losses) if losses else None
        histories.append(HeadHistory(last.kind, steps, scores, dict(last.uniform), repeated))

    return histories


def repeated_loss(model: Model, tokenizer: Tokenizer, seed: int = 0) -> Float[Tensor, "2"]:
    """The mean loss on random tokens, and on the same tokens when they come again."""
    ids_by_kind, masks = repeated_tokens(model, tokenizer, seed)
    ids = ids_by_kind["self"].to(next(model.parameters()).device)  # (B, T)
    queries = masks["self"]["induction"].any(1).nonzero().flatten()  # the repetition
    second = queries[:-1]  # the last has no next token
    first = second - len(queries)

    with torch.no_grad(), without_dropout(model):
        logits = model(ids)[:, :-1].float()

    loss = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")  # (B, T - 1)
    return torch.stack([loss[:, first].mean(), loss[:, second].mean()]).cpu()
