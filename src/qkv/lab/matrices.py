"""The lecture's matrices, one command each: which word a translator looked at, and what a causal
mask hides.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from rich.console import Console
from rich.text import Text
from torch import Tensor

from qkv import artifact
from qkv.generation.generate import without_dropout
from qkv.insight.inspect.capture import Attention, attention_sites, distance, entropy, unmasked
from qkv.insight.inspect.hook_checks import capture_required
from qkv.insight.inspect.model_input import Reading, Side, hidden, read
from qkv.insight.inspect.whole_words import WholeWord
from qkv.insight.look import Look, look
from qkv.insight.render.figures import figure_style
from qkv.insight.render.figures.attention import canvas, entitle, heat_map, matrix, room
from qkv.insight.render.terminal_cells import HeatMap, has_blocks
from qkv.insight.render.views import labels, numbered
from qkv.lab import demo as demonstration
from qkv.lab.board import vectors
from qkv.models import GPT, Transformer
from qkv.nn.attention import Causal, Mask, attend, dot
from qkv.tables import Table

QUICK = ("the", "quick", "brown")
UNMASKED, MASKED = "without a mask", "with a causal mask"
ENDINGS = (".html", *figure_style.ENDINGS)


def check_out(out: Path | None) -> None:
    if out is not None and out.suffix.lower() not in ENDINGS:
        raise ValueError(f"out: expected the name of a {', '.join(ENDINGS)} file, not {out}")


# cats chase mice, kediler fareleri kovalar


def cats(
    out: Path | None = None,
    demo: Path = demonstration.OUT / "turkish",
    console: Console | None = None,
) -> None:
    """Which English word each Turkish word looked at: the alignment of the demo's translator.

    Args: out: Also write the matrix to this .png, .svg or .pdf file, or the whole look to this
        .html file. demo: The translator's folder; it is trained first, in about a minute, when it
        is not there. console: Where it is shown.
    """
    check_out(out)
    console = console or Console(highlight=False)
    if not demonstration.finished(demo) and not demonstration.trained_translator(console, demo):
        console.print("Stopped. The same command goes on from here.")
        return

    model, tokenizer = artifact.load(demo)
    if not isinstance(model, Transformer) or tokenizer is None:
        raise ValueError(
            f"demo: expected the translator of qkv demo, and {demo} holds another model"
        )

    demonstration.show_alignment(console, model, tokenizer, demonstration.SENTENCE)
    if out is None:
        return

    found = demonstration.aligned(model, tokenizer, demonstration.SENTENCE)
    if out.suffix.lower() == ".html":
        source, target = demonstration.SENTENCE, found.translated or None
        look(model, tokenizer=tokenizer, source=source, target=target, name=str(demo)).save(out)
    else:
        title = f"{demonstration.SENTENCE}: {found.translated}"
        below = "who looked at whom; the mean of all heads"
        names = {"row_name": "Turkish", "column_name": "English"}
        figure_style.save(
            lambda: heat_map(found.weights, found.said, found.read, title, below, **names), out
        )

    console.print(Text(str(out)), soft_wrap=True)


# the quick brown, with and without a mask


class MaskedHead(NamedTuple):
    """One head: its scores, minus infinity where the mask forbids to look, and the softmax of them."""

    scores: Float[Tensor, "T S"]
    weights: Float[Tensor, "T S"]


def mask(
    out: Path | None = None,
    model: str | None = None,
    layer: int = 0,
    head: int = 0,
    console: Console | None = None,
) -> None:
    """ "the quick brown" with and without a causal mask: the scores, and the weights they become.

    Args:
        out: Also write it to this .png, .svg, .pdf or .html file.
        model: A GPT by name or folder; unless given, the words are vectors made by hand.
        layer: Of the model, counted from 0.
        head: Of the layer, counted from 0.
        console: Where it is shown.
    """
    check_out(out)
    console = console or Console(highlight=False)
    if model is None:
        side, both, title = hand_made(), by_hand(), "softmax(X Xᵀ) with and without a causal mask"
    else:
        side, both, place = by_model(model, layer, head)
        title = f"{Path(model).name}, {place}, with and without its causal mask"

    names = labels(side)
    show_mask(console, names, both)
    if out is None:
        return

    if out.suffix.lower() == ".html":
        as_look(title, side, both).save(out)
    else:
        figure_style.save(lambda: draw_mask(names, both, title), out)

    console.print(Text(str(out)), soft_wrap=True)


def hand_made() -> Side:
    return Side(
        tuple(range(len(QUICK))),
        QUICK,
        tuple(WholeWord(word, [at]) for at, word in enumerate(QUICK)),
    )


def by_hand() -> dict[str, MaskedHead]:
    """As on the board: queries, keys and values are the words' own vectors."""
    X = vectors(QUICK)
    masks: dict[str, Mask | None] = {UNMASKED: None, MASKED: Causal()}
    found = {}

    for name, each in masks.items():
        heard: list[Tensor] = []
        _, weights = attend(
            X,
            X,
            X,
            score=dot,
            mask=each,
            need_weights=True,
            on_scores=lambda s: keep(s, heard),  # noqa: B023
        )
        assert weights is not None
        found[name] = MaskedHead(heard[0][0, 0], weights)

    return found


def keep(scores: Tensor, heard: list[Tensor]) -> Tensor:
    heard.append(scores)
    return scores


def by_model(name: str, layer: int, head: int) -> tuple[Side, dict[str, MaskedHead], str]:
    """The same words through a real model's head, as it is and with its mask taken away everywhere;
    and which it is.
    """
    model, tokenizer = artifact.load(name)
    tokenizer = tokenizer or artifact.tokenizer_of(name)
    if not isinstance(model, GPT):
        raise ValueError(
            f"model: expected a GPT, which has a causal mask, and {name} is a {type(model).__name__}"
        )

    (place,) = attention_sites(model)
    layer, head = numbered("layer", layer, place.depth), numbered("head", head, place.heads)
    reading = read(model, tokenizer, " ".join(QUICK))

    with unmasked(model):
        free = heard_at(model, reading, place.hook_point(layer, ""), head)

    masked = heard_at(model, reading, place.hook_point(layer, ""), head)

    return reading.text, {UNMASKED: free, MASKED: masked}, f"layer {layer}, head {head}"


def heard_at(model: GPT, reading: Reading, point: str, head: int) -> MaskedHead:
    names = (f"{point}scores", f"{point}weights")
    with torch.no_grad(), without_dropout(model), capture_required(model, names) as heard:
        hidden(model, reading)

    return MaskedHead(
        *(heard[f"{point}{name}"][0, head].float().cpu() for name in ("scores", "weights"))
    )


def said(score: float) -> str:
    return "−∞" if score == -math.inf else f"{score:.1f}".replace("-", "−")


def plainly(score: float) -> str:
    return "-inf" if score == -math.inf else f"{score:.1f}"


def shades_of(scores: Float[Tensor, "T S"]) -> Float[Tensor, "T S"]:
    """Pale, for they are no weights yet: from nothing for the least score to a little for the most."""
    known = scores[scores.isfinite()]
    low, high = known.min(), known.max()
    return torch.where(
        scores.isfinite(), 0.1 + 0.25 * (scores - low) / (high - low).clamp(min=1e-9), 0.0
    )


def show_mask(console: Console, names: tuple[str, ...], both: dict[str, MaskedHead]) -> None:
    """Scores on the left, the weights that they become on the right; below, the same with the mask."""
    say = said if has_blocks(console) else plainly
    for name, seen in both.items():
        beside = Table.grid(padding=(0, 4))
        scores = HeatMap(
            seen.scores, names, names, "scores", shades=shades_of(seen.scores), say=say
        )
        beside.add_row(scores, HeatMap(seen.weights, names, names, "weights: softmax of each row"))
        console.print(Text(name, style="bold cyan"), beside, "")


def draw_mask(
    names: tuple[str, ...], both: dict[str, MaskedHead], title: str
) -> figure_style.Figure:
    wide, high = room(names, names)
    figure = canvas(max(9.6, 2 * wide + 0.8), 2 * (high + 0.4) + 0.8)
    axes = figure.subplots(2, 2)

    for row, (name, seen) in enumerate(both.items()):
        matrix(
            axes[row, 0],
            seen.scores,
            names,
            names,
            f"{name}: scores",
            shades=shades_of(seen.scores),
            say=said,
        )

        matrix(axes[row, 1], seen.weights, names, names, f"{name}: weights")

    entitle(figure, title)

    return figure


def as_look(title: str, side: Side, both: dict[str, MaskedHead]) -> Look:
    """For the page: two heads of one layer, named by what they see, so that it opens with both side
    by side.
    """
    weights = torch.stack([seen.weights for seen in both.values()])  # (2, T, T)
    numbers = entropy(weights).unsqueeze(0), distance(weights, "self").unsqueeze(0)  # (1, 2) each
    found = Attention(
        "self", side, side, {0: weights}, 1, 2, False, weights.unsqueeze(0), *numbers, tuple(both)
    )

    return Look(title, Reading(side), [found], None, None, None)
