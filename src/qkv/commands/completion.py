"""qkv completion: a script that completes commands, flags, choices, preset names and files.

Reading the flags of all commands imports torch, which takes seconds, so they are stored in
completion.json. After a flag has changed, `python -m qkv.commands.completion` writes the file
again; a test fails if it is out of date.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

from qkv.command_line.listing import COMMANDS
from qkv.command_line.shell_completion import SHELLS
from qkv.command_line.usage_errors import UsageError, not_among

STORED = Path(__file__).with_suffix(".json")
INSTALLED_MODELS = ["smollm2", "minilm"]
"""Models that come as packages and are opened by their names."""
USAGE = """usage: qkv completion {bash,zsh,fish}

Print a script that completes commands, flags, choices, preset names and files.

  bash         source <(qkv completion bash)     in ~/.bashrc
  zsh          source <(qkv completion zsh)      in ~/.zshrc
  fish         qkv completion fish > ~/.config/fish/completions/qkv.fish
"""


def run(arguments: list[str]) -> None:
    """Print the script of a shell, or the usage."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, end="")
        return

    shell, *rest = arguments
    if shell not in SHELLS:
        raise UsageError(f"completion: {not_among(shell, list(SHELLS))}")
    if rest:
        raise UsageError(f"completion: {not_among(rest[0], list(SHELLS))}")

    summaries = {}
    for name, command in COMMANDS.items():
        summaries[name] = command.summary.partition(": qkv ")[0].rstrip(".")

    commands = json.loads(STORED.read_text(encoding="utf-8"))
    print(SHELLS[shell](commands, summaries))


def describe_commands() -> dict[str, dict[str, Any]]:
    """The flags of each command, and of each of its subcommands, with the values they take."""
    from qkv.commands import finetune, lab, learn, train
    from qkv.lab.experiments import modules
    from qkv.models.configs import CONFIGS, family
    from qkv.models.presets import PRESETS

    described = {}
    for name, command in COMMANDS.items():
        module, _, function = command.target.partition(":")
        if module and not command.reads_arguments:
            target = getattr(import_module(f"qkv.commands.{module}"), function)
            described[name] = flags_by_name(target)

    described["finetune"] = flags_by_name(finetune.Flags)

    flags = flags_by_name(lab.LabCommand)
    del flags[""]  # the experiment's name, which is part of the command here
    for name in (lab.ALL, *modules()):
        described[f"lab {name}"] = flags

    for name, matrix in lab.MATRICES.items():
        described[f"lab {name}"] = flags_by_name(matrix.command)

    for name, subcommand in learn.SUBCOMMANDS.items():
        described[f"learn {name}"] = flags_by_name(subcommand)

    for name in train.TRAINED:
        presets = [key for key, preset in PRESETS.items() if family(preset.config) == name]
        flags = flags_by_name(train.flags_for(CONFIGS[name]))
        flags["--preset"]["choices"] = presets
        if "--model" in flags:  # a file, not a model that was trained
            flags["--model"] = {"kind": "file"}

        described[f"train {name}"] = flags

    for shell in SHELLS:
        described[f"completion {shell}"] = {}

    return described


def flags_by_name(target: Any) -> dict[str, Any]:
    """Each flag as it is typed, with its kind, its choices, and whether it takes several values.

    Positional arguments have the empty name.
    """
    from qkv.command_line.flags import flags_of

    by_name: dict[str, Any] = {"--help": {"kind": "switch"}}

    for flag in flags_of(target):
        values: dict[str, Any] = {"kind": flag.kind}
        if flag.field in ("model", "models"):
            values["choices"] = INSTALLED_MODELS
        elif flag.choices:
            values["choices"] = list(flag.choices)

        if flag.several:
            values["several"] = True

        for name in flag.names:
            by_name[name] = values

        if not flag.names:
            by_name.setdefault("", values)

    return by_name


def as_json(described: dict[str, dict[str, Any]]) -> str:
    """JSON with a line for each flag, so that a changed flag is one changed line."""
    commands = []
    for command, flags in described.items():
        lines = [f"\n  {json.dumps(name)}: {json.dumps(flag)}" for name, flag in flags.items()]
        content = ",".join(lines)
        if content:
            content += "\n "

        commands.append(f" {json.dumps(command)}: {{{content}}}")

    return "{\n" + ",\n".join(commands) + "\n}\n"


if __name__ == "__main__":
    STORED.write_text(as_json(describe_commands()), encoding="utf-8")
