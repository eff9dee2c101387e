"""The command line: `qkv train`, `qkv generate`, `qkv translate` ...; `qkv --help` lists them all.

Each command's module is imported only when it is called, so that help, the version and short commands start at once:
nothing here imports torch, tyro or rich. Exit status: 0, or 1 for an error, 2 for wrong usage, 130 after Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

import qkv

INTERRUPTED = 130  # as of a program that Ctrl-C ended, so that `qkv train ... && ...` does not go on
BROKEN_PIPE = 141  # as of a program that SIGPIPE ended


class Command(NamedTuple):
    summary: str
    target: str
    """The function, as module:name in qkv.commands."""
    reads_arguments: bool = False
    """Whether the function reads the command line itself, and tells by False that it was interrupted."""


COMMANDS: dict[str, Command] = {
    "train": Command("Train a model on your text: qkv train gpt --data my.txt --out runs/mine", "train:run", True),
    "finetune": Command(
        "Teach a pre-trained model a task: qkv finetune minilm --task classify --data train.tsv --out runs/mine",
        "finetune:main",
        True,
    ),
    "generate": Command("Let a GPT go on from a prompt: qkv generate runs/mine 'Once upon a time'", "generate:run"),
    "chat": Command("Talk with a model that was taught to: qkv chat smollm2", "chat:run"),
    "translate": Command(
        "Translate lines of a file, of a pipe, or as you type them: qkv translate runs/translator", "translate:run"
    ),
    "fill": Command("Guess masked words with a BERT: qkv fill runs/encoder 'I took my [mask] for a walk'", "fill:run"),
    "classify": Command(
        "Ask a fine-tuned model about texts: qkv classify runs/sst-2 'a film to remember'", "classify:classify"
    ),
    "tag": Command(
        "Tag the words of sentences with a fine-tuned model: qkv tag runs/tagger 'The cat sat'", "classify:tag"
    ),
    "evaluate": Command(
        "Score models in tasks: qkv evaluate smollm2 --task lambada --data lambada.jsonl", "evaluate:run"
    ),
    "compare": Command(
        "Prompting against fine-tuning: qkv compare smollm2 --task sst-2 --data a.tsv --validation b.tsv --out both",
        "compare:run",
    ),
    "look": Command(
        "See inside while a model reads: qkv look smollm2 'The quick brown fox' --out look.html", "look:run"
    ),
    "heads": Command(
        "What each head does, which ones matter, which know grammar: qkv heads smollm2 --ablate mean", "heads:run"
    ),
    "edit": Command(
        "Change attention and see the output change: qkv edit smollm2 'Once upon a' --change 3.5=off", "edit:run"
    ),
    "patch": Command(
        "Put activations of one prompt into another: qkv patch smollm2 'in France' 'in Italy' --answer ' Paris'",
        "patch:run",
    ),
    "probe": Command("Ask every layer what it knows: qkv probe minilm --target train.conllu:upos", "probe:run"),
    "serve": Command(
        "Serve models to OpenAI's clients, and a page to play with them: qkv serve smollm2", "serve:run"
    ),
    "lab": Command(
        "What the lectures show, each as one command: qkv lab cats, qkv lab mask, qkv lab positions", "lab:run", True
    ),
    "plot": Command("Draw the curves of one or many runs to a PNG: qkv plot runs/mine", "plot:run"),
    "demo": Command(
        "Train the lecture's translator and a small GPT in two minutes, and look at what they do.", "demo:run"
    ),
    "presets": Command("List the models that can be built by name, with their sizes.", "presets:run"),
    "doctor": Command("Show what this machine has, what is slow on it and what to do about it.", "doctor:run"),
    "completion": Command("Print a script for your shell: source <(qkv completion bash)", "completion:run", True),
    "help": Command("Explain a command, as its --help does: qkv help train gpt", ""),
}


def main() -> None:
    try:
        dispatch(sys.argv[1:])
        if sys.stdout is not None:
            sys.stdout.flush()  # here, where an error can still be told, and not while Python shuts down
    except BrokenPipeError:  # the reader of a pipe, such as head, has seen enough
        abandon_output()
        sys.exit(BROKEN_PIPE)
    except SystemExit as stopped:
        if isinstance(stopped.__context__, BrokenPipeError):  # which rich turns into this
            abandon_output()
            sys.exit(BROKEN_PIPE)
        raise
    except KeyboardInterrupt:
        print("qkv: stopped", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except (ValueError, TypeError, OSError, ImportError, RuntimeError, MemoryError) as error:
        if os.environ.get("QKV_TRACEBACK"):
            raise
        fail(error, sys.argv[1:])


def dispatch(arguments: list[str]) -> None:
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    if not arguments or arguments[0] in ("-h", "--help"):
        show_help()
        return
    if arguments[0] in ("-V", "--version"):
        print(f"qkv {qkv.__version__}")
        return

    name, *rest = arguments
    if name not in COMMANDS:
        from qkv.commands.usage import UsageError, suggestion

        what, names = ("flag", ["--help", "--version"]) if name.startswith("-") else ("command", list(COMMANDS))
        meant = suggestion(name, names) or f"; expected one of {', '.join(names)}"
        raise UsageError(f"there is no {what} {name!r}{meant}")
    command = COMMANDS[name]
    module, _, function = command.target.partition(":")
    target = getattr(import_module(f"qkv.commands.{module}"), function)
    if not command.reads_arguments:
        from qkv.commands.parsing import run_command

        run_command(target, rest, f"qkv {name}")
    elif target(rest) is False:
        sys.exit(INTERRUPTED)


def show_help() -> None:
    from qkv.commands.listing import listed

    print("usage: qkv COMMAND ...\n\nAttention and Transformers: learn it, train it, look inside it, serve it.\n")
    for name, command in COMMANDS.items():
        print(listed(name, command.summary))
    print("\nqkv COMMAND --help, or qkv help COMMAND, explains each; qkv --version tells the version.")


def fail(error: Exception, arguments: Sequence[str]) -> None:
    """One sentence on standard error, and the status: 2 for wrong usage, 1 for everything else."""
    from qkv.commands.usage import UsageError

    message = str(error)
    if isinstance(error, OSError):
        from qkv.commands.file_errors import os_error_sentence

        message = os_error_sentence(error, arguments)
    elif type(error) in (TypeError, RuntimeError):  # unforeseen
        message += "\n(QKV_TRACEBACK=1 shows where it happened)"
    print(f"qkv: {message}", file=sys.stderr)
    abandon_output(only_if_broken=True)
    sys.exit(2 if isinstance(error, UsageError) else 1)


def abandon_output(only_if_broken: bool = False) -> None:
    """Send standard output nowhere, if it cannot be written: Python would complain again while it shuts down."""
    try:
        if only_if_broken:
            sys.stdout.flush()
            return
    except (OSError, ValueError, AttributeError):
        pass
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):  # closed, or no file at all
        return


if __name__ == "__main__":
    main()
