"""What every command does first: open a model on a device, and read what a person wants from it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import torch
import tyro
from rich.console import Console
from rich.text import Text

from qkv import artifact, storage
from qkv.models import BERT, GPT, RNN, TaskModel, Transformer
from qkv.models.registry import Model
from qkv.text import Tokenizer
from qkv.text.printable import printable as printable  # every command shows texts that others wrote
from qkv.text.printable import shortened
from qkv.training.systems.distributed import device_named

Precision = Literal["float32", "bf16"]
ModelName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
LONGEST = 1_000_000
PURPOSE: dict[type[Model], str] = {
    GPT: "a GPT goes on from a text: use qkv generate, or qkv chat",
    BERT: "a BERT guesses masked words: use qkv fill",
    Transformer: "a Transformer of encoder and decoder translates: use qkv translate",
    RNN: "an RNN of encoder and decoder translates: use qkv translate",
    TaskModel: "a fine-tuned model answers with its head: use qkv classify, or qkv tag",
}
TAUGHT = "it was not taught to answer; qkv finetune puts a head on a GPT or a BERT"


@dataclass(frozen=True, kw_only=True)
class Machine:
    device: str | None = None
    """cpu, cuda, cuda:1 ...; the GPU unless given, if there is one."""
    precision: Precision | None = None
    """float32 or bf16; a GPT that speaks on a GPU does so in bf16 unless given, all else is
    float32.
    """
    int8: bool = False
    """On a CPU: weights of eight bits, a quarter of the memory to read for each word."""


class Opened(NamedTuple):
    model: Model
    tokenizer: Tokenizer


def open_model(name: str, machine: Machine, *wanted: type[Model]) -> Opened:
    """A model of one of the wanted families with its tokenizer, ready on its device."""
    with Console(stderr=True).status(Text(f"reading {name} ...")):
        return prepared(name, machine, *wanted)


def prepared(name: str, machine: Machine, *wanted: type[Model]) -> Opened:
    """The same in silence; of any family, unless some are wanted."""
    device = device_of(machine)
    model, tokenizer = artifact.load(name)
    if wanted and not isinstance(model, wanted):
        raise ValueError(f"{name}: {TAUGHT if wanted == (TaskModel,) else PURPOSE[type(model)]}")

    tokenizer = tokenizer or artifact.tokenizer_of(name)
    if tokenizer.vocabulary > model.config.vocabulary:
        known = model.config.vocabulary
        raise ValueError(
            f"{name}: its tokenizer has {tokenizer.vocabulary:,} tokens, the model only {known:,}"
        )

    if machine.int8:
        from qkv.models.quantize import int8

        model = int8(model)

    half = device.type == "cuda" and isinstance(model, GPT) and machine.precision != "float32"
    dtype = torch.bfloat16 if half or machine.precision == "bf16" else torch.float32

    return Opened(model.to(device, dtype), tokenizer)


def finely(machine: Machine) -> Machine:
    """For what compares small differences: float32 on a GPU too, unless told otherwise."""
    return replace(machine, precision=machine.precision or "float32")


def device_of(machine: Machine) -> torch.device:
    """Which it is, if it can compute as it is told to."""
    device = device_named(machine.device)
    if machine.precision == "bf16" and device.type == "cpu":
        raise ValueError("precision: bf16 is for GPUs; expected float32 on a CPU")
    if machine.int8 and device.type != "cpu":
        raise ValueError(
            f"int8: weights of eight bits are for CPUs, not for {device.type}; leave it out"
        )

    return device


def check_length(length: int) -> None:
    if not 1 <= length <= LONGEST:
        raise ValueError(f"length: expected 1 to {LONGEST:,} tokens, not {length:,}")


def note(text: str) -> None:
    """What a person should know, beside the output."""
    print(f"qkv: {text}", file=sys.stderr, flush=True)


def note_unknown(tokenizer: Tokenizer, texts: Sequence[str]) -> None:
    """Which words the model cannot read; it sees that something stands there, but not what."""
    words = list(dict.fromkeys(word for text in texts for word in tokenizer.unknown_in(text)))
    if words:
        shown = ", ".join(repr(shortened(word, 40)) for word in words[:5]) + (
            f" and {len(words) - 5} more" if len(words) > 5 else ""
        )
        note(
            f"the model does not know {shown}; it reads {tokenizer.token(tokenizer.unknown or 0).strip()} there"
        )


def read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not UTF-8 text ({error})") from error
    except OSError as error:
        raise ValueError(f"{file}: cannot be read ({error.strerror})") from error


def standard_input() -> str:
    """All of it; what is typed or piped is text, or it is refused."""
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"standard input: not UTF-8 text ({error})") from error


def typed_lines() -> Iterator[str]:
    """What a person says line by line, without empty lines, until there is no more."""
    if sys.stdin.isatty():
        with suppress(ImportError):
            import readline  # noqa: F401 - input() then lets lines be edited and brought back

    while True:
        try:
            line = input("> ") if sys.stdin.isatty() else sys.stdin.readline()
        except EOFError:
            print()
            return
        except UnicodeDecodeError as error:
            raise ValueError(f"standard input: not UTF-8 text ({error})") from error

        if not line and not sys.stdin.isatty():
            return

        if line.strip():
            yield line.strip()


@contextmanager
def forgiving() -> Iterator[None]:
    """At a terminal, what cannot be done is said, and the next line may be another; elsewhere it is
    the end.
    """
    try:
        yield
    except ValueError as error:
        if not sys.stdin.isatty():
            raise

        note(str(error))


def check_not_read(out: Path | None, files: Iterable[Path], what: str) -> None:
    """A file is never written over what it is made from."""
    if (
        out is not None
        and out.exists()
        and any(file.exists() and file.samefile(out) for file in files)
    ):
        raise ValueError(f"out: {out} is what is to be {what}; choose another name")


def check_place(name: str, path: Path | None) -> None:
    """Before the work begins: whether its file can be written at the end."""
    if path is None:
        return
    if path.is_dir():
        raise ValueError(f"{name}: expected the name of a file, and {path} is a folder")

    above = next(each for each in path.absolute().parents if each.exists())
    if not above.is_dir():
        raise ValueError(f"{name}: {path} cannot be written: {above} is a file and no folder")
    if storage.read_only(above):
        raise ValueError(f"{name}: {path} is on a read-only file system; choose another folder")
    if not os.access(above, os.W_OK | os.X_OK):
        raise ValueError(f"{name}: {path} cannot be written: the folder {above} may not be changed")
