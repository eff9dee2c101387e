"""qkv completion: a script that completes commands, flags, choices, preset names and files in a
shell.

Reading the flags of all commands imports torch, which takes seconds; so they are kept in
completion.json. After a flag has changed, `python -m qkv.commands.completion` writes it anew, and a
test says when that was forgotten.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

from qkv.command_line.listing import COMMANDS
from qkv.command_line.shell_completion import SHELLS
from qkv.command_line.usage_errors import UsageError, suggestion

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
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, end="")
        return

    shell, *rest = arguments
    if shell not in SHELLS or rest:
        wrong = shell if shell not in SHELLS else rest[0]
        raise UsageError(
            f"completion: expected one of {', '.join(SHELLS)}, not {wrong!r}{suggestion(wrong, SHELLS)}"
        )

    summaries = {
        name: command.summary.partition(": qkv ")[0].rstrip(".")
        for name, command in COMMANDS.items()
    }
    print(SHELLS[shell](json.loads(STORED.read_text(encoding="utf-8")), summaries))


def describe_commands() -> dict[str, dict[str, Any]]:
    """For each command, and each family of a command, the flags with what may follow them."""
    from qkv.commands import finetune, lab, train
    from qkv.models.configs import CONFIGS, family
    from qkv.models.presets import PRESETS

    described = {}

    for name, command in COMMANDS.items():
        module, _, function = command.target.partition(":")
        if not command.reads_arguments and module:
            described[name] = flags_by_name(
                getattr(import_module(f"qkv.commands.{module}"), function)
            )

    described["finetune"] = flags_by_name(finetune.Flags)

    for name, experiment in lab.EXPERIMENTS.items():
        described[f"lab {name}"] = flags_by_name(experiment)

    for name in train.TRAINED:
        flags = flags_by_name(train.flags_for(CONFIGS[name]))
        flags["--preset"]["choices"] = [
            each for each, made in PRESETS.items() if family(made.config) == name
        ]
        described[f"train {name}"] = flags

    return described | {f"completion {shell}": {} for shell in SHELLS}


def flags_by_name(target: Any) -> dict[str, Any]:
    """Each flag as it is typed, with the kind of its values (switch: none), their choices, and
    whether it takes several. Arguments without a flag have the empty name."""
    from qkv.command_line.flags import flags_of

    found: dict[str, Any] = {"--help": {"kind": "switch"}}

    for flag in flags_of(target):
        choices = INSTALLED_MODELS if flag.field in ("model", "models") else list(flag.choices)
        for name in flag.names or [""] * ("" not in found):
            found[name] = {"kind": flag.kind}
            found[name] |= {"choices": choices} if choices else {}
            found[name] |= {"several": True} if flag.several else {}

    return found


def in_lines(described: dict[str, dict[str, Any]]) -> str:
    """JSON with a line for each flag, so that a change of one is a change of one line."""
    commands = []
    for command, flags in described.items():
        lines = ",\n".join(
            f"  {json.dumps(name)}: {json.dumps(flag)}" for name, flag in flags.items()
        )
        commands.append(
            f" {json.dumps(command)}: {{\n{lines}\n }}"
            if lines
            else f" {json.dumps(command)}: {{}}"
        )

    return "{\n" + ",\n".join(commands) + "\n}\n"


if __name__ == "__main__":
    STORED.write_text(in_lines(describe_commands()), encoding="utf-8")
