"""The views of a look, and the part that a view shows: heads of one layer, tokens or words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from jaxtyping import Bool, Float
from rich.cells import cell_len
from torch import Tensor, ones, zeros
from torch import bool as bool_

from qkv.insight.heads.head_names import shares_of, without_keys
from qkv.insight.inspect.capture import CapturedAttention
from qkv.insight.inspect.look_data import LookData
from qkv.insight.inspect.model_input import Side
from qkv.insight.inspect.weight_shares import sinks
from qkv.insight.inspect.whole_words import join_words
from qkv.text.printable import shortened

View = Literal[
    "walk", "model", "head", "heads", "lines", "next", "lens", "norms", "numbers", "attribution"
]
Heads = int | Sequence[int] | None
"""One head, several, or None for all of the layer."""

NAMES = {
    "self": "Self-attention",
    "encoder": "Self-attention of the encoder",
    "decoder": "Self-attention of the decoder",
    "cross": "Cross-attention",
}
ENDINGS = (".png", ".svg", ".pdf")
"""File formats of a figure."""
MISSING = {
    "next": "this model predicts no tokens",
    "lens": "it was not computed; this model predicts no tokens, or the text is long",
    "norms": "they were not computed; an RNN has no residual stream, or the text is long",
    "attribution": "it was not computed; look again with attribution=True",
    "model": "it was not computed; look again with model_walk=True",
    "walks": "they were not computed; look again with walks=True",
}


def check_ending(out: Path, name: str = "plot") -> None:
    """Raise an error that starts with `name` if `out` is not a figure's file name."""
    if out.suffix.lower() not in ENDINGS:
        raise ValueError(f"{name}: expected the name of a .png, .svg or .pdf file, not {out}")


@dataclass(frozen=True, kw_only=True)
class ViewChoice:
    """What is shown of a look."""

    view: View | None = None
    """None for the default of the page, and for `head` in a picture or the terminal."""
    kind: str | None = None
    """The kind of attention; see `LookData.of`."""
    layer: int | None = None
    """The layer; a number below 0 counts from the last."""
    head: Heads = None
    words: bool = False
    """Whether tokens are joined to whole words."""
    token: int | None = None
    """The query of a walk; by default the last."""
    without_first: bool = False
    """Whether the first token and special tokens are left out, and the rest rescaled."""


def view_data(look: LookData, view: str) -> Any:
    """The data of next, lens, norms or attribution; an error if the look has none."""
    data = getattr(look, view)
    if data is None:
        raise ValueError(f"{view}: {MISSING[view]}")

    return data


def with_overview(look: LookData, choice: ViewChoice) -> CapturedAttention:
    """The attention of a look for a view of all heads; an error if they have no overview."""
    attention = look.of(choice.kind)
    if not len(attention.overview):
        raise ValueError(f"{choice.view}: this look has no overview of its heads")
    if choice.without_first and choice.view == "heads":
        return attention._replace(overview=overview_without(attention))

    return attention


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
    left: tuple[int, ...] = ()
    """The columns that are left out."""
    told: str = ""
    """What is left out, with its share of the weight."""

    @property
    def blank(self) -> Bool[Tensor, "T S"] | None:
        """True for cells without a number: forbidden ones, and columns that are left out."""
        if not self.left:
            return self.forbidden

        blank = zeros(len(self.rows), len(self.columns), dtype=bool_)
        blank[:, list(self.left)] = True
        if self.forbidden is not None:
            blank |= self.forbidden

        return blank

    @property
    def forbidden(self) -> Bool[Tensor, "T S"] | None:
        """True where the causal mask forbids to look; None without a mask."""
        if not self.attention.causal:
            return None

        return ones(len(self.rows), len(self.columns)).triu(1).bool()

    @property
    def name(self) -> str:
        return f"{self.site}, {heads_named(self.heads, self.attention.heads)}"

    @property
    def mean(self) -> Float[Tensor, "T S"]:
        return self.weights.mean(0)


def attention_view(look: LookData, choice: ViewChoice) -> AttentionView:
    """The attention weights of one layer's heads, by default of the first layer."""
    attention = look.of(choice.kind)
    layer = numbered("layer", choice.layer or 0, attention.depth)
    if layer not in attention.layers:
        captured = ", ".join(map(str, attention.layers)) or "none"
        raise ValueError(
            f"layer: the weights of layer {layer} were not kept, only those of {captured}; "
            "look at it again"
        )

    heads = head_numbers(choice.head, attention.heads)
    weights = attention.layers[layer][list(heads)]  # (H, T, S)
    matrix = labelled(weights, attention.rows, attention.columns, choice.words)
    view = AttentionView(f"{NAMES[attention.kind]}, layer {layer}", attention, heads, *matrix)
    if not choice.without_first:
        return view

    left = left_columns(attention, choice.words)
    told = told_left_out(attention, weights)
    return view._replace(weights=without_keys(view.weights, left), left=tuple(left), told=told)


# Leaving out the first token and special tokens


def left_columns(attention: CapturedAttention, words: bool) -> list[int]:
    """The columns that can be left out: tokens, or the words that these belong to."""
    positions = sinks(attention.kind, attention.columns)
    if not words:
        return positions

    columns = []
    for index, word in enumerate(attention.columns.words):
        if set(word.positions) & set(positions):
            columns.append(index)

    return columns


def told_left_out(attention: CapturedAttention, weights: Float[Tensor, "*n T S"]) -> str:
    """What is left out, and the share of these weights that it takes; empty if it is nothing."""
    positions = sinks(attention.kind, attention.columns)
    tokens = dict.fromkeys(label(attention.columns.tokens[position]) for position in positions)
    if not tokens:
        return ""

    # The first token can look at nothing but itself.
    first = 1 if attention.kind != "cross" and weights.shape[-2] > 1 else 0
    share = float(weights[..., first:, positions].sum(-1).mean())
    names = " and ".join(f"“{token}”" for token in tokens)
    if len(tokens) > 3:
        names = "the first token and special tokens"

    return f"Left out: {names}, {share:.0%} of the weight"


def overview_without(attention: CapturedAttention) -> Float[Tensor, "L H t s"]:
    """The overview of all heads without the first token and special tokens.

    For a long text, whose cells are maxima of several weights, each head is rescaled as a whole.
    """
    positions = sinks(attention.kind, attention.columns)
    S = len(attention.columns.ids)
    s = attention.overview.shape[-1]
    if s == S:
        return without_keys(attention.overview, positions)

    rest = attention.overview.clone()
    rest[..., [position * s // S for position in positions]] = 0
    shares = shares_of(attention)
    if shares is None:
        return rest

    return rest / (1 - shares.left_out[..., None, None]).clamp(min=0.001)


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


class LabelledMatrix(NamedTuple):
    """Attention or attribution, between tokens or whole words."""

    weights: Float[Tensor, "*n T S"]
    rows: tuple[str, ...]
    columns: tuple[str, ...]


def labelled(
    weights: Float[Tensor, "*n T S"], rows: Side, columns: Side, words: bool
) -> LabelledMatrix:
    """A matrix with its labels; with `words` tokens are joined to whole words."""
    if words:
        weights = join_words(weights, rows.words, columns.words)

    return LabelledMatrix(weights, labels(rows, words), labels(columns, words))


def attribution_view(look: LookData, choice: ViewChoice) -> LabelledMatrix:
    """The share of each input token in the prediction at each position."""
    columns = look.reading.source or look.reading.text
    return labelled(view_data(look, "attribution"), look.reading.rows, columns, choice.words)


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
