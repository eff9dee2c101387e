"""qkv draw: a picture of a preset, of a saved model and of the lectures' figures."""

from __future__ import annotations

from pathlib import Path

import pytest

import qkv
from qkv.command_line.parsing import run_command
from qkv.command_line.usage_errors import UsageError
from qkv.commands.draw import FIGURES, DrawCommand
from qkv.models import RNNConfig, build

# tyro's value for a missing flag does not have the annotated type.
pytestmark = pytest.mark.usefixtures("without_shape_checks")


def drawn(*arguments: str) -> None:
    run_command(DrawCommand, list(arguments), "qkv draw")


@pytest.mark.parametrize("name", FIGURES)
def test_figures_of_the_lectures(name: str, tmp_path: Path) -> None:
    out = tmp_path / f"{name}.svg"
    drawn(name, "--out", str(out))
    assert out.read_text(encoding="utf-8").lstrip().startswith("<?xml")


def test_a_large_preset_needs_no_memory(tmp_path: Path) -> None:
    out = tmp_path / "large.svg"
    drawn("gpt3-13b", "--out", str(out))
    text = out.read_text(encoding="utf-8")
    assert "40 heads of 128" in text
    assert "12,936.5 M parameters" in text


def test_a_saved_model_and_the_default_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    qkv.save(build(RNNConfig(vocabulary=12, width=8, cell="lstm")), tmp_path / "runs" / "mine")
    drawn("runs/mine")
    assert capsys.readouterr().out == "mine.svg\n"
    text = Path("mine.svg").read_text(encoding="utf-8")
    assert "LSTM" in text
    assert "12 x 8" in text


def test_what_cannot_be_drawn_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no model or figure 'gtp2'; did you mean gpt2"):
        drawn("gtp2")
    with pytest.raises(UsageError, match="out: expected the name"):
        drawn("gpt2", "--out", str(tmp_path / "gpt2.html"))
