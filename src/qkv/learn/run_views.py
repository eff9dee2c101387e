"""Parts of the pages about a student's run: curves, samples and attention, as HTML."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from qkv.artifact import Loaded
from qkv.generation.generate import context_limit
from qkv.generation.text import complete, prompt_ids
from qkv.insight.look import Look, look
from qkv.insight.render.figures import look_figure, training_curves
from qkv.insight.render.figures.figure_style import render
from qkv.insight.render.figures.run_metrics import read_run
from qkv.insight.render.views import ViewChoice
from qkv.lab.report.inline_svg import inline_svg
from qkv.lab.report.lab_page import html_table

SAMPLE_TOKENS = 40
LOOK_TOKENS = 16
"""Tokens of the text whose attention is drawn: few enough to read them."""


KEPT_COLOURS = {"#ffffff": "#fffffe", "#222222": "#222223", "#777777": "#777778"}
"""White and ink by other names, which no theme of the page replaces: numbers in a heat map must
stay readable on its colours."""


def picture(draw: Callable[[], Figure], label: str) -> str:
    """A figure of matplotlib as a part of a page, in the colours of its theme."""
    return f'<div class="panels single">{framed(render(draw, "svg").decode(), label)}</div>'


def framed(svg: str, label: str) -> str:
    """A picture in its frame."""
    return f"<figure>{inline_svg(svg, label)}</figure>"


def curves(run: Path) -> str:
    """The training curves of a run."""
    drawn = [read_run(run, run.name, "step")]
    return picture(partial(training_curves.draw, drawn, "step", 0.02), "losses by step")


def samples(loaded: Loaded, prompts: Sequence[str], temperature: float = 0.0) -> list[str]:
    """The continuation of each prompt, always the same."""
    model, tokenizer = loaded
    assert tokenizer is not None
    limit = context_limit(model, "refuse") or SAMPLE_TOKENS
    length = min(SAMPLE_TOKENS, limit)
    return complete(
        model,
        tokenizer,
        prompts,
        length=length,
        temperature=temperature,
        top_k=40,
        seed=0,
        beyond="slide",
    )


def sample_table(prompts: Sequence[str], columns: dict[str, list[str]]) -> str:
    """Prompts with their continuations, one column for each model."""
    rows = []
    for number, prompt in enumerate(prompts):
        rows.append([prompt, *(texts[number] for texts in columns.values())])

    return f'<div class="scroller book">{html_table(["prompt", *columns], rows)}</div>'


def short_look(loaded: Loaded, text: str, name: str) -> Look:
    """What a model does with the beginning of a text."""
    model, tokenizer = loaded
    assert tokenizer is not None
    longest = min(LOOK_TOKENS, model.config.context)
    while len(prompt_ids(tokenizer, text)) > longest:
        text = text.rpartition(" ")[0] or text[: len(text) // 2]

    return look(loaded, text, name=name)


def attention_views(seen: Look) -> str:
    """All heads, and the first head of the last layer with its tokens."""
    attention = seen.attention[0]
    last = attention.depth - 1
    choices = {
        f"all heads: {attention.depth} layers of {attention.heads}": ViewChoice(view="heads"),
        f"layer {last}, head 0": ViewChoice(view="head", layer=last, head=0),
    }

    parts = []
    for label, choice in choices.items():
        svg = render(partial(look_figure.draw, seen, choice), "svg").decode()
        for colour, kept in KEPT_COLOURS.items():
            svg = svg.replace(colour, kept)

        parts.append(framed(svg, label))

    return f'<div class="panels">{"".join(parts)}</div>'
