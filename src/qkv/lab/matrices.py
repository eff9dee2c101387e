"""The lectures' matrices: the alignment of a translation, and scores with and without a mask."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
import tyro
from jaxtyping import Float
from rich.console import Console
from rich.text import Text
from torch import Tensor

from qkv import artifact
from qkv.generation.generate import without_dropout
from qkv.insight.inspect.capture import (
    CapturedAttention,
    attention_sites,
    distance,
    entropy,
    unmasked,
)
from qkv.insight.inspect.hook_checks import capture_required
from qkv.insight.inspect.model_input import Reading, Side, hidden, read
from qkv.insight.inspect.whole_words import WholeWord
from qkv.insight.look import Look, look
from qkv.insight.render.figures import figure_style
from qkv.insight.render.figures.attention import heat_map, matrix, matrix_size, write_title
from qkv.insight.render.figures.figure_style import canvas
from qkv.insight.render.terminal_cells import HeatMap, has_blocks
from qkv.insight.render.views import ENDINGS, labels, numbered
from qkv.lab import demo as demonstration
from qkv.lab.board import (
    ENGLISH,
    QUICK,
    SLIDE_ALIGNMENT,
    SLIDE_WEIGHTS,
    TURKISH,
    slide_head,
    vectors,
)
from qkv.models import GPT, Transformer
from qkv.models.model import expect
from qkv.nn.attention import Causal, Mask, attend, dot
from qkv.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HiddenConsole = tyro.conf.Suppress[tyro.conf.Fixed[Console | None]]
"""The console of a command, which is no flag."""
ON_THE_SLIDE = "on the slide"
SLIDE_MASKED = "on the slide, masked"
UNMASKED = "without a mask"
MASKED = "with a causal mask"
FORMATS = (".html", *ENDINGS)


def check_out(out: Path | None) -> None:
    """Raise unless the file has the ending of a page or a picture."""
    if out is not None and out.suffix.lower() not in FORMATS:
        raise ValueError(f"out: expected the name of a {', '.join(FORMATS)} file, not {out}")


def write(
    out: Path | None, console: Console, page: Callable[[], Look], draw: Callable[[], Figure]
) -> None:
    """Write the page or the picture, whichever the file's ending says, and print its name."""
    if out is None:
        return

    if out.suffix.lower() == ".html":
        page().save(out)
    else:
        figure_style.save(draw, out)

    console.print(Text(str(out)), soft_wrap=True)


# cats chase mice, kediler fareleri kovalar


def cats(
    out: Path | None = None,
    demo: Path = demonstration.DEMO_FOLDER / "turkish",
    console: HiddenConsole = None,
) -> None:
    """The lecture's first matrix: "cats chase mice" aligned with "kediler fareleri kovalar".

    The slide's own numbers come first, then those of a translator.

    Args:
        out: Write a .html, .png, .svg or .pdf file as well.
        demo: The folder of the translator that qkv demo trains; if it is missing, the translator
            is trained there, which takes a minute.
        console: The console to print to.
    """
    check_out(out)
    console = console or Console(highlight=False)
    _, on_the_slide = slide_head(SLIDE_ALIGNMENT)
    console.print(HeatMap(on_the_slide, TURKISH, ENGLISH, ON_THE_SLIDE), "")

    if not demonstration.finished(demo) and not demonstration.trained_translator(console, demo):
        console.print("Stopped. The same command resumes the training.")
        return

    message = f"demo: expected the translator of qkv demo, and {demo} holds another model"
    loaded, tokenizer = artifact.load(demo)
    model = expect(loaded, Transformer, message)
    if tokenizer is None:
        raise ValueError(message)

    source = demonstration.SENTENCE
    result = demonstration.show_alignment(console, model, tokenizer, source)
    target = result.translation or None

    def page() -> Look:
        return look(model, tokenizer=tokenizer, source=source, target=target, name=str(demo))

    write(out, console, page, lambda: draw_alignment(result, source))


def draw_alignment(result: demonstration.Aligned, source: str) -> Figure:
    """The alignment as a heat map."""
    return heat_map(
        result.weights,
        result.target,
        result.source,
        f"{source}: {result.translation}",
        "cross-attention, mean of all heads",
        row_name="Turkish (queries)",
        column_name="English (keys)",
    )


# the quick brown, with and without a mask


class MaskedHead(NamedTuple):
    """Scores of one head, minus infinity where the mask forbids attention, and their softmax."""

    scores: Float[Tensor, "T S"]
    weights: Float[Tensor, "T S"]


def mask(
    out: Path | None = None,
    model: str | None = None,
    layer: int = 0,
    head: int = 0,
    console: HiddenConsole = None,
) -> None:
    """The lecture's second: "the quick brown" with and without a causal mask, scores and weights.

    The slide's own numbers come first: its scores are the logarithms of its weights.

    Args:
        out: Write a .html, .png, .svg or .pdf file as well.
        model: A GPT whose head is shown with and without its mask (default: vectors set by hand).
        layer: Its layer, counted from 0.
        head: Its head, counted from 0.
        console: The console to print to.
    """
    check_out(out)
    console = console or Console(highlight=False)
    if model is None:
        side = quick_brown_side()
        heads = slide_heads() | quick_brown_heads()
        title = "softmax(X Xᵀ) with and without a causal mask"
    else:
        side, heads, name = by_model(model, layer, head)
        title = f"{Path(model).name}, {name}, with and without its causal mask"

    names = labels(side)
    show_mask(console, names, heads)
    write(out, console, lambda: as_look(title, side, heads), lambda: draw_mask(names, heads, title))


def quick_brown_side() -> Side:
    """The three words as a token sequence."""
    words = tuple(WholeWord(token, [position]) for position, token in enumerate(QUICK))
    return Side(tuple(range(len(QUICK))), QUICK, words)


def slide_heads() -> dict[str, MaskedHead]:
    """The slide's matrix without and with the causal mask."""
    masks: dict[str, Mask | None] = {ON_THE_SLIDE: None, SLIDE_MASKED: Causal()}
    heads = {}
    for name, mask in masks.items():
        scores, weights = slide_head(SLIDE_WEIGHTS, mask)
        heads[name] = MaskedHead(scores.float(), weights.float())

    return heads


def quick_brown_heads() -> dict[str, MaskedHead]:
    """Both heads on hand-made vectors, which are queries, keys and values alike."""
    masks: dict[str, Mask | None] = {UNMASKED: None, MASKED: Causal()}
    return {name: attend_by_hand(mask) for name, mask in masks.items()}


def attend_by_hand(mask: Mask | None) -> MaskedHead:
    """Self-attention on the hand-made vectors."""
    X = vectors(QUICK)
    captured: list[Tensor] = []

    def store(scores: Tensor) -> Tensor:
        captured.append(scores)
        return scores

    _, weights = attend(X, X, X, score=dot, mask=mask, need_weights=True, on_scores=store)
    assert weights is not None
    return MaskedHead(captured[0][0, 0], weights)


def by_model(name: str, layer: int, head: int) -> tuple[Side, dict[str, MaskedHead], str]:
    """The same words in a GPT's head, without and with its mask; also which head it is."""
    loaded, tokenizer = artifact.load(name)
    tokenizer = tokenizer or artifact.tokenizer_of(name)
    family = type(loaded).__name__
    message = f"model: expected a GPT, which has a causal mask, and {name} is a {family}"
    model = expect(loaded, GPT, message)
    (site,) = attention_sites(model)
    layer = numbered("layer", layer, site.depth)
    head = numbered("head", head, site.heads)
    reading = read(model, tokenizer, " ".join(QUICK))
    point = site.hook_point(layer, "")

    with unmasked(model):
        free = capture_head(model, reading, point, head)

    masked = capture_head(model, reading, point, head)

    return reading.text, {UNMASKED: free, MASKED: masked}, f"layer {layer}, head {head}"


def capture_head(model: GPT, reading: Reading, point: str, head: int) -> MaskedHead:
    """Capture the scores and weights of one head."""
    names = (f"{point}scores", f"{point}weights")
    with torch.no_grad(), without_dropout(model), capture_required(model, names) as captured:
        hidden(model, reading)

    scores, weights = (captured[name][0, head].float().cpu() for name in names)
    return MaskedHead(scores, weights)


def format_score(score: float) -> str:
    """A score with one decimal, typeset: with a minus sign and an infinity sign."""
    return f"{score:.1f}".replace("-", "−").replace("inf", "∞")


def shades_of(scores: Float[Tensor, "T S"]) -> Float[Tensor, "T S"]:
    """Pale shades, since scores are not weights: 0.1 for the lowest score, 0.35 for the highest."""
    finite = scores[scores.isfinite()]
    low = finite.min()
    high = finite.max()
    shades = 0.1 + 0.25 * (scores - low) / (high - low).clamp(min=1e-9)

    return torch.where(scores.isfinite(), shades, 0.0)


def show_mask(console: Console, names: tuple[str, ...], heads: dict[str, MaskedHead]) -> None:
    """Print scores on the left and weights on the right, first without and then with the mask."""
    formatter = format_score if has_blocks(console) else "{:.1f}".format
    for name, head in heads.items():
        shades = shades_of(head.scores)
        scores = HeatMap(head.scores, names, names, "scores", shades=shades, format_value=formatter)
        weights = HeatMap(head.weights, names, names, "weights: softmax of each row")
        beside = Table.grid(padding=(0, 4))
        beside.add_row(scores, weights)
        console.print(Text(name, style="bold cyan"), beside, "")


def draw_mask(names: tuple[str, ...], heads: dict[str, MaskedHead], title: str) -> Figure:
    """The same as a figure."""
    wide, high = matrix_size(names, names)
    rows = len(heads)
    figure = canvas(max(9.6, 2 * wide + 0.8), rows * (high + 0.4) + 0.8)
    axes = figure.subplots(rows, 2)

    for row, (name, head) in enumerate(heads.items()):
        matrix(
            axes[row, 0],
            head.scores,
            names,
            names,
            f"{name}: scores",
            shades=shades_of(head.scores),
            format_value=format_score,
        )
        matrix(axes[row, 1], head.weights, names, names, f"{name}: weights")

    write_title(figure, title)

    return figure


def as_look(title: str, side: Side, heads: dict[str, MaskedHead]) -> Look:
    """The matrices as named heads of one layer: a page opens with them side by side."""
    weights = torch.stack([head.weights for head in heads.values()])  # (H, T, T)
    attention = CapturedAttention(
        kind="self",
        rows=side,
        columns=side,
        layers={0: weights},
        depth=1,
        heads=len(heads),
        causal=False,
        overview=weights.unsqueeze(0),
        entropy=entropy(weights).unsqueeze(0),
        distance=distance(weights, "self").unsqueeze(0),
        names=tuple(heads),
    )

    return Look(title, Reading(side), [attention], None, None, None)
