"""The command line as a person types it."""

from __future__ import annotations

import subprocess
import sys


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
