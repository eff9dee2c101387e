"""The walk through a whole model in the terminal: a line for each step of one token."""

from __future__ import annotations

from collections.abc import Iterator

import torch.nn.functional as F
from rich.console import Console
from rich.text import Text
from torch import Tensor

from qkv.insight.inspect.look_data import LookData
from qkv.insight.render.views import MISSING, ViewChoice, label
from qkv.insight.walk.model_walk import ModelWalk
from qkv.insight.walk.stack_walk import AddedPart, StackWalk
from qkv.tables import Table

NAMES = {
    "attention": "attention",
    "cross_attention": "cross-attention",
    "feed_forward": "feed-forward",
    "block": "the block",
}


def show_model(look: LookData, console: Console, choice: ViewChoice) -> None:
    """The length of the residual stream, what each part adds, and the likeliest token."""
    walk = look.model_walk
    if walk is None:
        raise ValueError(f"model: {MISSING['model']}")

    token = label(walk.reading.text.tokens[walk.position])
    below = (
        "Length of the residual stream, what is added, its cosine to the stream, likeliest token."
    )
    title = f"The whole model, at {token} (position {walk.position})"
    console.print(Text(title, style="bold"))
    console.print(Text(below, style="dim"))
    table = Table("step", "stream", "added", "cosine", "likeliest", box=None)
    for row in rows(walk):
        table.add_row(*row)

    console.print(table)


def rows(walk: ModelWalk) -> Iterator[tuple[str, ...]]:
    """A row for each step of the token at the walk's position."""
    for step in walk.steps:
        place = -1 if step.side is walk.reading.source else walk.position
        yield step.name.replace("_", " "), length(step.vectors[place]), "", "", ""

    for stack in walk.stacks:
        yield from stack_rows(walk, stack)

    if walk.next is not None:
        best = walk.next[walk.position][0]
        yield "logits", "", f"{best.logit:.3g}", "", label(best.text)
        yield "softmax", "", f"{best.probability:.1%}", "", label(best.text)


def stack_rows(walk: ModelWalk, stack: StackWalk) -> Iterator[tuple[str, ...]]:
    last = stack is walk.stacks[-1]
    place = walk.position if last else -1
    name = "" if len(walk.stacks) == 1 else f"{stack.name} "
    guesses = [""] * (len(stack.blocks) + 1)
    if last and walk.lens is not None:
        guesses = [label(layer[place][0].text) for layer in walk.lens]

    yield f"{name}embedding", length(stack.embedding.output[place]), "", "", guesses[0]
    for layer, block in enumerate(stack.blocks):
        for part in block:
            guess = guesses[layer + 1] if part is block[-1] else ""
            yield f"{name}layer {layer} {NAMES[part.name]}", *part_cells(part, place), guess


def part_cells(part: AddedPart, place: int) -> tuple[str, str, str]:
    cosine = F.cosine_similarity(part.added[place].float(), part.before[place].float(), dim=0)
    return length(part.after[place]), length(part.added[place]), f"{cosine:.2f}"


def length(vector: Tensor) -> str:
    return f"{vector.float().norm():.3g}"
