"""Integrated gradients: the contribution of each input token to a score, which they sum to.

Gradient x input looks at one point. Integrated gradients (Sundararajan et al., 2017) average the
gradient on the straight line from a baseline, where no token says anything, to the input; times
the way from the baseline, the contributions sum to the change of the score (completeness).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from qkv.generation.generate import without_dropout
from qkv.insight.inspect.attribution import TOKENS, answer_positions, scores_at
from qkv.insight.inspect.logit_lens import makes_predictions
from qkv.insight.inspect.model_input import Reading, ids_of
from qkv.insight.inspect.upper_layers import chunks_of
from qkv.models.model import Model, backbone_of

Baseline = Literal["mean", "zeros"]
STEPS = 256
"""Gradients on the line from the baseline to the input."""
FIRST_INTERVALS = 16
NODES = 2
"""Gradients of an interval: the points of a Gauss-Legendre quadrature."""
PathPoint = tuple[float, float]
"""A share of the way from the baseline to the input, and the score there."""


class TokenContributions(NamedTuple):
    """What each input token contributes to a score, relative to a baseline."""

    text: Float[Tensor, "T"]
    source: Float[Tensor, "S"] | None
    """For a translator, the contributions of the source tokens."""
    position: int
    target: int
    """The token id or, for a task model, the class whose score is explained."""
    against: int | None
    score: float
    """The logit, or the difference of two, for the text."""
    baseline: float
    """The same for the baseline."""

    @property
    def gap(self) -> float:
        """What the contributions miss of the change of the score; it shrinks with more steps."""
        total = float(self.text.double().sum())
        if self.source is not None:
            total += float(self.source.double().sum())

        return self.score - self.baseline - total


def integrated_gradients(
    model: Model,
    reading: Reading,
    position: int = -1,
    target: int | None = None,
    against: int | None = None,
    *,
    baseline: Baseline | int = "mean",
    steps: int = STEPS,
    tolerance: float = 0.01,
) -> TokenContributions:
    """The contribution of each input token to a logit, or to the score of a task model's class.

    The line is divided more finely where the score changes abruptly, as it does in deep models.
    Positions stay as they are: the baseline replaces the token embeddings alone.

    Args:
        model: The model; any that predicts tokens or has a task head.
        reading: The text, from `read`.
        position: The position of the prediction; a number below 0 counts from the last. A task
            model that is not a tagger has one answer, whatever the position.
        target: The token id or the number of the class; default the likeliest.
        against: A token id or class whose score is subtracted.
        baseline: The embedding of every token in the baseline: the mean of the vocabulary, zeros,
            or that of a token id, such as a mask or padding token.
        steps: The largest number of gradients.
        tolerance: The error at which to stop, as a share of the change of the score.

    Returns:
        The contributions, and the score for the text and for the baseline.

    Raises:
        ValueError: If a number is out of its range, or the model predicts nothing.

    Example:
        >>> from qkv import insight, models, text
        >>> tokenizer = text.train("words", ["the cat sat on the mat"], 20)
        >>> model = models.GPT(models.GPTConfig(vocabulary=20, width=8, heads=2, depth=1))
        >>> reading = insight.read(model, tokenizer, "the cat sat")
        >>> result = insight.integrated_gradients(model, reading)
        >>> result.text.shape, abs(result.gap) < 1e-3
        (torch.Size([3]), True)
    """
    if not makes_predictions(model):
        raise ValueError("model: this BERT is an encoder only: it makes no prediction to explain")
    if steps < NODES:
        raise ValueError(f"steps: expected {NODES} or more, not {steps}")

    T = len(reading.text.ids)
    if not -T <= position < T:
        raise ValueError(f"position: expected 0 to {T - 1}, or -1 for the last, not {position}")

    position %= T
    if model.task is not None and model.task.task != "tag":
        position = answer_positions(model.task, T)[0]

    # cuDNN has no backward pass for an RNN in evaluation mode.
    with without_dropout(model), torch.backends.cudnn.flags(enabled=False):
        line = BaselineLine(model, reading, position)
        line.read(target, against, baseline)
        contributions = [side.float() for side in line.integrate(steps, tolerance)]

    source = contributions[0] if len(contributions) > 1 else None
    return TokenContributions(
        contributions[-1], source, position, line.target, against, line.score, line.start_score
    )


class Interval(NamedTuple):
    """A part of the line, and its share of the contributions."""

    low: PathPoint
    high: PathPoint
    parts: list[Float[Tensor, "_"]]
    """The contributions of the tokens of each side."""
    error: float
    """How far they are from the change of the score."""


class BaselineLine:
    """The straight line from the baseline's token embeddings to those of the text."""

    def __init__(self, model: Model, reading: Reading, position: int) -> None:
        self.model = model
        self.backbone: Any = backbone_of(model)
        self.arguments = ids_of(model, reading)
        self.position = position
        self.against: int | None = None

    def read(self, target: int | None, against: int | None, baseline: Baseline | int) -> None:
        """Find the ends of the line, and the score at both."""
        with torch.no_grad():
            with token_embeddings(self.backbone) as seen:
                scores = self.scores(1)  # (1, C)

            self.ends = [value[0] for value in seen]  # the source first
            self.rows = max(1, TOKENS // sum(len(end) for end in self.ends))
            self.starts = []
            for module, end in zip(seen.modules, self.ends, strict=True):
                vector = baseline_vector(module, baseline, end)
                self.starts.append(vector.to(end).expand_as(end))

            for name, number in (("target", target), ("against", against)):
                if number is not None and not 0 <= number < scores.shape[1]:
                    raise ValueError(f"{name}: expected 0 to {scores.shape[1] - 1}, not {number}")

            self.target = int(scores.argmax()) if target is None else target
            self.against = against
            self.score = float(self.chosen(scores))
            with token_embeddings(self.backbone, self.starts):
                self.start_score = float(self.chosen(self.scores(1)))

    def integrate(self, steps: int, tolerance: float) -> list[Float[Tensor, "T"]]:
        """The contributions of the tokens of each side, in the order of `ends`.

        The score is known at both ends of each interval, so the error of its integral is, too:
        the intervals with the largest errors are halved until the errors are small together.
        """
        first = min(FIRST_INTERVALS, max(1, steps // NODES))
        cuts = [number / first for number in range(first + 1)]
        values = [self.start_score, *self.values_at(cuts[1:-1]), self.score]
        intervals = self.measure(list(pairwise(zip(cuts, values, strict=True))))
        used = NODES * first
        allowed = tolerance * abs(self.score - self.start_score)

        while used < steps:
            error = sum(interval.error for interval in intervals)
            if error <= allowed:
                break

            # Halve the worst ones, as many as the steps allow.
            intervals.sort(key=lambda interval: interval.error)
            limit = max(allowed, error / 4) / len(intervals)
            worst = []
            while intervals and intervals[-1].error > limit and used < steps:
                worst.append(intervals.pop())
                used += 2 * NODES

            if not worst:
                break

            middles = [(interval.low[0] + interval.high[0]) / 2 for interval in worst]
            halves = []
            for interval, at, value in zip(worst, middles, self.values_at(middles), strict=True):
                halves += [(interval.low, (at, value)), ((at, value), interval.high)]

            intervals += self.measure(halves)

        totals = []
        for side in range(len(self.ends)):
            totals.append(torch.stack([interval.parts[side] for interval in intervals]).sum(0))

        return totals

    def measure(self, ends: list[tuple[PathPoint, PathPoint]]) -> list[Interval]:
        """Integrate over intervals that are given by their ends and the scores there."""
        low = np.array([start[0] for start, _ in ends])
        width = np.array([end[0] for _, end in ends]) - low
        nodes, weights = np.polynomial.legendre.leggauss(NODES)  # on -1 to 1
        shares = (low[:, None] + width[:, None] * (nodes + 1) / 2).flatten()
        scale = torch.tensor(width[:, None] * weights / 2).unsqueeze(-1)  # (N, NODES, 1)
        sides = []
        for products in self.products_at(shares.tolist()):
            sides.append((products.unflatten(0, (-1, NODES)) * scale).sum(1))  # (N, T)

        intervals = []
        for number, (start, end) in enumerate(ends):
            parts = [side[number] for side in sides]
            missing = end[1] - start[1] - sum(float(part.sum()) for part in parts)
            intervals.append(Interval(start, end, parts, abs(missing)))

        return intervals

    def points_at(self, shares: list[float]) -> list[Float[Tensor, "N T E"]]:
        """The token embeddings at these points of the line, of each side."""
        points = []
        for start, end in zip(self.starts, self.ends, strict=True):
            share = torch.tensor(shares, dtype=torch.float64).view(-1, 1, 1).to(end)
            points.append(start + share * (end - start))

        return points

    def values_at(self, shares: list[float]) -> list[float]:
        """The score at points of the line."""
        values: list[float] = []
        with torch.no_grad():
            for chunk in chunks_of(len(shares), self.rows):
                points = self.points_at([shares[number] for number in chunk])
                with token_embeddings(self.backbone, points):
                    values += self.chosen(self.scores(len(chunk))).tolist()

        return values

    def products_at(self, shares: list[float]) -> list[Float[Tensor, "N T"]]:
        """Gradient x (input - baseline) at points of the line, by token of each side."""
        sides: list[list[Tensor]] = [[] for _ in self.ends]
        for chunk in chunks_of(len(shares), self.rows):
            points = self.points_at([shares[number] for number in chunk])
            for point in points:
                point.requires_grad_()

            with torch.enable_grad(), token_embeddings(self.backbone, points):
                score = self.chosen(self.scores(len(chunk))).sum()
                gradients = torch.autograd.grad(score, points)

            for number, gradient in enumerate(gradients):
                way = (self.ends[number] - self.starts[number]).double()
                sides[number].append((gradient.double() * way).sum(-1).cpu())

        return [torch.cat(chunks) for chunks in sides]

    def scores(self, rows: int) -> Float[Tensor, "N C"]:
        """The logits at the position, or the scores of a task, for copies of the text."""
        copies = {name: ids.expand(rows, -1) for name, ids in self.arguments.items()}
        hidden = self.backbone.hidden(**copies)
        positions = torch.full((rows,), self.position, device=hidden.device)
        return scores_at(self.model, hidden, positions)

    def chosen(self, scores: Float[Tensor, "N C"]) -> Float[Tensor, "N"]:
        """The score of the target, less that of the other."""
        if self.against is None:
            return scores[:, self.target]

        return scores[:, self.target] - scores[:, self.against]


class SeenEmbeddings(list[Tensor]):
    """The token embeddings of each side, the source first, and the modules they came from."""

    def __init__(self) -> None:
        super().__init__()
        self.modules: list[Any] = []


@contextmanager
def token_embeddings(
    backbone: Any, replacements: list[Tensor] | None = None
) -> Iterator[SeenEmbeddings]:
    """Collect the token embeddings of each side, or put others in their place.

    Source and target may share a module, which is then called twice, for the source first.
    """
    seen = SeenEmbeddings()

    def hook(module: Any, inputs: Any, value: Tensor) -> Tensor:
        number = len(seen)
        seen.append(value)
        seen.modules.append(module)
        if replacements is None:
            return value

        replacement = replacements[number]
        if replacement.dim() == 2:
            replacement = replacement.expand_as(value)

        return replacement

    with ExitStack() as hooks:
        for embedding in (getattr(backbone, "source_embedding", None), backbone.embedding):
            if embedding is not None:
                module = getattr(embedding, "token", embedding)
                hooks.callback(module.register_forward_hook(hook).remove)

        yield seen


def baseline_vector(module: Any, baseline: Baseline | int, like: Tensor) -> Float[Tensor, "E"]:
    """The token embedding that all tokens of the baseline have."""
    if baseline == "zeros":
        return torch.zeros_like(like[0])

    vocabulary = module.weight.shape[0]
    if baseline == "mean":
        return module(torch.arange(vocabulary, device=like.device)).mean(0)
    if not isinstance(baseline, int) or not 0 <= baseline < vocabulary:
        raise ValueError(
            f"baseline: expected mean, zeros or a token id from 0 to {vocabulary - 1}, "
            f"not {baseline!r}"
        )

    return module(torch.tensor(baseline, device=like.device))
