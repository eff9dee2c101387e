"""qkv train: a model of any family learns from a person's own text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import make_dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from qkv.command_line.parsing import chosen, naming_flags, parse
from qkv.command_line.usage_errors import UsageError, values_after
from qkv.models.configs import CONFIGS, Config, family
from qkv.models.presets import preset
from qkv.training.run_config import DataConfig, OptimizerConfig, RunConfig, among

TRAINED = [name for name in CONFIGS if name != "tuned"]  # which qkv finetune makes
GROUPS: dict[str, type[Any]] = {
    "reading": DataConfig,
    "run": RunConfig,
    "learning": OptimizerConfig,
}

TRAIN_HELP = """  gpt          predicts the next word: text generation
  bert         guesses masked words, seeing both ways: an encoder
  transformer  encoder and decoder: translation
  rnn          the same with recurrent layers, with or without attention

qkv train gpt --help lists every flag with its default and meaning."""


def run(arguments: list[str]) -> bool:
    """Whether the run came to its end."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"usage: qkv train {{{','.join(TRAINED)}}} --data ... --out ...\n\n{TRAIN_HELP}")
        return True

    name, *rest = arguments
    config, data, optimizer, run = training_flags(chosen(name, TRAINED, "train"), rest)

    from qkv.lab import samples
    from qkv.training.systems.distributed import under_torchrun
    from qkv.training.train import train

    with naming_flags(type(config), *GROUPS.values()):
        outcome = train(config, data, optimizer, run, samples=samples.maker)

    return outcome is None or outcome.finished or under_torchrun()


def training_flags(
    name: str, arguments: list[str]
) -> tuple[Config, DataConfig, OptimizerConfig, RunConfig]:
    """The four configs from the command line; a preset, or the run that is resumed, gives the
    defaults.
    """
    gpu = has_gpu(arguments)
    known: dict[str, Any] = {
        "batch_tokens": 16384 if gpu else 4096,
        "data": tyro.MISSING,
        "out": tyro.MISSING,
    }
    named = value_of("--preset", arguments)
    chosen_preset = named or f"{name}-{'small' if gpu else 'tiny'}"

    try:
        model = preset(chosen_preset)
    except ValueError as error:
        raise UsageError(str(error)) from None

    if family(model) != name:
        raise UsageError(
            f"preset: {chosen_preset} is of another family; say qkv train {family(model)} --preset {chosen_preset}"
        )

    before = resumed(name, arguments)
    if before is not None:
        own, known = before
        model = own if named is None else model

    given = {group: kind(**among(known, kind)) for group, kind in GROUPS.items()}
    Flags = flags_for(type(model))
    flags: Any = parse(
        Flags,
        arguments,
        f"qkv train {name}",
        default=Flags(**given, model=model, preset=chosen_preset),
        description=f"Train a {name} on your own text. It can be stopped at any time and goes on with --resume.",
    )

    return flags.model, flags.reading, flags.learning, flags.run


def flags_for(config: type[Any]) -> type[Any]:
    """The dataclass of every flag with which a family is trained."""
    named = Annotated[
        str, tyro.conf.arg(help="A model by name, see qkv presets; the flags below change it.")
    ]
    return make_dataclass("Flags", [*GROUPS.items(), ("model", config), ("preset", named)])


def has_gpu(arguments: Sequence[str]) -> bool:
    """Whether torch finds a GPU. For help alone the driver is looked for, since importing torch
    takes seconds.
    """
    if {"-h", "--help"} & set(arguments):
        from qkv.machine import nvidia_gpu_visible

        return nvidia_gpu_visible()

    import torch

    return torch.cuda.is_available()


def resumed(name: str, arguments: Sequence[str]) -> tuple[Config, dict[str, Any]] | None:
    """The model's config and the flags of the run that --resume goes on with, if there is one."""
    out = value_of("--out", arguments)
    if out is None or "--resume" not in arguments:
        return None

    from qkv.training.setup.run_folder import remembered

    before = remembered(Path(out))
    if before is None and value_of("--data", arguments) is None:
        raise UsageError(f"out: there is no run in {out} to go on with; give --data to begin one")
    if before is not None and family(before[0]) != name:
        raise UsageError(
            f"out: {out} holds another model; say qkv train {family(before[0])} --out {out} --resume"
        )

    return before


def value_of(flag: str, arguments: Sequence[str]) -> str | None:
    """What was typed for a flag that takes one value, before all flags are read."""
    return next(iter(values_after([flag], arguments)), None)
