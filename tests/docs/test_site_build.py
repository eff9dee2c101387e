"""The site builds without warnings, with its search index and nothing from the network."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason='pip install ".[docs]"')
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict"]
    result = subprocess.run(
        [*command, "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert (result.returncode, result.stdout + result.stderr) == (0, "")
    return folder


def read(site: Path, name: str) -> str:
    return (site / name).read_text(encoding="utf-8")


def test_pages_load_nothing_from_the_network(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(r'(?:src=|<link[^>]*href=)"?(https?:[^" >]*)', page.read_text("utf-8"))
        assert loaded == [], page


def test_search_knows_every_kind_of_page(site: Path) -> None:
    index = json.loads(read(site, "search/search_index.json"))
    places = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert {"learn/04-masks.html", "reference/qkv.nn.html", "glossary.html"} <= places
    assert read(site, "search/search_index.js").startswith("var __index = ")


def test_formulas_code_verdicts_and_exercises_are_filled_in(site: Path) -> None:
    page = read(site, "learn/01-lookup.html")
    assert "<math" in page
    assert 'class="arithmatex"' not in page
    assert "src/qkv/nn/attention/lookup.py" in page
    assert "qkv lab lookup: holds" in page
    assert "ex01_lookup.py" in page
    assert 'data-picture="lookup"' in page
    for path in (site / "learn").glob("*.html"):
        assert "```" not in path.read_text("utf-8"), path.name


def test_the_reference_has_signatures_and_arguments(site: Path) -> None:
    page = read(site, "reference/qkv.nn.attention.html")
    assert 'id="attend"' in page
    assert "need_weights" in page
    assert "qkv.nn.attention.attend" in page


def test_links_to_code_lead_to_copies(site: Path) -> None:
    page = read(site, "lectures.html")
    link = re.search(r'href="?(source/src/qkv/nn/embedding\.py\.txt)', page)
    assert link is not None
    assert "class Embedding" in read(site, link[1])


def test_notebooks_are_pages(site: Path) -> None:
    page = read(site, "learn/notebooks.html")
    found = re.findall(r'href="?\.\./(notebooks/\w+\.html)', page)
    assert len(found) == 8
    for name in found:
        assert "<code" in read(site, name)


def test_the_quiz_of_the_course_is_a_page(site: Path) -> None:
    pytest.importorskip("qkv.learn.quiz")
    assert "quiz.html" in read(site, "learn/index.html")
    assert "<script" in read(site, "learn/quiz.html")


def test_code_that_is_gone_fails_the_build() -> None:
    pytest.importorskip("material", reason='pip install ".[docs]"')
    from website.library_code import library_code

    assert library_code("nn/attention/score.py", ["dot"]).startswith("def dot(")
    assert '"""The dot product <q, k>."""' in library_code("nn/attention/score.py", ["dot"])
    with pytest.raises(ValueError, match="does not define dott"):
        library_code("nn/attention/score.py", ["dott"])
