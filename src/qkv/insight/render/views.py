"""The views of a look, and the part that a view shows: heads of one layer, tokens or words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from jaxtyping import Float
from rich.cells import cell_len
from torch import Tensor

from qkv.insight.inspect.capture import CapturedAttention
from qkv.insight.inspect.look_data import LookData
from qkv.insight.inspect.model_input import Side
from qkv.insight.inspect.whole_words import join_words
from qkv.text.printable import shortened

View = Literal["head", "heads", "lines", "next", "lens", "norms", "numbers", "attribution"]
Heads = int | Sequence[int] | None
"""One head, several, or None for all of the layer."""

NAMES = {
    "self": "Self-attention",
    "encoder": "Self-attention of the encoder",
    "decoder": "Self-attention of the decoder",
    "cross": "Cross-attention",
}


class AttentionView(NamedTuple):
    """Attention weights of the chosen heads of one layer, between tokens or whole words."""

    site: str
    """Such as: Self-attention, layer 3"""
    attention: CapturedAttention
    heads: tuple[int, ...]
    weights: Float[Tensor, "H T S"]
    rows: tuple[str, ...]
    """Labels of the queries (T)."""
    columns: tuple[str, ...]
    """Labels of the keys (S)."""

    @property
    def name(self) -> str:
        return f"{self.site}, {heads_named(self.heads, self.attention.heads)}"

    @property
    def mean(self) -> Float[Tensor, "T S"]:
        return self.weights.mean(0)


def attention_view(
    look: LookData,
    kind: str | None = None,
    layer: int = 0,
    head: Heads = None,
    words: bool = False,
) -> AttentionView:
    """The attention weights of one layer's heads.

    Args:
        look: The look.
        kind: The kind of attention; see `LookData.of`.
        layer: The layer; a number below 0 counts from the last.
        head: One head or several; None for all of the layer.
        words: Whether tokens are joined to whole words.
    """
    attention = look.of(kind)
    layer = numbered("layer", layer, attention.depth)
    if layer not in attention.layers:
        captured = ", ".join(map(str, attention.layers)) or "none"
        raise ValueError(
            f"layer: the weights of layer {layer} were not kept, only those of {captured}; "
            "look at it again"
        )

    heads = head_numbers(head, attention.heads)
    weights = attention.layers[layer][list(heads)]  # (H, T, S)
    if words:
        weights = join_words(weights, attention.rows.words, attention.columns.words)

    return AttentionView(
        f"{NAMES[attention.kind]}, layer {layer}",
        attention,
        heads,
        weights,
        labels(attention.rows, words),
        labels(attention.columns, words),
    )


def head_numbers(head: Heads, count: int) -> tuple[int, ...]:
    """The heads as numbers from 0, each once."""
    if head is None:
        return tuple(range(count))
    if isinstance(head, int):
        head = (head,)

    heads: dict[int, None] = {}
    for number in head:
        heads[numbered("head", number, count)] = None

    if not heads:
        raise ValueError("head: expected one or more")

    return tuple(heads)


def numbered(name: str, number: int, count: int) -> int:
    """A layer or head counted from 0; an error that starts with `name` if it does not exist."""
    if not -count <= number < count:
        raise ValueError(f"{name}: expected 0 to {count - 1}, or -1 for the last, not {number}")

    return number % count


def heads_named(heads: Sequence[int], count: int) -> str:
    if count == 1:
        return "the only head"
    if len(heads) == 1:
        return f"head {heads[0]}"
    if len(heads) == count:
        return f"mean of {count} heads"

    return f"mean of heads {', '.join(map(str, heads[:-1]))} and {heads[-1]}"


class Attributed(NamedTuple):
    """Attribution by |gradient x input|, between tokens or whole words."""

    weights: Float[Tensor, "T S"]
    """The share of each input token in the prediction at each position."""
    rows: tuple[str, ...]
    columns: tuple[str, ...]


def attributed(look: LookData, words: bool = False) -> Attributed:
    """The attribution of a look; an error if it was not computed."""
    if look.attribution is None:
        raise ValueError("attribution: it was not computed; look again with attribution=True")

    weights = look.attribution
    rows = look.reading.rows
    columns = look.reading.source or look.reading.text
    if words:
        weights = join_words(weights, rows.words, columns.words)

    return Attributed(weights, labels(rows, words), labels(columns, words))


def prediction_title(look: LookData) -> str:
    """What the predictions of a language model are: next tokens, or a BERT's at each position."""
    if look.bidirectional:
        return "Predicted token at each position"

    return "Predicted next tokens"


def layer_names(count: int) -> list[str]:
    """Names along the residual stream: embedding, then each block; an RNN has its output alone."""
    if count == 1:
        return ["output"]

    names = ["embedding"]
    for layer in range(count - 1):
        names.append(f"layer {layer}")

    return names


def labels(side: Side, words: bool = False) -> tuple[str, ...]:
    """A label for each token, or for each whole word."""
    if words:
        return tuple(label(word.text) for word in side.words)

    return tuple(map(label, side.tokens))


def label(text: str, longest: int = 24) -> str:
    """A text in one printable line of at most this many cells; ␣ if there is nothing to see."""
    text = shortened(text, longest)
    if cell_len(text) == 0:
        return "␣"

    return text
