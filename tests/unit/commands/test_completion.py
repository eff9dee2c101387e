"""Completion scripts: bash runs its own; zsh and fish check theirs where they are installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from qkv import cli
from support.command_fixtures import Qkv

ASK = r"""
source "$1"
while IFS= read -r line; do
    read -r -a COMP_WORDS <<< "$line"
    if [[ "$line" == *" " ]]; then COMP_WORDS+=(""); fi
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _qkv
    echo "${COMPREPLY[*]}"
done
"""


@pytest.fixture
def script(qkv: Qkv, tmp_path: Path) -> Path:
    path = tmp_path / "qkv.bash"
    path.write_text(qkv("completion", "bash").out)
    return path


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_flags_choices_presets_and_files(
    script: Path, tmp_path: Path
) -> None:
    (tmp_path / "text one.txt").touch()
    completions = {
        "qkv ge": {"generate"},
        "qkv ": {*cli.COMMANDS, "--help", "--version"},
        "qkv train ": {"gpt", "bert", "transformer", "rnn", "rnn-lm", "--help"},
        "qkv help tra": {"train", "translate"},
        "qkv help train g": {"gpt"},
        "qkv train gpt --pres": {"--preset"},
        "qkv train gpt --preset gpt2": {"gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"},
        "qkv train gpt --norm = r": {"rms"},
        "qkv train gpt --data a b te": {"text one.txt"},
        "qkv generate smo": {"smollm2"},
        "qkv generate te": {"text one.txt"},
        "qkv generate x --beyond ": {"refuse", "slide", "extend"},
        "qkv generate x --length ": set(),
        "qkv generate x --length 5 te": {"text one.txt"},
        "qkv generate x --json --be": {"--beams", "--beyond"},
        "qkv lab mask --lay": {"--layer"},
        "qkv completion ": {"bash", "zsh", "fish", "--help"},
        "qkv nothing --x": set(),
    }

    result = subprocess.run(
        ["bash", "-c", ASK, "bash", str(script)],
        input="\n".join(completions) + "\n",
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )

    assert result.stderr == ""
    lines = result.stdout.replace("text one.txt", "text_one.txt").split("\n")
    for (typed, expected), line in zip(completions.items(), lines, strict=False):
        candidates = line.replace("text_one.txt", "text one.txt")
        if "text one.txt" not in expected:
            assert (typed, set(candidates.split())) == (typed, expected)
        else:
            assert (typed, {candidates}) == (typed, expected)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_script_has_every_command_and_is_valid(qkv: Qkv, tmp_path: Path, shell: str) -> None:
    printed = qkv("completion", shell)
    assert printed.code == 0
    assert all(
        name in printed.out
        for name in (*cli.COMMANDS, "transformer", "positions", "gpt-tiny", "inverse-sqrt")
    )
    assert "@" not in printed.out, "every mark of the template is filled in"
    if shutil.which(shell):
        path = tmp_path / "script"
        path.write_text(printed.out)
        checked = subprocess.run([shell, "-n", path], capture_output=True, text=True)
        assert (checked.returncode, checked.stderr) == (0, "")


def test_fish_has_a_line_for_every_flag(qkv: Qkv) -> None:
    lines = qkv("completion", "fish").out.splitlines()
    assert all(line.startswith(("complete -c qkv ", "#")) for line in lines)
    assert "complete -c qkv -n '__fish_seen_subcommand_from generate' -l length -x" in lines
    assert "complete -c qkv -n '__fish_seen_subcommand_from generate' -s n -x" in lines
    assert any(
        "__fish_seen_subcommand_from train; and __fish_seen_subcommand_from bert" in line
        for line in lines
    )
