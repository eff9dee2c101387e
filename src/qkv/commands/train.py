"""qkv train: train a model of any family on your own text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from qkv.command_line.parsing import check_subcommand, naming_flags, parse
from qkv.command_line.usage_errors import UsageError, value_after
from qkv.models.configs import CONFIGS, Config, GPTConfig, OwnGPTConfig, family
from qkv.models.presets import preset
from qkv.plugins import allow_file, is_plugin, require_listed
from qkv.training.run_config import DataConfig, OptimizerConfig, RunConfig, pick_fields

TRAINED = [name for name in CONFIGS if name not in ("task_model", "own-gpt")]
"""The families that are trained from scratch; the others come by qkv finetune and gpt --model."""
GROUPS: dict[str, type[Any]] = {
    "reading": DataConfig,
    "run": RunConfig,
    "learning": OptimizerConfig,
}

TRAIN_HELP = """  gpt          predicts the next token: text generation
  bert         predicts masked tokens from both sides: an encoder
  transformer  encoder and decoder: translation
  rnn          recurrent encoder and decoder, with or without attention
  rnn-lm       predicts the next token with recurrent layers: text generation

qkv train gpt --help lists every flag with its default and meaning."""


def run(arguments: list[str]) -> bool:
    """Train with the flags of the command line; False if the run was interrupted."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"usage: qkv train {{{','.join(TRAINED)}}} --data ... --out ...\n\n{TRAIN_HELP}")
        return True

    name, *rest = arguments
    check_subcommand(name, TRAINED, "train")
    config, data, optimizer, run = training_flags(name, rest)

    from qkv.lab import samples
    from qkv.training.systems.distributed import under_torchrun
    from qkv.training.train import train

    with naming_flags(type(config), *GROUPS.values()):
        config = with_own_parts(config, rest)
        check_resumed_files(optimizer, rest)
        allow_data(data, rest)
        outcome = train(config, data, optimizer, run, samples=samples.sample_maker)

    return outcome is None or outcome.finished or under_torchrun()


def with_own_parts(config: Config, arguments: Sequence[str]) -> Config:
    """The config with the parts that flags name as FILE.py:CLASS; these files are run."""
    from qkv.nn.own_parts import FIELDS

    for field in FIELDS:
        spec = value_after(f"--{field.replace('_', '-')}", arguments)
        if spec is not None and is_plugin(spec):
            config = replace(config, **{field: allow_file(spec, field)})  # type: ignore[arg-type]

    spec = getattr(config, "model", None)
    if spec is not None and value_after("--model", arguments) is not None:
        config = replace(config, model=allow_file(spec, "model"))  # type: ignore[call-arg]

    return config


def allow_data(data: DataConfig, arguments: Sequence[str]) -> None:
    """Let the files of data that flags name as FILE.py:FUNCTION run."""
    for flag, names in (("--data", data.data), ("--validation", data.validation)):
        for name in names:
            if is_plugin(name) and flag in arguments:
                allow_file(name, "data")


def check_resumed_files(optimizer: OptimizerConfig, arguments: Sequence[str]) -> None:
    """Raise for a file that the resumed run names, and neither a flag nor QKV_PLUGINS."""
    for field in ("optimizer", "objective"):
        spec = getattr(optimizer, field) or ""
        if is_plugin(spec) and value_after(f"--{field}", arguments) is None:
            require_listed(spec, field)


def training_flags(
    name: str, arguments: list[str]
) -> tuple[Config, DataConfig, OptimizerConfig, RunConfig]:
    """The four configs of a command line; a preset, or the resumed run, gives the defaults."""
    gpu = has_gpu(arguments)
    typed_preset = value_after("--preset", arguments)
    default_preset = f"{name}-small" if gpu else f"{name}-tiny"
    preset_name = typed_preset or default_preset
    model = preset_of(name, preset_name)
    known: dict[str, Any] = {
        "batch_tokens": 16384 if gpu else 4096,
        "data": tyro.MISSING,
        "out": tyro.MISSING,
    }

    before = resumed_flags(name, arguments)
    if before is not None:
        resumed_model, known = before
        if typed_preset is None:
            model = resumed_model

    model = with_own_model(model, arguments)
    defaults = {group: kind(**pick_fields(known, kind)) for group, kind in GROUPS.items()}
    Flags = flags_for(type(model))
    flags: Any = parse(
        Flags,
        arguments,
        f"qkv train {name}",
        default=Flags(**defaults, model=model, preset=preset_name),
        description=f"Train a {name} on your own text. It can be stopped at any time and continues "
        "with --resume.",
    )

    return without_own_model(flags.model), flags.reading, flags.learning, flags.run


def with_own_model(config: Config, arguments: Sequence[str]) -> Config:
    """The config of a GPT with a place for --model; with it only its sizes count."""
    if not isinstance(config, GPTConfig) or isinstance(config, OwnGPTConfig):
        return config

    kept = [field.name for field in fields(config)]
    if value_after("--model", arguments) is not None:
        kept = ["vocabulary", "context", "width", "depth", "heads"]

    return OwnGPTConfig(**{name: getattr(config, name) for name in kept})


def without_own_model(config: Config) -> Config:
    """The config as the family has it: of a GPT without --model that of the package's."""
    if not isinstance(config, OwnGPTConfig) or config.model is not None:
        return config

    return GPTConfig(**{field.name: getattr(config, field.name) for field in fields(GPTConfig)})


def preset_of(name: str, preset_name: str) -> Config:
    """The config of a preset, which must be of this family."""
    try:
        model = preset(preset_name)
    except ValueError as error:
        raise UsageError(str(error)) from None

    if family(model) != name:
        raise UsageError(
            f"preset: {preset_name} is of another family; "
            f"use qkv train {family(model)} --preset {preset_name}"
        )

    return model


def flags_for(config: type[Any]) -> type[Any]:
    """The dataclass of all flags with which a family is trained."""
    if config is GPTConfig:
        config = OwnGPTConfig

    preset_flag = Annotated[
        str, tyro.conf.arg(help="A model by name, see qkv presets; the flags below change it.")
    ]
    return make_dataclass("Flags", [*GROUPS.items(), ("model", config), ("preset", preset_flag)])


def has_gpu(arguments: Sequence[str]) -> bool:
    """Whether there is a GPU; for --help only the driver is checked, as importing torch is slow."""
    if {"-h", "--help"} & set(arguments):
        from qkv.machine import nvidia_gpu_visible

        return nvidia_gpu_visible()

    import torch

    return torch.cuda.is_available()


def resumed_flags(name: str, arguments: Sequence[str]) -> tuple[Config, dict[str, Any]] | None:
    """The model's config and the flags of the run that --resume continues, if there is one."""
    out = value_after("--out", arguments)
    if out is None or "--resume" not in arguments:
        return None

    from qkv.training.setup.run_folder import read_run_flags

    before = read_run_flags(Path(out))
    if before is None and value_after("--data", arguments) is None:
        raise UsageError(f"out: there is no run in {out} to continue; give --data to begin one")
    if before is None:
        return None

    trained = family(before[0])
    if isinstance(before[0], OwnGPTConfig):
        trained = "gpt"

    if trained != name:
        raise UsageError(
            f"out: {out} holds another model; say qkv train {trained} --out {out} --resume"
        )

    return before
