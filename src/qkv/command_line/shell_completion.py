"""Completion scripts for bash, zsh and fish; the scripts hold all flags and never start Python."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

Flags = Mapping[str, Mapping[str, Any]]
"""Each flag as it is typed, with its kind and choices; positional arguments have the empty name."""
Commands = Mapping[str, Flags]
"""The flags of each command, or of a command and its subcommand: `train gpt`."""

BASH = Path(__file__).with_name("completion.bash")
"""The script of bash; @names@ stand for the commands, their flags and the values of flags."""
ZSH = """#compdef qkv
# Completion of qkv for zsh: source <(qkv completion zsh)
autoload -U +X compinit && (( $+functions[compdef] )) || compinit
autoload -U +X bashcompinit && bashcompinit
"""


def bash(commands: Commands, summaries: Mapping[str, str]) -> str:
    """A completion function for bash; a flag with several values lasts until the next flag."""
    families = []
    for name, subcommands in subcommands_of(commands).items():
        families.append(f'        {name}) words="{" ".join(subcommands)}" ;;')

    several = []
    flags = []
    values: list[str] = []

    for command, by_name in commands.items():
        several += [f'"{command} {name}"' for name, flag in by_name.items() if flag.get("several")]
        if by_name:
            typed = " ".join(filter(None, by_name))
            flags.append(f'            "{command}") words="{typed}" ;;')

        values += bash_values(command, by_name)

    parts = {
        "commands": " ".join(summaries),
        "families": "\n".join(families),
        "several": " | ".join(several),
        "flags": "\n".join(flags),
        "values": "\n".join(values),
    }
    script = BASH.read_text(encoding="utf-8")
    for name, text in parts.items():
        script = script.replace(f"@{name}@", text)

    return script.rstrip("\n")


def bash_values(command: str, flags: Flags) -> Iterator[str]:
    """The cases of a command's flags: the candidates for the value of each.

    After a switch, and where no flag waits for a value, a positional argument may follow.
    """
    switch = {"kind": "switch"}
    by_candidates: dict[str, list[str]] = {}

    for name, flag in {"": switch, **flags}.items():
        if flag["kind"] == "switch":
            flag = flags.get("", flag)

        candidates = bash_candidates(name, flag)
        by_candidates.setdefault(candidates, []).append(f'"{command} {name}"')

    for candidates, patterns in by_candidates.items():
        yield f"            {' | '.join(patterns)}) {candidates} ;;"


def bash_candidates(name: str, flag: Mapping[str, Any]) -> str:
    """The assignments of a value's completions: words, files or nothing (`:`)."""
    assignments = []
    if flag.get("choices"):
        assignments.append(f'words="{" ".join(flag["choices"])}"')

    if flag["kind"] == "file" or (flag["kind"] == "text" and name != "--preset"):
        assignments.append("files=1")

    return "; ".join(assignments) or ":"


def zsh(commands: Commands, summaries: Mapping[str, str]) -> str:
    """The function of bash, which zsh can run."""
    return ZSH + bash(commands, summaries)


def fish(commands: Commands, summaries: Mapping[str, str]) -> str:
    """A `complete` line for each command, subcommand and flag."""
    lines = [
        "# Completion of qkv for fish: qkv completion fish > ~/.config/fish/completions/qkv.fish",
        "complete -c qkv -n __fish_use_subcommand -f",
    ]
    for name, summary in summaries.items():
        lines.append(
            f"complete -c qkv -n __fish_use_subcommand -f -a {name} -d {shlex.quote(summary)}"
        )

    for command, subcommands in subcommands_of(commands).items():
        names = " ".join(subcommands)
        condition = (
            f"__fish_seen_subcommand_from {command}; and not __fish_seen_subcommand_from {names}"
        )
        lines.append(f"complete -c qkv -n {shlex.quote(condition)} -f -a {shlex.quote(names)}")

    for command, flags in commands.items():
        tests = [f"__fish_seen_subcommand_from {name}" for name in command.split()]
        condition = shlex.quote("; and ".join(tests))

        for name, flag in flags.items():
            if name:  # fish completes positional arguments as files without a line
                lines.append(f"complete -c qkv -n {condition} {fish_flag(name, flag)}")

    return "\n".join(lines)


def fish_flag(name: str, flag: Mapping[str, Any]) -> str:
    """The options of `complete` for one flag and its values."""
    option = f"-s {name[1:]}"
    if name.startswith("--"):
        option = f"-l {name[2:]}"

    if flag.get("choices"):
        return f"{option} -x -a {shlex.quote(' '.join(flag['choices']))}"

    return option + {"switch": "", "number": " -x"}.get(flag["kind"], " -r -F")


def subcommands_of(commands: Commands) -> dict[str, list[str]]:
    """The subcommands of each command that has some."""
    subcommands: dict[str, list[str]] = {}
    for command in commands:
        first, _, second = command.partition(" ")
        if second:
            subcommands.setdefault(first, []).append(second)

    return subcommands


SHELLS: dict[str, Callable[[Commands, Mapping[str, str]], str]] = {
    "bash": bash,
    "zsh": zsh,
    "fish": fish,
}
