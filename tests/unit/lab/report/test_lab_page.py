"""The page, the book and result.json: what they hold, escaped and without a network."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from qkv.lab.report.inline_svg import inline_svg
from qkv.lab.report.lab_book import write_book
from qkv.lab.report.lab_page import code_text, items, page
from qkv.lab.report.result_files import as_json, is_written, read_result, write_results
from support.planted_experiment import planted_results, results_of

RESULTS = planted_results()


@pytest.fixture(scope="module")
def text() -> str:
    return page(RESULTS)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A book with one experiment."""
    book = tmp_path_factory.mktemp("book")
    write_results(RESULTS, book / "planted")
    return book


def test_the_page_holds_claim_verdict_table_and_remarks(text: str) -> None:
    for part in (
        "<h1>The arm &lt;with&gt; is better &amp; more than the arm without.</h1>",
        '<span class="word holds">holds</span>',
        "lectures: 001 L2, 002 L3",
        "<li>Numbers that are &lt;made&gt; up.</li>",
        "<li>Run <code>qkv lab planted</code>.</li>",
        "It is <code>planted</code>.",
        "<li><code>qkv lab planted --seeds 9</code></li>",
        "Student&#x27;s t, paired, n = 3",
        '<th scope="col">without</th>',
        "a &lt;long&gt; &amp; odd name",
        "<dd><code>qkv lab</code></dd>",
    ):
        assert part in text


def test_no_text_of_an_experiment_is_markup(text: str) -> None:
    for tag in ("<with>", "<made>", "<long>", "<so>"):
        assert tag not in text


def test_the_page_needs_no_network_and_no_inline_style(text: str) -> None:
    body = text[text.index("<body>") :]
    assert ' style="' not in body
    assert "<style" not in body
    assert re.findall(r"(?:src|href)=\"(?!#|data:)[^\"]*\"", body) == []
    assert "default-src 'none'" in text
    assert "unsafe" not in text[: text.index("<style>")]


def test_every_mark_of_the_data_is_in_a_picture(text: str) -> None:
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])
    assert len(data["marks"]) == 18
    for mark in data["marks"]:
        assert text.count(f'id="{mark["id"]}"') == 1

    (mark,) = [mark for mark in data["marks"] if mark["id"] == "mark-0-0-2"]
    assert mark["title"] == "with, length 4"
    assert "±" in mark["text"]
    assert mark["units"].startswith("seeds: ")


def test_a_picture_has_attributes_in_place_of_styles() -> None:
    svg = (
        '<?xml version="1.0"?><svg width="9pt" height="9pt" xmlns="http://www.w3.org/2000/svg">'
        "<metadata>x</metadata><defs><style>*{}</style></defs>"
        '<g id="axes_1"><path id="mark-0-1-2" style="fill: #ff0000; stroke-width: 0.8"/>'
        "<text style=\"font: 700 11px 'DejaVu Sans'; text-anchor: middle\">a &lt; b</text>"
        '<use clip-path="url(#p1)"/><rect id="p1"/></g></svg>'
    )
    inline = inline_svg(svg, 'a "label"')
    assert inline == (
        '<svg role="img" aria-label="a &quot;label&quot;"><defs></defs>'
        '<g><path id="mark-0-1-2" fill="#ff0000" stroke-width="0.8"/>'
        '<text font-size="11" font-weight="700" text-anchor="middle">a &lt; b</text>'
        '<use clip-path="url(#p1)"/><rect id="p1"/></g></svg>'
    )


def test_a_step_that_begins_with_a_command_shows_it_as_code() -> None:
    assert items(["qkv lab a --seeds 9: does it `<hold>`?", "Why?"]) == (
        "<ul><li><code>qkv lab a --seeds 9</code>: does it <code>&lt;hold&gt;</code>?</li>"
        "<li>Why?</li></ul>"
    )


def test_text_between_backticks_is_code() -> None:
    assert code_text("a `b<c` d") == "a <code>b&lt;c</code> d"


def test_result_json_is_valid_and_complete(written: Path) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    content = (written / "planted" / "result.json").read_text()
    result = json.loads(content, parse_constant=refuse)
    assert result["verdict"] == "holds"
    assert result["findings"][0]["effect"]["units"] == 3
    assert len(result["measured"]) == len(RESULTS.rows)
    assert tuple(result["measured"][0]) == tuple(RESULTS.rows[0])
    means = {tuple(row[:3]): row[3] for row in result["means"]}
    assert means["with", "curve", 4] == RESULTS.interval("with", "curve", 4).mean


def test_results_of_one_seed_have_no_infinite_number() -> None:
    result = as_json(planted_results(seeds=1))
    assert result["findings"][0]["effect"]["low"] is None
    json.dumps(result, allow_nan=False)


def test_results_are_written_once(written: Path, tmp_path: Path) -> None:
    assert is_written(RESULTS, written / "planted")
    assert not is_written(planted_results(effect=2.0), written / "planted")
    assert not is_written(RESULTS, tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '"text"'])
def test_a_damaged_result_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "result.json").write_text(content)
    assert read_result(tmp_path) is None
    assert read_result(tmp_path / "missing") is None


def test_the_book_lists_what_was_run(written: Path) -> None:
    (written / "empty").mkdir()
    (written / "note.txt").touch()
    write_book(written)
    book = (written / "index.html").read_text()

    assert book.count("<tr>") == 2
    assert '<a href="planted/index.html">planted</a>' in book
    assert "The arm &lt;with&gt; is better" in book
    assert re.search(r"With is better: [\d.]+ \[[\d.]+, [\d.]+\]", book)
    assert '1 <span class="word holds">holds</span>' in book
    assert "data:image/png;base64," in book


def test_a_verdict_against_the_claim_is_on_the_page() -> None:
    measured = {}
    for seed in range(3):
        measured["with", seed] = {"score": 0.1 * seed}
        measured["without", seed] = {"score": 5.0}

    results = results_of(measured)
    panels = results.experiment.panels[1:2]
    results = replace(results, experiment=replace(results.experiment, panels=panels))
    assert '<span class="word not">does not hold</span>' in page(results)
