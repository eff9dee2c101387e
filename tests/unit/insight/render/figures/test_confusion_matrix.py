"""Confusion matrix: scores equal a count by hand, and class names are shown as plain text."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
from rich.console import Console
from rich.table import Table

from qkv.insight.render.figures.confusion_matrix import (
    MOST,
    NUMBERED,
    class_scores,
    confusion_table,
    draw,
    draw_confusion,
    gathered,
    shortened,
    summary,
)
from qkv.insight.render.figures.figure_style import STYLE

ODD = ["$x_1$ [bold]b[/bold]", "line\nbreak", "\x1b[31mred"]


def printed(table: Table) -> str:
    console = Console(width=200, record=True, file=StringIO())
    console.print(table)
    return console.export_text()


def random_counts(classes: int) -> np.ndarray:
    counts = np.random.default_rng(0).integers(0, 9, (classes, classes))
    return counts + np.diag(np.full(classes, 20))


def test_scores_are_those_of_a_count_by_hand() -> None:
    random = np.random.default_rng(1)
    true = random.integers(0, 4, 200)
    predicted = random.integers(0, 5, 200)  # the fifth class is predicted but never true
    counts = np.zeros((6, 6), dtype=np.int64)  # the sixth is neither
    np.add.at(counts, (true, predicted), 1)
    f1s = []
    for number, score in enumerate(class_scores(counts)):
        both = int(((true == number) & (predicted == number)).sum())
        count = int((true == number).sum())
        times = int((predicted == number).sum())
        assert (score.rows, score.predicted) == (count, times)
        if number == 5:
            assert np.isnan([score.precision, score.recall, score.f1]).all()
            continue
        assert score.precision == both / times
        assert np.isnan(score.recall) if number == 4 else score.recall == both / count
        harmonic = 2 / (times / both + count / both) if both else 0.0
        assert score.f1 == pytest.approx(harmonic)
        f1s.append(harmonic)
    assert f"macro F1 {100 * sum(f1s) / 5:.1f}" in summary(counts, "macro F1 {f1:.1f}")


@pytest.mark.parametrize(
    "kind", [np.array, torch.tensor, list, lambda counts: np.array(counts, dtype=float)]
)
def test_few_classes_have_the_whole_matrix(kind: Any) -> None:
    text = printed(confusion_table(kind([[40, 2], [3, 55]]), ["negative", "positive"]))
    rows = [line.strip("│ \n").split("│") for line in text.splitlines() if "│" in line]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["negative", "42", "93.0", "95.2", "94.1", "40", "2"],
        ["positive", "58", "96.5", "94.8", "95.7", "3", "55"],
    ]
    assert "95 of 100 right: accuracy 95.0%, macro F1 94.9" in text


def test_many_classes_list_their_most_frequent_confusions() -> None:
    counts = np.diag(np.full(9, 50))
    counts[2, [0, 4, 7, 8]] = 1, 30, 2, 6
    text = printed(confusion_table(counts, [f"c{n}" for n in range(9)]))
    assert "predicted n" not in text
    lines = {
        line.split()[1]: line.split("│")[-2].strip()
        for line in text.splitlines()
        if line.startswith("│")
    }
    assert lines["c2"] == "c4 30, c8 6, c7 2"
    assert lines["c0"] == "-"


def test_of_very_many_classes_the_most_frequent_are_shown() -> None:
    counts = np.diag(np.arange(1, 101))
    text = printed(confusion_table(counts, [f"c{n}" for n in range(100)]))
    assert sum(line.startswith("│") for line in text.splitlines()) == MOST
    assert f"the {MOST} most frequent of 100 classes" in " ".join(text.split())
    few, names = gathered(counts, [f"c{n}" for n in range(100)])
    assert names == [*(f"c{n}" for n in range(40, 100)), "40 others"]
    assert few.diagonal().tolist() == [*range(41, 101), sum(range(1, 41))]
    assert few.sum() == counts.sum()


def test_names_are_plain_text() -> None:
    text = printed(confusion_table(np.eye(3), ODD))
    for name in ("$x_1$ [bold]b[/bold]", "line break", "\ufffd[31mred"):
        assert f"│ {name} " in text
        assert f"predicted {name}" in text
    assert "\x1b[31m" not in text
    long = shortened("the beginning of a very long name with its own end")
    assert long == "the beginnin…its own end"


@pytest.mark.parametrize("classes", [2, 17, 50])
def test_the_figure_has_shares_by_row_and_numbers_where_they_fit(classes: int) -> None:
    counts = random_counts(classes)
    counts[1, :] = 0  # never true
    names = [f"class {n}" for n in range(classes)]
    with matplotlib.rc_context(STYLE):
        figure = draw(counts, names, "title")
    axes, bar = figure.axes
    (image,) = axes.images
    shares = np.asarray(image.get_array())
    np.testing.assert_allclose(shares.sum(1), [float(row != 1) for row in range(classes)])
    np.testing.assert_allclose(shares[0], counts[0] / counts[0].sum())
    assert [label.get_text() for label in axes.get_xticklabels()] == names
    assert [label.get_text() for label in axes.get_yticklabels()] == names
    cells = {
        text.get_position(): text.get_text() for text in axes.texts if text.get_text().isdecimal()
    }
    expected = {
        (predicted, true): str(counts[true, predicted])
        for true in range(classes)
        for predicted in range(classes)
        if classes <= NUMBERED and (counts[true, predicted] or classes == 2)
    }
    assert cells == expected
    assert [label.get_text() for label in bar.get_yticklabels()] == [
        "0%",
        "1%",
        "5%",
        "20%",
        "50%",
        "100%",
    ]


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_figure_is_written_with_any_name(tmp_path: Path, ending: str) -> None:
    out = draw_confusion(np.eye(3), ODD, tmp_path / "new" / f"c.{ending}", "$a_b$")
    assert out.stat().st_size > 1000
    if ending == "svg":
        assert "$x_1$ [bold]b[/bold]" in out.read_text()
        assert "$a_b$" in out.read_text()


@pytest.mark.parametrize(
    ("counts", "labels", "message"),
    [
        (
            [[1, 2]],
            ["a"],
            r"counts: .*\(1, 1\), not \(1, 2\)",
        ),
        ([[0]], ["a"], "counts: .*not all 0"),
        ([[2, -1], [0, 1]], ["a", "b"], "counts: .*0 or more"),
    ],
)
def test_other_counts_are_refused(counts: Any, labels: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        confusion_table(counts, labels)


def test_another_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^path: .*\.pdf"):
        draw_confusion(np.eye(2), ["a", "b"], tmp_path / "c.gif")
