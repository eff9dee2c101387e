"""Completion scripts for bash, zsh and fish, from the flags of every command. The scripts never
start Python.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

Described = Mapping[str, Mapping[str, Mapping[str, Any]]]
BASH = r"""# Completion of qkv for bash: source <(qkv completion bash)
_qkv() {
    local cur="${COMP_WORDS[COMP_CWORD]}" at=1 command flag="" words="" files="" i
    COMPREPLY=()
    if [[ "${COMP_WORDS[1]}" == help ]] && ((COMP_CWORD > 1)); then at=2; fi
    command="${COMP_WORDS[at]}"
    if ((COMP_CWORD == at)); then
        COMPREPLY=($(compgen -W "@commands@ --help --version" -- "$cur"))
        return
    fi
    if [[ "$cur" == "=" ]]; then cur=""; fi
    case "$command" in
@families@
    esac
    if [[ -n "$words" ]]; then
        if ((COMP_CWORD == at + 1)); then
            COMPREPLY=($(compgen -W "$words --help" -- "$cur"))
            return
        fi
        command="$command ${COMP_WORDS[at + 1]}"
        words=""
    fi
    # The flag whose value stands at the cursor: the word before it, or the last flag, if that takes several values.
    for ((i = COMP_CWORD - 1; i > at; i--)); do
        if [[ "${COMP_WORDS[i]}" == -* ]]; then
            flag="${COMP_WORDS[i]}"
            break
        fi
    done
    if ((i < COMP_CWORD - 1)) && [[ "${COMP_WORDS[i + 1]}" != "=" ]]; then
        case "$command $flag" in
            @several@) ;;
            *) flag="" ;;
        esac
    fi
    if [[ "$cur" == -* ]]; then
        case "$command" in
@flags@
        esac
    else
        case "$command $flag" in
@values@
        esac
    fi
    if [[ -n "$words" ]]; then COMPREPLY=($(compgen -W "$words" -- "$cur")); fi
    if [[ -n "$files" ]]; then
        if type compopt > /dev/null 2>&1; then compopt -o filenames 2> /dev/null; fi
        local IFS=$'\n'
        COMPREPLY+=($(compgen -f -- "$cur"))
    fi
}
complete -F _qkv qkv
"""

ZSH = """#compdef qkv
# Completion of qkv for zsh: source <(qkv completion zsh)
autoload -U +X compinit && (( $+functions[compdef] )) || compinit
autoload -U +X bashcompinit && bashcompinit
"""


def bash(described: Described, summaries: Mapping[str, str]) -> str:
    """Words of a command line in, candidates out; a flag that takes several values goes on until
    the next flag.
    """
    families = [
        f'        {name}) words="{" ".join(seconds)}" ;;'
        for name, seconds in families_of(described).items()
    ]
    several = [
        f'"{command} {name}"' for command, name, flag in each_flag(described) if flag.get("several")
    ]
    flags = [
        f'            "{command}") words="{typed(named)}" ;;'
        for command, named in described.items()
        if named
    ]
    values = [line for command, named in described.items() for line in bash_values(command, named)]
    parts = {
        "@commands@": " ".join(summaries),
        "@families@": "\n".join(families),
        "@several@": " | ".join(several),
        "@flags@": "\n".join(flags),
        "@values@": "\n".join(values),
    }

    script = BASH

    for mark, text in parts.items():
        script = script.replace(mark, text)

    return script.rstrip("\n")


def typed(flags: Iterable[str]) -> str:
    return " ".join(filter(None, flags))


def bash_values(command: str, flags: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """What may follow each flag; after a switch, what may stand where no flag waits for a value."""
    by_candidates: dict[str, list[str]] = {}
    for name, flag in {"": {"kind": "switch"}, **flags}.items():
        kind = flags.get("", flag)["kind"] if flag["kind"] == "switch" else flag["kind"]
        choices = (
            flags.get("", flag).get("choices") if flag["kind"] == "switch" else flag.get("choices")
        )
        words = " ".join(choices or ())
        files = kind == "file" or (kind == "text" and name != "--preset")
        candidates = "; ".join(
            filter(None, [f'words="{words}"' if words else "", "files=1" if files else ""])
        )
        by_candidates.setdefault(candidates or ":", []).append(f'"{command} {name}"')

    for candidates, patterns in by_candidates.items():
        yield f"            {' | '.join(patterns)}) {candidates} ;;"


def zsh(described: Described, summaries: Mapping[str, str]) -> str:
    """zsh runs bash's completion functions itself."""
    return ZSH + bash(described, summaries)


def fish(described: Described, summaries: Mapping[str, str]) -> str:
    lines = [
        "# Completion of qkv for fish: qkv completion fish > ~/.config/fish/completions/qkv.fish"
    ]
    lines += ["complete -c qkv -n __fish_use_subcommand -f"]
    for name, summary in summaries.items():
        lines.append(
            f"complete -c qkv -n __fish_use_subcommand -f -a {name} -d {shlex.quote(summary)}"
        )

    for command, families in families_of(described).items():
        seen = f"__fish_seen_subcommand_from {command}; and not __fish_seen_subcommand_from {' '.join(families)}"
        lines.append(
            f"complete -c qkv -n {shlex.quote(seen)} -f -a {shlex.quote(' '.join(families))}"
        )

    for command, name, flag in each_flag(described):
        if not name:  # fish completes files by itself
            continue

        seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in command.split())
        option = f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
        lines.append(f"complete -c qkv -n {shlex.quote(seen)} {option}{fish_values(flag)}")

    return "\n".join(lines)


def fish_values(flag: Mapping[str, Any]) -> str:
    if flag.get("choices"):
        return f" -x -a {shlex.quote(' '.join(flag['choices']))}"

    return {"switch": "", "number": " -x"}.get(flag["kind"], " -r -F")


def each_flag(described: Described) -> list[tuple[str, str, Mapping[str, Any]]]:
    return [
        (command, name, flag)
        for command, flags in described.items()
        for name, flag in flags.items()
    ]


def families_of(described: Described) -> dict[str, list[str]]:
    """The second words of commands that have two."""
    found: dict[str, list[str]] = {}
    for command in described:
        first, _, second = command.partition(" ")
        if second:
            found.setdefault(first, []).append(second)

    return found


SHELLS: dict[str, Callable[[Described, Mapping[str, str]], str]] = {
    "bash": bash,
    "zsh": zsh,
    "fish": fish,
}
