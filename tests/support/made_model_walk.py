"""The walk through a model with random numbers that fit together."""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.generation.fill import Guess
from qkv.insight.inspect.model_input import Reading, Side
from qkv.insight.walk.model_walk import ModelWalk, ScoredToken
from qkv.insight.walk.recurrent_walk import RecurrentStep
from qkv.insight.walk.stack_walk import AddedPart, EmbeddingWalk, StackWalk

E = 8


def made_stack(
    name: str, kind: str, side: Side, depth: int, heads: int, generator: torch.Generator
) -> StackWalk:
    """A stack of pre-norm blocks over the tokens of a side."""
    T = len(side.ids)
    x = torch.randn(T, E, generator=generator)
    embedding = EmbeddingWalk(x, None, None, "sum", False, x)
    names = ["attention", "feed_forward"]
    if kind == "decoder":
        names.insert(1, "cross_attention")

    blocks = []
    for _ in range(depth):
        parts = []
        for part in names:
            added = torch.randn(T, E, generator=generator)
            lengths = (
                torch.rand(heads, T, generator=generator) if part.endswith("attention") else None
            )
            parts.append(AddedPart(part, x, x, added, x + added, lengths))
            x = x + added
        blocks.append(parts)

    return StackWalk(name, kind, "before", embedding, blocks, True, x)


def made_model_walk(
    reading: Reading, depth: int, heads: int, *, recurrent: bool = False
) -> ModelWalk:
    """The walk of a GPT, or with a source that of a translator or an RNN."""
    text, source = reading.text, reading.source
    T = len(text.ids)
    generator = torch.Generator().manual_seed(0)

    def vectors(side: Side) -> Tensor:
        return torch.randn(len(side.ids), E, generator=generator)

    stacks: list[StackWalk] = []
    steps: list[RecurrentStep] = []
    if recurrent and source is not None:
        steps = [RecurrentStep(name, source, vectors(source)) for name in ("encoder",)]
        steps += [RecurrentStep(name, text, vectors(text)) for name in ("embedding", "state")]
    elif source is None:
        stacks = [made_stack("stack", "self", text, depth, heads, generator)]
    else:
        stacks = [
            made_stack("encoder", "encoder", source, depth, heads, generator),
            made_stack("decoder", "decoder", text, depth, heads, generator),
        ]

    lens = None
    if stacks:
        lens = [[[Guess(token, 0, 0.5)] for token in text.tokens] for _ in range(depth + 1)]
    following = [[ScoredToken(token, 0, 2.0, 0.5)] for token in text.tokens]
    kind = "recurrent" if recurrent else "none"
    return ModelWalk(reading, T - 1, stacks, steps, lens, following, 20, kind, None)
