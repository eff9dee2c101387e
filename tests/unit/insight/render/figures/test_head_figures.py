"""Figures and tables of heads: the numbers and names they contain, and plain-text names."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from rich.console import Console

from qkv.insight.heads.head_ablation import HeadImportance
from qkv.insight.heads.head_patterns import HeadPatterns
from qkv.insight.heads.head_syntax import RelationScore, SyntaxResult
from qkv.insight.inspect.activation_patching import PatchResult
from qkv.insight.render.figures.figure_style import save
from qkv.insight.render.figures.head_figures import (
    importance_figure,
    patched_figure,
    patterns_figure,
    syntax_figure,
)
from qkv.insight.render.head_tables import importance_table, patterns_table, syntax_table

NAN = float("nan")


def importance(*kinds: str, few: bool = False) -> HeadImportance:
    change = {kind: np.linspace(-0.1, 0.3, 12).reshape(3, 4) for kind in kinds}
    ends = [
        {kind: np.full((3, 4), NAN) if few else values + by for kind, values in change.items()}
        for by in (-0.01, 0.01)
    ]
    return HeadImportance("zero", "loss", 2.5, 7, 40, change, *ends)


def some_patterns(kind: str) -> HeadPatterns:
    scores = {"previous": torch.rand(3, 4), "induction": torch.rand(3, 4)}
    return HeadPatterns(kind, scores, dict.fromkeys(scores, 0.125), dict.fromkeys(scores, 9))


SYNTAX = SyntaxResult(
    [
        RelationScore("all", 100, 1, 2, "to its head", 0.6, 0.5, 0.7, 1, 0.4, 0.1, 0.3),
        RelationScore("<b>$x$[red]", 20, 0, 3, "from its head", 0.2, NAN, NAN, -2, 0.4, NAN, NAN),
    ],
    30, 2, True,
)  # fmt: skip


def printed(table: Any) -> str:
    console = Console(width=100, record=True, file=None, quiet=False, force_terminal=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_importance(tmp_path: Path) -> None:
    measured = importance("encoder", "decoder", "cross")
    out = save(lambda: importance_figure(measured, "Which <heads> $x$"), tmp_path / "a.svg")
    text = out.read_text()
    assert "Which &lt;heads&gt; $x$" in text
    assert "cross 2.3" in text
    save(lambda: importance_figure(importance("self", few=True), "few"), tmp_path / "a.png")
    text = printed(importance_table(importance("self")))
    assert "2.3" in text
    assert "+0.3000" in text
    assert "+0.2900" in text
    assert "-0.1000" in text  # the smallest change
    assert "nan" not in printed(importance_table(importance("self", few=True)))


def test_patterns(tmp_path: Path) -> None:
    patterns = [some_patterns("encoder"), some_patterns("decoder")]
    text = save(lambda: patterns_figure(patterns, "patterns"), tmp_path / "a.svg").read_text()
    layer, head, score = patterns[1].strongest("induction", 1)[0]
    assert f"{layer}.{head} {score:.2f}" in text
    assert f"{layer}.{head}\u00a0{score:.2f}" in printed(patterns_table(patterns))


def test_relations(tmp_path: Path) -> None:
    text = save(lambda: syntax_figure(SYNTAX, "syntax"), tmp_path / "a.svg").read_text()
    assert "&lt;b&gt;$x$[red]" in text
    text = printed(syntax_table(SYNTAX))
    assert "<b>$x$[red]" in text
    assert "1.2 →" in text
    assert "0.3 ←" in text
    assert "+20.0" in text
    assert "2 longer than the context were left out" in " ".join(text.split())


def test_the_legend_covers_nothing() -> None:
    """It overlaps no bar, no name of a relation and no text above or below."""
    figure = syntax_figure(SYNTAX._replace(relations=SYNTAX.relations * 9), "a title " * 5)
    figure.draw_without_rendering()
    (axes,) = figure.axes
    legend = axes.get_legend()
    assert legend is not None
    box = legend.get_window_extent()
    texts = [
        figure._suptitle,
        figure._supxlabel,
        axes.xaxis.label,
        *axes.get_xticklabels(),
        *axes.get_yticklabels(),
    ]
    assert not any(box.overlaps(text.get_window_extent()) for text in texts)
    assert 0 < box.y0 < box.y1 < axes.get_window_extent().y0


def test_control_characters_are_replaced(tmp_path: Path) -> None:
    """XML allows no control characters: an SVG with such names can still be parsed."""
    bad = "a\x1b[31m\x00\u202e\ufffe"
    patched = PatchResult("residual", "self", torch.rand(2, 2), 2.0, -1.0, "difference", 1, 2)
    one = RelationScore(bad, 20, 0, 3, "to its head", 0.2, NAN, NAN, -2, 0.4, NAN, NAN)
    figures = (
        lambda: patched_figure(patched, [bad, "b"], f"title {bad}", f"below {bad}"),
        lambda: syntax_figure(SYNTAX._replace(relations=[one]), bad),
        lambda: importance_figure(importance("self"), bad),
        lambda: patterns_figure([some_patterns("self")], bad),
    )
    for number, figure in enumerate(figures):
        save(figure, tmp_path / f"{number}.svg")
        text = "".join(ElementTree.parse(tmp_path / f"{number}.svg").getroot().itertext())
        assert "a\ufffd" in text
        assert not set(bad[1:]) - set("[31m") & set(text)


@pytest.mark.parametrize(("at", "count"), [("residual", 5), ("heads", 4), ("residual", 200)])
def test_patched(tmp_path: Path, at: Any, count: int) -> None:
    patched = PatchResult(at, "self", torch.rand(3, count) * 2 - 0.5, 2.0, -1.0, "difference", 1, 2)
    names = ["<script>", *["a"] * (count - 1)]
    out = save(lambda: patched_figure(patched, names, "patched", "below"), tmp_path / "a.svg")
    text = out.read_text()
    assert "<script>" not in text
    assert ("&lt;script&gt;" in text) == (at == "residual" and count < 60)
