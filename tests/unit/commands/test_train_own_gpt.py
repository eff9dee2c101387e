"""qkv train gpt --model mine.py: the flag, what it refuses, and resuming."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qkv import plugins
from qkv.command_line.usage_errors import UsageError
from qkv.commands import train
from qkv.models import GPTConfig
from support.own_gpt_files import write_own_gpt
from support.small_training import sentences

SIZES = ["--vocabulary", "64", "--context", "16", "--width", "16", "--depth", "1", "--heads", "2"]
RUN = ["--steps", "2", "--batch-tokens", "64", "--compile", "False", "--device", "cpu"]


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(plugins, "allowed", set())
    text = tmp_path / "text.txt"
    text.write_text("\n".join(sentences()) + "\n")
    return [
        "gpt",
        "--data",
        str(text),
        "--out",
        str(tmp_path / "run"),
        *SIZES,
        *RUN,
        "--tokenizer",
        "words",
    ]


def test_a_file_is_trained_and_the_run_goes_on(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_own_gpt(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert train.run([*arguments, "--model", "mine.py"])
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["family"] == "own-gpt"
    assert config["model"] == f"{tmp_path / 'mine.py'}:GPT"

    resumed = ["gpt", "--out", str(tmp_path / "run"), "--resume", "--steps", "3"]
    assert train.run([*resumed, "--model", "mine.py"])
    plugins.allowed.clear()
    with pytest.raises(ValueError, match="set QKV_PLUGINS="):
        train.run([*resumed, "--steps", "4"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--model", "nowhere.py"], "model: there is no file nowhere.py"),
        (["--model", "mine.py", "--position", "rotary"], "position: your own GPT decides"),
        (["--model", "mine.py", "--no-across-documents"], "across_documents: your own GPT reads"),
    ],
)
def test_what_does_not_fit_is_refused(
    arguments: list[str],
    flags: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_own_gpt(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises((UsageError, ValueError), match=message):
        train.run([*arguments, *flags])


def test_without_the_flag_the_config_is_the_usual_one(arguments: list[str]) -> None:
    config, *_ = train.training_flags("gpt", [*arguments[1:], "--position", "rotary"])
    assert type(config) is GPTConfig
    assert config.position == "rotary"
