"""The command line: `qkv train`, `qkv generate`, `qkv translate` ...; `qkv --help` lists them all."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable
from dataclasses import make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.console import Console

from qkv.models.build import FAMILIES, Config, family
from qkv.models.presets import preset

if TYPE_CHECKING:  # each command imports what it needs, so that the others start at once
    from qkv.training.config import DataConfig, OptimizerConfig, RunConfig

Arguments = list[str]
TRAINED = [name for name in FAMILIES if name != "tuned"]  # which qkv finetune makes
STOPPED = 130  # as of a program that Ctrl-C ended, so that `qkv train ... && ...` does not go on


def demo(arguments: Arguments) -> None:
    """Train the lecture's translator and a small GPT in two minutes, and look at what they do."""
    from qkv.lab import board, demo

    def run(board_only: bool = False) -> None:
        """Train the lecture's translator on English and Turkish and a small GPT on Python, and try both.

        Args:
            board_only: Only the tables of the board: from a hash table to attention, masks, the models.
        """
        board.show() if board_only else demo.show()

    tyro.cli(run, args=arguments, prog="qkv demo")


def presets(arguments: Arguments) -> None:
    """List the models that can be built by name, with their sizes."""
    from qkv.lab import board

    def run() -> None:
        """List the models that can be built by name, with their sizes."""
        Console().print(board.preset_table())

    tyro.cli(run, args=arguments, prog="qkv presets")


def plot(arguments: Arguments) -> None:
    """Draw the curves of one or many runs to a PNG."""
    from qkv.insight import curves

    def run(
        runs: tyro.conf.Positional[tuple[Path, ...]],
        out: Path | None = None,
        x: Literal["step", "tokens", "seconds"] = "step",
    ) -> None:
        """Draw the curves of one or many runs to a PNG.

        Args:
            runs: The folders of the runs.
            out: The picture; curves.png in the run's folder, or here for several, unless given.
            x: What goes to the right.
        """
        print(curves.plot(runs, out, x=x))

    tyro.cli(run, args=arguments, prog="qkv plot")


def train(arguments: Arguments) -> None:
    """Train a model on your text: qkv train gpt --data my.txt --out runs/mine"""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"usage: qkv train {{{','.join(TRAINED)}}} --data ... --out ...\n\n{TRAIN_HELP}")
        return
    name, *rest = arguments
    if name not in TRAINED:
        raise ValueError(f"train: expected one of {', '.join(TRAINED)}, not {name!r}")
    from qkv.lab import samples
    from qkv.training.distributed import under_torchrun
    from qkv.training.start import start

    config, data, optimizer, run = training_flags(name, rest)
    outcome = start(config, data, optimizer, run, samples=samples.maker)
    if outcome is not None and not outcome.finished and not under_torchrun():
        sys.exit(STOPPED)


TRAIN_HELP = """  gpt          predicts the next word: text generation
  bert         guesses masked words, seeing both ways: an encoder
  transformer  encoder and decoder: translation
  rnn          the same with recurrent layers, with or without attention

qkv train gpt --help lists every flag with its default and meaning."""


def training_flags(name: str, arguments: Arguments) -> tuple[Config, DataConfig, OptimizerConfig, RunConfig]:
    """The four configs from the command line; a preset, or the run that is resumed, gives the defaults."""
    import torch

    from qkv.training.config import DataConfig, OptimizerConfig, RunConfig, among
    from qkv.training.folder import remembered

    gpu = torch.cuda.is_available()
    chosen = value_of("--preset", arguments) or f"{name}-{'small' if gpu else 'tiny'}"
    model = preset(chosen)
    known: dict[str, Any] = {"batch_tokens": 16384 if gpu else 4096, "data": tyro.MISSING, "out": tyro.MISSING}
    if family(model) != name:
        raise ValueError(f"preset: {chosen} is of another family; say qkv train {family(model)} --preset {chosen}")
    out = value_of("--out", arguments)
    before = remembered(Path(out)) if out is not None and "--resume" in arguments else None
    if out is not None and "--resume" in arguments and before is None and value_of("--data", arguments) is None:
        raise ValueError(f"out: there is no run in {out} to go on with; give --data to begin one")
    if before is not None:
        own, known = before
        if family(own) != name:
            raise ValueError(f"out: {out} holds another model; say qkv train {family(own)} --out {out} --resume")
        if value_of("--preset", arguments) is None:
            model = own
    kinds = {"reading": DataConfig, "run": RunConfig, "learning": OptimizerConfig}
    given = {group: kind(**among(known, kind)) for group, kind in kinds.items()}
    named = Annotated[str, tyro.conf.arg(help="A model by name, see qkv presets; the flags below change it.")]
    Flags = make_dataclass("Flags", [*kinds.items(), ("model", type(model)), ("preset", named)])
    flags = tyro.cli(
        Flags,
        args=arguments,
        default=Flags(**given, model=model, preset=chosen),
        prog=f"qkv train {name}",
        description=f"Train a {name} on your own text. It can be stopped at any time and goes on with --resume.",
        config=(tyro.conf.OmitArgPrefixes,),
    )
    return flags.model, flags.reading, flags.learning, flags.run


def value_of(flag: str, arguments: Arguments) -> str | None:
    """What a person gave for a flag, before all flags are read."""
    for number, argument in enumerate(arguments):
        if argument == flag and number + 1 < len(arguments):
            return arguments[number + 1]
        if argument.startswith(f"{flag}="):
            return argument.partition("=")[2]
    return None


def generate(arguments: Arguments) -> None:
    """Let a GPT go on from a prompt: qkv generate runs/mine 'Once upon a time'"""
    from qkv.commands import generate

    tyro.cli(generate.run, args=arguments, prog="qkv generate")


def chat(arguments: Arguments) -> None:
    """Talk with a model that was taught to: qkv chat smollm2"""
    from qkv.commands import chat

    tyro.cli(chat.run, args=arguments, prog="qkv chat")


def translate(arguments: Arguments) -> None:
    """Translate lines of a file, of a pipe, or as you type them: qkv translate runs/translator"""
    from qkv.commands import translate

    tyro.cli(translate.run, args=arguments, prog="qkv translate")


def fill(arguments: Arguments) -> None:
    """Guess masked words with a BERT: qkv fill runs/encoder 'I took my [mask] for a walk'"""
    from qkv.commands import fill

    tyro.cli(fill.run, args=arguments, prog="qkv fill")


def finetune(arguments: Arguments) -> None:
    """Teach a pre-trained model a task: qkv finetune minilm --task classify --data train.tsv --out runs/mine"""
    from qkv.commands import finetune
    from qkv.training.distributed import under_torchrun

    flags = finetune.flags_of(arguments, value_of("--out", arguments), "--resume" in arguments)
    if not finetune.run(flags) and not under_torchrun():
        sys.exit(STOPPED)


def classify(arguments: Arguments) -> None:
    """Ask a fine-tuned model about texts: qkv classify runs/sst-2 'a film to remember'"""
    from qkv.commands import classify

    tyro.cli(classify.classify, args=arguments, prog="qkv classify")


def tag(arguments: Arguments) -> None:
    """Tag the words of sentences with a fine-tuned model: qkv tag runs/tagger 'The cat sat'"""
    from qkv.commands import classify

    tyro.cli(classify.tag, args=arguments, prog="qkv tag")


def evaluate(arguments: Arguments) -> None:
    """Score models in tasks: qkv evaluate smollm2 --task lambada --data lambada.jsonl"""
    from qkv.commands import evaluate

    tyro.cli(evaluate.run, args=arguments, prog="qkv evaluate")


def compare(arguments: Arguments) -> None:
    """Prompting against fine-tuning: qkv compare smollm2 --task sst-2 --data a.tsv --validation b.tsv --out both"""
    from qkv.commands import compare

    tyro.cli(compare.run, args=arguments, prog="qkv compare")


def look(arguments: Arguments) -> None:
    """See inside while a model reads: qkv look smollm2 'The quick brown fox' --out look.html"""
    from qkv.commands import look

    tyro.cli(look.run, args=arguments, prog="qkv look")


def heads(arguments: Arguments) -> None:
    """What each head does, which ones matter, which know grammar: qkv heads smollm2 --ablate mean"""
    from qkv.commands import heads

    tyro.cli(heads.run, args=arguments, prog="qkv heads")


def edit(arguments: Arguments) -> None:
    """Change attention and see the output change: qkv edit smollm2 'Once upon a' --change 3.5=off"""
    from qkv.commands import edit

    tyro.cli(edit.run, args=arguments, prog="qkv edit")


def patch(arguments: Arguments) -> None:
    """Put activations of one prompt into another: qkv patch smollm2 'in France' 'in Italy' --answer ' Paris'"""
    from qkv.commands import patch

    tyro.cli(patch.run, args=arguments, prog="qkv patch")


def probe(arguments: Arguments) -> None:
    """Ask every layer what it knows: qkv probe minilm --target train.conllu:upos"""
    from qkv.commands import probe

    tyro.cli(probe.run, args=arguments, prog="qkv probe")


def serve(arguments: Arguments) -> None:
    """Serve models to OpenAI's clients, and a page to play with them: qkv serve smollm2"""
    from qkv.commands import serve

    tyro.cli(serve.run, args=arguments, prog="qkv serve")


def lab(arguments: Arguments) -> None:
    """What the lectures show, each as one command: qkv lab cats, qkv lab mask, qkv lab positions"""
    from qkv.commands import lab

    lab.run(arguments)


COMMANDS: dict[str, Callable[[Arguments], None]] = {
    "train": train,
    "finetune": finetune,
    "generate": generate,
    "chat": chat,
    "translate": translate,
    "fill": fill,
    "classify": classify,
    "tag": tag,
    "evaluate": evaluate,
    "compare": compare,
    "look": look,
    "heads": heads,
    "edit": edit,
    "patch": patch,
    "probe": probe,
    "serve": serve,
    "lab": lab,
    "plot": plot,
    "demo": demo,
    "presets": presets,
}


def main() -> None:
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: qkv COMMAND ...\n\nAttention and Transformers: learn it, train it, look inside it, serve it.\n")
        for name, command in COMMANDS.items():
            print(f"  {name:10} {command.__doc__}")
        print("\nqkv COMMAND --help explains each.")
        return
    name, *rest = arguments
    try:
        if name not in COMMANDS:
            close = difflib.get_close_matches(name, COMMANDS, n=1)
            meant = f"; did you mean {close[0]}?" if close else "."
            raise ValueError(f"there is no command {name!r}{meant} The commands are {', '.join(COMMANDS)}")
        COMMANDS[name](rest)
    except BrokenPipeError:  # who read our output has seen enough
        sys.stderr.close()
    except (ValueError, TypeError, OSError, ImportError, RuntimeError, MemoryError) as error:
        if os.environ.get("QKV_TRACEBACK"):
            raise
        unforeseen = type(error) in (TypeError, RuntimeError)
        sys.exit(f"qkv: {error}" + ("\n(QKV_TRACEBACK=1 shows where it happened)" if unforeseen else ""))
    except KeyboardInterrupt:
        print("qkv: stopped", file=sys.stderr)
        sys.exit(STOPPED)


if __name__ == "__main__":
    main()
