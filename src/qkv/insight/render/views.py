"""What there is to see of a look, and which part of it a view shows: one head, a layer's mean,
words or pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from jaxtyping import Float
from rich.cells import cell_len
from torch import Tensor

from qkv.insight.inspect.capture import Attention
from qkv.insight.inspect.model_input import Side
from qkv.insight.inspect.whole_words import join_words
from qkv.insight.look import Look
from qkv.text.printable import shortened

View = Literal["head", "heads", "lines", "next", "lens", "norms", "numbers", "attribution"]
Heads = int | Sequence[int] | None
"""One head, several, or all of the layer."""

NAMES = {
    "self": "Self-attention",
    "encoder": "Self-attention of the encoder",
    "decoder": "Self-attention of the decoder",
    "cross": "Cross-attention",
}


class AttentionView(NamedTuple):
    """Who looks at whom, in the chosen heads of one layer."""

    place: str
    """Such as: Self-attention, layer 3"""
    attention: Attention
    heads: tuple[int, ...]
    weights: Float[Tensor, "H T S"]
    rows: tuple[str, ...]
    """Who looks (T)."""
    columns: tuple[str, ...]
    """At whom (S)."""

    @property
    def name(self) -> str:
        return f"{self.place}, {heads_named(self.heads, self.attention.heads)}"

    @property
    def mean(self) -> Float[Tensor, "T S"]:
        return self.weights.mean(0)


def attention_view(
    look: Look, kind: str | None = None, layer: int = 0, head: Heads = None, words: bool = False
) -> AttentionView:
    """The weights of one layer's heads, between tokens or between whole words. A layer below 0
    counts from the last.
    """
    attention = look.of(kind)
    layer = numbered("layer", layer, attention.depth)
    if layer not in attention.layers:
        kept = ", ".join(map(str, attention.layers)) or "none"
        raise ValueError(
            f"layer: the weights of layer {layer} were not kept, only those of {kept}; look at it again"
        )

    every = range(attention.heads)
    asked = every if head is None else (head,) if isinstance(head, int) else head
    heads = tuple(dict.fromkeys(numbered("head", each, attention.heads) for each in asked))
    if not heads:
        raise ValueError("head: expected one or more")

    weights = attention.layers[layer][list(heads)]  # (H, T, S)
    if words:
        weights = join_words(weights, attention.rows.words, attention.columns.words)

    place = f"{NAMES[attention.kind]}, layer {layer}"

    return AttentionView(
        place,
        attention,
        heads,
        weights,
        labels(attention.rows, words),
        labels(attention.columns, words),
    )


def numbered(name: str, number: int, count: int) -> int:
    if not -count <= number < count:
        raise ValueError(f"{name}: expected 0 to {count - 1}, or -1 for the last, not {number}")

    return number % count


def heads_named(heads: Sequence[int], count: int) -> str:
    if len(heads) == 1:
        return "the only head" if count == 1 else f"head {heads[0]}"
    if len(heads) == count:
        return f"the mean of its {count} heads"

    return f"the mean of heads {', '.join(map(str, heads[:-1]))} and {heads[-1]}"


class Attributed(NamedTuple):
    weights: Float[Tensor, "T S"]
    """The part that each word read has, by gradient times input, in what is said at each place."""
    rows: tuple[str, ...]
    columns: tuple[str, ...]


def attributed(look: Look, words: bool = False) -> Attributed:
    if look.attribution is None:
        raise ValueError("attribution: it was not computed; look again with attribution=True")

    weights, rows = look.attribution, look.reading.rows
    columns = look.reading.source or look.reading.text
    if words:
        weights = join_words(weights, rows.words, columns.words)

    return Attributed(weights, labels(rows, words), labels(columns, words))


def question(look: Look) -> str:
    """What a model that says words is asked at each place."""
    return "What stands there, in the model's opinion" if look.both_ways else "What comes next"


def layer_names(count: int) -> list[str]:
    """Of the residual stream: after the embedding, then after each block, counted from 0; an RNN
    has its output.
    """
    if count == 1:
        return ["output"]

    return ["embedding", *(f"layer {layer}" for layer in range(count - 1))]


def labels(side: Side, words: bool = False) -> tuple[str, ...]:
    return tuple(map(label, (word.text for word in side.words) if words else side.tokens))


def label(text: str, longest: int = 24) -> str:
    """In one line, printable, and never without anything to see."""
    text = shortened(text, longest)
    return text if cell_len(text) else "␣"
