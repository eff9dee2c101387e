"""The walk of one token through a whole model as rows, for the terminal and for a figure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from qkv.insight.inspect.look_data import LookData
from qkv.insight.render.views import MISSING, ViewChoice, label, numbered
from qkv.insight.walk.model_walk import ModelWalk
from qkv.insight.walk.stack_walk import StackWalk

PART_NAMES = {
    "attention": "attention",
    "cross_attention": "cross-attention",
    "feed_forward": "feed-forward",
    "block": "block",
}


class WalkRow(NamedTuple):
    """One step of the token: a length of the stream, and what a part of a block added to it."""

    name: str
    stream: float
    """The length of the vector after this step."""
    part: str | None = None
    """The part of a block that added something."""
    added: float = 0.0
    """The length of what it added."""
    cosine: float = 0.0
    """The cosine of what it added and the stream before."""
    guess: str = ""
    """The likeliest token that the lens reads here."""


def followed_token(look: LookData, choice: ViewChoice) -> tuple[ModelWalk, int]:
    """The walk of a look, and the position of the token that is followed.

    Raises:
        ValueError: If the look has no walk, or the text no such token.
    """
    walk = look.model_walk
    if walk is None:
        raise ValueError(f"model: {MISSING['model']}")
    if choice.token is None:
        return walk, walk.position

    return walk, numbered("token", choice.token, len(walk.reading.text.ids))


def walk_rows(walk: ModelWalk, position: int) -> Iterator[WalkRow]:
    """The steps of the token at a position; those of an encoder are of the last source token."""
    for step in walk.steps:
        place = -1 if step.side is walk.reading.source else position
        yield WalkRow(step.name.replace("_", " "), length(step.vectors[place]))

    for stack in walk.stacks:
        yield from stack_rows(walk, stack, position)


def stack_rows(walk: ModelWalk, stack: StackWalk, position: int) -> Iterator[WalkRow]:
    """The embedding, then each part of each block."""
    leads_to_output = stack is walk.stacks[-1]
    place = position if leads_to_output else -1
    name = "" if len(walk.stacks) == 1 else f"{stack.name} "
    guesses = [""] * (len(stack.blocks) + 1)
    if leads_to_output and walk.lens is not None:
        guesses = [label(layer[place][0].text) for layer in walk.lens]

    output = stack.embedding.output[place]
    yield WalkRow(f"{name}embedding", length(output), guess=guesses[0])
    for layer, block in enumerate(stack.blocks):
        for part in block:
            before = part.before[place].float()
            added = part.added[place].float()
            yield WalkRow(
                f"{name}layer {layer} {PART_NAMES[part.name]}",
                length(part.after[place]),
                part.name,
                length(added),
                float(F.cosine_similarity(added, before, dim=0)),
                guesses[layer + 1] if part is block[-1] else "",
            )


def length(vector: Tensor) -> float:
    return float(vector.float().norm())
