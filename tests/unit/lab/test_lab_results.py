"""Tables of what was measured: rows, intervals, text, HTML."""

from __future__ import annotations

from typing import Any

import pytest

from qkv.lab import Results
from support.planted_experiment import planted_results, results_of

MEASURED: dict[tuple[str, int], Any] = {
    ("with", 0): {"score": 3.0, "curve": {1: 1.0, 2: 2.0}},
    ("without", 0): {"score": 1.0, "curve": {1: 0.5}},
    ("with", 1): {"score": 5.0, "curve": {1: 3.0, 2: 4.0}},
    ("without", 1): {"score": 2.0, "curve": {1: 1.5}},
}


def test_rows_are_the_numbers_in_long_form() -> None:
    rows = results_of(MEASURED).rows
    assert len(rows) == 10
    assert tuple(rows[0]) == ("with", 0, "score", None, 3.0)
    assert tuple(rows[2]) == ("with", 0, "curve", 2, 2.0)
    assert rows[0]._fields == ("arm", "unit", "measure", "x", "y")


def test_numbers_are_found_by_arm_measure_and_x() -> None:
    results = results_of(MEASURED)
    assert results.values("with", "curve", 1) == [1.0, 3.0]
    assert results.interval("with", "curve", 1).mean == 2.0
    assert results.xs("curve") == [1, 2]
    assert results.xs("curve", "without") == [1]
    assert results.arms("curve") == ["with", "without"]
    assert results.units == [0, 1]


def test_a_check_that_asks_for_what_is_missing_says_so() -> None:
    with pytest.raises(ValueError, match="planted: no curve of without at 2"):
        results_of(MEASURED).reader(0)("without", "curve", 2)


def test_sentences_are_units_and_seeds_of_a_sentence_are_averaged() -> None:
    measured = {
        ("with", 0): {"score": [3.0, 4.0, 5.0]},
        ("without", 0): {"score": [1.0, 2.0, 3.0]},
        ("with", 1): {"score": [5.0, 6.0, 7.0]},
        ("without", 1): {"score": [1.0, 2.0, 3.0]},
    }
    results = results_of(measured, unit="sentence")
    assert results.units == [0, 1, 2]
    assert results.values("with", "score") == [4.0, 5.0, 6.0]
    assert results.findings[0].effect.mean == pytest.approx(3.0)
    assert results.findings[0].effect.units == 3
    assert len(results.rows) == 12
    assert "3 sentences" in results.caption


@pytest.mark.parametrize(
    ("effect", "verdict"), [(1.0, "holds"), (-1.0, "does not hold"), (0.0, "does not hold")]
)
def test_the_verdict_follows_the_planted_effect(effect: float, verdict: str) -> None:
    assert planted_results(effect, seeds=5).verdict == verdict


def test_results_print_as_a_table() -> None:
    text = repr(planted_results())
    assert "Means with 95% intervals over 3 seeds." in text
    assert text.endswith("holds: The arm <with> is better & more than the arm without.")
    assert "│ score" in text


def test_a_printed_table_shows_some_of_many_x() -> None:
    curve = {float(x): 1.0 * x for x in range(0, 101, 2)}
    results = results_of({(arm, 0): {"curve": curve} for arm in ("with", "without")}, checks=())
    assert len(list(results.lines())) == 51
    shown = [line[1] for line in results.lines(10)]
    assert len(shown) == 10
    assert shown[0] == "0"
    assert shown[-1] == "100"
    assert "Some x are left out" in repr(results)


def test_results_are_a_table_in_a_notebook_with_escaped_text() -> None:
    html = planted_results()._repr_html_()
    assert "<th>with</th>" in html
    assert "a &lt;long&gt; &amp; odd name" in html
    assert "<long>" not in html
    assert "<b>holds</b>" in html


def test_a_data_frame_takes_the_rows() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(planted_results().rows)
    assert list(frame.columns) == ["arm", "unit", "measure", "x", "y"]
    means = frame[frame.measure == "score"].groupby("arm").y.mean()
    assert means["with"] - means["without"] == pytest.approx(1.0, abs=0.2)


def test_measures_without_x_have_no_column_for_it() -> None:
    results: Results = results_of({("with", 0): {"a": 1.0}, ("without", 0): {"a": 2.0}})
    assert results.heads() == ["measure", "with", "without"]
    assert list(results.lines()) == [["a", "1", "2"]]
    assert results.caption == "One seed, so without intervals."
