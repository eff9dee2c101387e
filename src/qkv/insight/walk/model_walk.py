"""The walk of a text through a whole model: embedding, what every block adds, logits, softmax.

All numbers are those of one forward pass. The residual stream after a block is the stream before
it plus what attention and feed-forward add; a post-norm block norms each sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from qkv.generation.fill import Guess
from qkv.generation.generate import without_dropout
from qkv.insight.inspect.logit_lens import top_tokens
from qkv.insight.inspect.model_input import Reading, hidden, readable_token
from qkv.insight.inspect.position_encoding import PositionTable, position_encoding
from qkv.insight.walk.head_walk import counted, exact
from qkv.insight.walk.recurrent_walk import RecurrentStep, recurrent_steps
from qkv.insight.walk.stack_walk import (
    AddedPart,
    EmbeddingWalk,
    ModuleRecorder,
    StackWalk,
    recorded_stacks,
)
from qkv.models.model import Model, backbone_of
from qkv.models.sites import predicts_tokens
from qkv.text.tokenizer import Tokenizer

MODEL_WALK_MAX_TOKENS = 48
"""Text length up to which a page has the walk through the whole model."""

LENS_TOP = 3
LOGITS_TOP = 10

LayerGuesses = list[list[list[Guess]]]
"""Guesses by layer, position and rank."""


class ScoredToken(NamedTuple):
    """A token that may come next, with its logit and its probability."""

    text: str
    id: int
    logit: float
    probability: float


@dataclass(frozen=True, eq=False)
class ModelWalk:
    """One text on its way through a model; tensors are on the CPU."""

    reading: Reading
    position: int
    """The token of the text whose way is shown first."""
    stacks: list[StackWalk]
    """The stack, or the encoder and the decoder; empty for an RNN."""
    steps: list[RecurrentStep]
    """The chain of an RNN; empty for all others."""
    lens: LayerGuesses | None
    """The likeliest tokens before the first block that leads to the output, and after each; None
    for an RNN and for a model that predicts no tokens."""
    next: list[list[ScoredToken]] | None
    """The tokens with the largest logits at each position; None if none are predicted."""
    vocabulary: int
    """The number of logits at each position."""
    position_kind: str
    """learned, sinusoidal, rotary, alibi, relative, none, own, or recurrent for an RNN."""
    positions: PositionTable | None
    """The positional encoding as far as it can be drawn."""


def walk_model(
    model: Model,
    reading: Reading,
    tokenizer: Tokenizer,
    position: int | None = None,
    *,
    lens: LayerGuesses | None = None,
) -> ModelWalk:
    """Follow a text through a whole model.

    Args:
        model: The model.
        reading: The text, from `read`.
        tokenizer: The model's tokenizer, for the tokens of the predictions.
        position: The token that is followed first, counted from 0 (or back from -1). By default
            the last one; for a BERT the first mask token, if there is one.
        lens: The logit lens of the same text, if it is known; it is not computed again.

    Returns:
        The embedding, what each part of each block adds, the lens and the logits.

    Raises:
        ValueError: If there is no such position, or a model of a user's own hides its parts.

    Example:
        >>> from qkv import insight, models, text
        >>> tokenizer = text.train("words", ["the cat sat on the mat"], 20)
        >>> model = models.GPT(models.GPTConfig(vocabulary=20, width=8, heads=2, depth=1))
        >>> walk = insight.walk_model(model, insight.read(model, tokenizer, "the cat"), tokenizer)
        >>> [part.name for part in walk.stacks[0].blocks[0]]
        ['attention', 'feed_forward']
    """
    if position is None:
        position = first_position(reading, tokenizer)

    vocabulary = backbone_of(model).config.vocabulary
    position = counted("position", position, len(reading.text.ids))
    with torch.no_grad(), without_dropout(model):
        if not model.stacks:
            steps = recurrent_steps(model, reading)
            output = steps[-1].vectors
            exact_steps = [step._replace(vectors=exact(step.vectors)) for step in steps]
            scored = scored_tokens(model, tokenizer, output)
            return ModelWalk(
                reading, position, [], exact_steps, None, scored, vocabulary, "recurrent", None
            )

        recorder = ModuleRecorder()
        recorders, calls = recorded_stacks(model, recorder)
        with recorder.recording():
            hidden(model, reading)

        stacks = [one.walk(call) for one, call in zip(recorders, calls, strict=True)]
        if predicts_tokens(model):
            lens = lens_of(model, tokenizer, stacks[-1], lens)

        kind, table = drawn_positions(model, reading)
        return ModelWalk(
            reading,
            position,
            [mapped_stack(stack, exact) for stack in stacks],
            [],
            lens,
            scored_tokens(model, tokenizer, stacks[-1].output),
            vocabulary,
            kind,
            table,
        )


def first_position(reading: Reading, tokenizer: Tokenizer) -> int:
    """The last position, or that of the first mask token."""
    ids = reading.text.ids
    if tokenizer.mask is not None and tokenizer.mask in ids:
        return ids.index(tokenizer.mask)

    return len(ids) - 1


# Predictions


def lens_of(
    model: Model, tokenizer: Tokenizer, stack: StackWalk, known: LayerGuesses | None
) -> LayerGuesses:
    """The lens along the stream, or the likeliest tokens of the one that is known."""
    if known is not None:
        return [[guesses[:LENS_TOP] for guesses in layer] for layer in known]

    final_norm = model.stacks[stack.name].norm or nn.Identity()
    return [top_tokens(model, tokenizer, final_norm(x), LENS_TOP) for x in stack.stream]


def scored_tokens(
    model: Model, tokenizer: Tokenizer, output: Float[Tensor, "T E"]
) -> list[list[ScoredToken]] | None:
    """The tokens with the largest logits at each position."""
    if not predicts_tokens(model):
        return None

    backbone = backbone_of(model)
    vocabulary = min(tokenizer.vocabulary, backbone.config.vocabulary)
    logits = backbone.logits(output).float()  # (T, V)
    probability = logits.softmax(-1)
    best, ids = logits[:, :vocabulary].topk(min(LOGITS_TOP, vocabulary))  # (T, top)
    shares = probability.gather(1, ids)

    result = []
    rows = zip(ids.tolist(), best.tolist(), shares.tolist(), strict=True)
    for row_ids, row_best, row_shares in rows:
        row = zip(row_ids, row_best, row_shares, strict=True)
        result.append([ScoredToken(readable_token(tokenizer, id), id, x, p) for id, x, p in row])

    return result


# Positions


def drawn_positions(model: Model, reading: Reading) -> tuple[str, PositionTable | None]:
    """How the model encodes positions, and the table of those of the text."""
    config = backbone_of(model).config
    if getattr(config, "position_encoding", None) is not None:
        return "own", None

    sides = [reading.text, *([reading.source] if reading.source is not None else [])]
    longest = max(len(side.ids) for side in sides)
    try:
        return config.position, position_encoding(model, longest)
    except ValueError:
        return config.position, None  # none, or a table that cannot be seen


# On the CPU


def mapped_stack(stack: StackWalk, change: Callable[[Tensor], Tensor]) -> StackWalk:
    """The walk of a stack with all tensors changed."""
    blocks = []
    for block in stack.blocks:
        blocks.append([AddedPart(*mapped(part, change)) for part in block])

    return stack._replace(
        embedding=EmbeddingWalk(*mapped(stack.embedding, change)),
        blocks=blocks,
        output=change(stack.output),
    )


def mapped(values: Sequence[Any], change: Callable[[Tensor], Tensor]) -> list[Any]:
    """The values with all tensors changed."""
    return [change(value) if isinstance(value, Tensor) else value for value in values]
