"""The project: its starter repository and its report page."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

import qkv
from qkv.learn.own_gpt_file import MINE
from qkv.learn.project import start_project, write_report
from qkv.learn.project.project_report import markdown, own_text
from qkv.learn.project.starter import FILES
from qkv.models import GPTConfig
from qkv.training import DataConfig, OptimizerConfig, RunConfig
from support.small_training import sentences


def test_the_repository_has_brief_rubric_commands_and_tests(tmp_path: Path) -> None:
    written = start_project(tmp_path / "repository")
    names = {str(path.relative_to(tmp_path / "repository")) for path in written}
    assert {*FILES, "mine.py"} <= names
    brief = (tmp_path / "repository" / "README.md").read_text(encoding="utf-8")
    makefile = (tmp_path / "repository" / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"`make (\w+)`", brief)):
        assert f"\n{target}:\n" in makefile

    rubric = (tmp_path / "repository" / "rubric.md").read_text(encoding="utf-8")
    points = [int(number) for number in re.findall(r"\| (\d+) \|$", rubric, re.MULTILINE)]
    assert sum(points) == 100
    compile((tmp_path / "repository/tests/test_my_gpt.py").read_text(), "test_my_gpt.py", "exec")


def test_her_own_files_are_kept(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("mine = 1\n")
    start_project(tmp_path)
    assert (tmp_path / "mine.py").read_text() == "mine = 1\n"
    assert start_project(tmp_path) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file; choose a folder"):
        start_project(tmp_path / "file")


def test_mine_imports_the_gpt_of_exercise_9() -> None:
    compile(MINE, "mine.py", "exec")
    assert "from ex09_gpt import GPT" in MINE


def test_the_report_collects_curves_samples_views_scores_and_text(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n".join(sentence + " and boats" for sentence in sentences()) + "\n")
    run = tmp_path / "runs" / "mine"
    qkv.train(
        GPTConfig(vocabulary=64, context=16, width=16, depth=1, heads=2),
        DataConfig(data=(str(text),), tokenizer="words"),
        OptimizerConfig(),
        RunConfig(out=run, steps=2, batch_tokens=64, device="cpu", compile=False),
        console=Console(file=io.StringIO()),
    )
    report = "# Boats & mice\n\n## Data\n\nA <b>grammar</b> of `five` nouns.\n\n- one\n- two\n"
    (tmp_path / "report.md").write_text(report)
    page = write_report(run)
    assert page == tmp_path / "report.html"
    content = page.read_text(encoding="utf-8")
    assert "<h1>Boats &amp; mice</h1>" in content
    assert "A &lt;b&gt;grammar&lt;/b&gt; of <code>five</code> nouns." in content
    for heading in ("Data", "Scores", "Curves", "Samples", "Attention", "The run"):
        assert f"<h2>{heading}</h2>" in content
    assert "perplexity" in content
    assert (tmp_path / "report-attention.html").is_file()


def test_without_a_text_the_page_says_where_to_write(tmp_path: Path) -> None:
    title, text = own_text(tmp_path / "report.md")
    assert title == ""
    assert "write report.md beside this page" in text
    assert markdown("### Small\nline\n\n- a\n- `b`") == (
        "<h3>Small</h3><p>line</p><ul><li>a</li><li><code>b</code></li></ul>"
    )
    with pytest.raises(ValueError, match="not a run"):
        write_report(tmp_path)
