"""The command line as a person types it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def qkv(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "qkv.cli", *words], capture_output=True, text=True, timeout=120)


def test_presets_lists_every_published_model() -> None:
    result = qkv("presets")
    assert result.returncode == 0
    assert "gpt2-xl" in result.stdout
    assert "1,557.6 M" in result.stdout


def test_help_names_the_commands() -> None:
    result = qkv("--help")
    assert result.returncode == 0
    assert "demo" in result.stdout
    assert "presets" in result.stdout


def test_an_unknown_command_says_which_there_are() -> None:
    result = qkv("trian")
    assert result.returncode != 0
    assert "demo" in result.stderr
    assert "presets" in result.stderr


def test_text_from_standard_input_is_trained_on(tmp_path: Path) -> None:
    text = "cats chase mice and mice fear cats.\n" * 40
    flags = "--data - --tokenizer characters --width 8 --depth 1 --heads 1 --context 16 --batch-tokens 64 --steps 2"
    command = [sys.executable, "-m", "qkv", "train", "gpt", *flags.split(), "--out", str(tmp_path / "run")]
    environment = {**os.environ, "QKV_CACHE": str(tmp_path / "cache")}
    result = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, env=environment)
    assert result.returncode == 0, result.stderr
    assert "after step 2" in result.stdout  # a sample of what it says
    assert (tmp_path / "run" / "model.safetensors").exists()
