"""The walk through a whole model for a page: lengths, cosines, predictions and drawn vectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from qkv.insight.inspect.model_input import Side
from qkv.insight.inspect.position_encoding import PositionTable
from qkv.insight.render.page_encoding import rounded
from qkv.insight.render.walk.walk_data import array, shortened
from qkv.insight.walk.model_walk import ModelWalk
from qkv.insight.walk.stack_walk import AddedPart, EmbeddingWalk, StackWalk

DRAWN = 64
"""Numbers of a vector that are drawn, at most; of a longer one evenly spaced ones."""

LOGIT_DIGITS = 7
"""Of logits and their probabilities: the page takes differences, and powers of e."""


def model_walk_data(walk: ModelWalk, spaces: Mapping[int, int]) -> dict[str, Any]:
    """The walk for JSON; `spaces` are the leading spaces of tokens by id.

    Side 0 is the text, side 1 the source of a translator.
    """
    reading = walk.reading
    sides = [side_data(reading.text, spaces)]
    if reading.source is not None:
        sides.append(side_data(reading.source, spaces))

    steps = []
    for step in walk.steps:
        side = int(step.side is reading.source)
        drawn = drawn_vectors(step.vectors)
        lengths = norms(step.vectors)
        steps.append({"name": step.name, "side": side, "lengths": lengths, "drawn": drawn})

    stacks = []
    for stack in walk.stacks:
        side = int(stack.name == "encoder")
        stacks.append(stack_data(stack) | {"side": side})

    return {
        "position": walk.position,
        "sides": sides,
        "stacks": stacks,
        "steps": steps,
        "lens": rows_of(walk.lens, 3, spaces),
        "next": rows_of(walk.next, 2, spaces, LOGIT_DIGITS),
        "vocabulary": walk.vocabulary,
        "positions": positions_data(walk.position_kind, walk.positions),
    }


def side_data(side: Side, spaces: Mapping[int, int]) -> dict[str, Any]:
    tokens = []
    for id, token in zip(side.ids, side.tokens, strict=True):
        tokens.append(" " * spaces.get(id, 0) + token)

    words = [[word.text, word.positions] for word in side.words]
    return {"ids": side.ids, "tokens": tokens, "words": words}


def stack_data(stack: StackWalk) -> dict[str, Any]:
    """One stack: its embedding, the parts of each block, and its output."""
    return {
        "name": stack.name,
        "kind": stack.kind,
        "norm": stack.norm,
        "embedding": embedding_data(stack.embedding),
        "blocks": [[part_data(part) for part in block] for block in stack.blocks],
        "ends_with_norm": stack.ends_with_norm,
        "output": norms(stack.output),
    }


def embedding_data(embedding: EmbeddingWalk) -> dict[str, Any]:
    """The lengths of the vectors of all tokens, and the vectors as they are drawn."""
    data: dict[str, Any] = {"join": embedding.join, "normed": embedding.normed}
    for name in ("token", "position", "segment", "output"):
        vectors: Tensor | None = getattr(embedding, name)
        data[name] = None
        if vectors is not None:
            data[name] = {"lengths": norms(vectors), "drawn": drawn_vectors(vectors)}

    return data


def part_data(part: AddedPart) -> dict[str, Any]:
    """One addition: lengths by position, and its cosine to the stream that it is added to."""
    cosine = F.cosine_similarity(part.added.float(), part.before.float(), dim=-1)
    return {
        "name": part.name,
        "before": norms(part.before),
        "read": None if part.read is None else norms(part.read),
        "added": norms(part.added),
        "cosine": rounded(cosine.tolist()),
        "sum": norms(part.before + part.added),
        "after": norms(part.after),
        "heads": None if part.heads is None else rounded(part.heads.tolist()),
    }


def positions_data(kind: str, table: PositionTable | None) -> dict[str, Any]:
    """How positions are encoded, with the table: a row for each position, or each distance."""
    data: dict[str, Any] = {"kind": kind, "columns": None, "drawn": None}
    if table is not None:
        data |= {"columns": table.columns, "drawn": drawn_vectors(table.table.float())}

    return data


def drawn_vectors(vectors: Float[Tensor, "T N"]) -> dict[str, Any]:
    """The vectors with at most DRAWN numbers, and how many they have."""
    width = vectors.shape[-1]
    chosen = torch.arange(width)
    if width > DRAWN:
        chosen = torch.linspace(0, width - 1, DRAWN).round().long()

    return {"width": width, "numbers": array(vectors[:, chosen])}


def norms(vectors: Float[Tensor, "T N"]) -> Any:
    """The Euclidean length of each vector; None where it is not finite."""
    return rounded(vectors.float().norm(dim=-1).tolist())


def rows_of(guesses: Any, depth: int, spaces: Mapping[int, int], digits: int = 4) -> Any:
    """Predictions in nested lists as [text, id, ...] with a few digits."""
    if guesses is None:
        return None
    if depth == 0:
        text, id, *numbers = shortened(guesses, digits)
        return [" " * spaces.get(id, 0) + text, id, *numbers]

    return [rows_of(guess, depth - 1, spaces, digits) for guess in guesses]
