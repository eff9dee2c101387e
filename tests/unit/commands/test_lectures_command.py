"""qkv lectures: the table, JSON, and a start without torch."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from qkv.command_line.parsing import run_command
from qkv.command_line.usage_errors import UsageError
from qkv.commands import lectures

# tyro's value for a missing flag does not have the annotated type.
pytestmark = pytest.mark.usefixtures("without_shape_checks")


def typed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    run_command(lectures.run, list(arguments), "qkv lectures")
    return capsys.readouterr().out


def test_a_word_shows_its_rows_by_lecture(capsys: pytest.CaptureFixture[str]) -> None:
    shown = typed(capsys, "bahdanau")
    assert "001: Lecture 6: Attention and Transformers" in shown
    assert "B7" in shown
    assert "B8" not in shown
    assert "1 row: 1 works" in shown


def test_json_has_one_object_per_row(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(typed(capsys, "--lecture", "003", "--claims", "--json"))
    assert {row["id"][0] for row in rows} == {"D"}
    assert all(row["claim"] for row in rows)
    scaling = next(row for row in rows if row["id"] == "D27")
    assert scaling["experiments"] == ["scaling"]
    assert scaling["files"] == ["nn/attention/score.py:dot"]


def test_a_word_without_rows_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="did you mean attention"):
        run_command(lectures.run, ["atention"], "qkv lectures")


def test_it_starts_without_torch() -> None:
    program = (
        "import sys; sys.argv = ['qkv', 'lectures', 'softmax']\n"
        "from qkv.cli import main; main()\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "qkv lab scaling" in result.stdout
