"""qkv finetune: fine-tune a pre-trained model on a task."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console

from qkv import storage
from qkv.checkpoint import RUN
from qkv.command_line.parsing import naming_flags, parse
from qkv.command_line.usage_errors import value_after
from qkv.nn.config import check_at_least_one
from qkv.tables import Table
from qkv.training.finetune.finetune import FinetuneResult, finetune
from qkv.training.finetune.finetune_config import DEFAULTS, FinetuneConfig, FinetuneRunConfig
from qkv.training.run_config import OptimizerConfig, pick_fields
from qkv.training.setup.run_folder import LOCK, read_run_flags
from qkv.training.systems.distributed import first_process, under_torchrun

SEEDS = "seeds.json"
PICTURE = "confusion.png"
COMMANDS = {"tag": "tag", "chat": "chat", "translate": "translate"}
"""The command that uses a model of each task; qkv classify for the others."""


@dataclass(frozen=True, kw_only=True)
class Flags:
    """All flags of qkv finetune."""

    tuning: FinetuneConfig
    run: FinetuneRunConfig
    learning: OptimizerConfig = field(default_factory=lambda: DEFAULTS)
    seeds: int = 1
    """Number of runs with consecutive seeds; the mean and the standard deviation are reported."""

    def __post_init__(self) -> None:
        check_at_least_one(self, "seeds")


def main(arguments: list[str]) -> bool:
    """Fine-tune with the flags of the command line; False if the run was interrupted."""
    resumed = None
    if "--resume" in arguments:
        resumed = value_after("--out", arguments)

    flags = parse_flags(arguments, resumed)
    with naming_flags(Flags):
        return run(flags) or under_torchrun()


def parse_flags(arguments: list[str], resumed: str | None) -> Flags:
    """The flags of the command line; the model comes first, without a flag.

    The flags of the run in the folder `resumed` are the defaults.
    """
    if arguments and not arguments[0].startswith("-"):
        arguments = ["--model", *arguments]

    return parse(
        Flags,
        arguments,
        "qkv finetune",
        default=default_flags(resumed),
        description="Fine-tune a pre-trained model on a task: qkv finetune MODEL --task ... "
        "It can be stopped at any time and continues with --resume.",
    )


def default_flags(resumed: str | None) -> Flags:
    """The defaults, or the flags of a run that is resumed."""
    known: dict[str, Any] = dict.fromkeys(("model", "task", "data", "out"), tyro.MISSING)
    known |= asdict(DEFAULTS) | resumed_run(resumed)

    return Flags(
        tuning=FinetuneConfig(**pick_fields(known, FinetuneConfig)),
        run=FinetuneRunConfig(**pick_fields(known, FinetuneRunConfig)),
        learning=OptimizerConfig(**pick_fields(known, OptimizerConfig)),
        seeds=known.get("seeds", 1),
    )


def resumed_run(out: str | None) -> dict[str, Any]:
    """The flags of the run in this folder, or of the first of several seeds; empty without one."""
    if out is None:
        return {}

    for folder in (Path(out), *sorted(Path(out).glob("seed-*"))):
        before = read_run_flags(folder, "finetune")
        if before is not None:
            flags = before[1]
            first_seed = flags.get("first_seed", flags["seed"])
            return flags | {"out": Path(out), "resume": False, "seed": first_seed}

    return {}


def run(flags: Flags) -> bool:
    """Fine-tune once for each seed; False if interrupted."""
    first = first_process()
    console = Console(highlight=False, quiet=not first)
    results: list[FinetuneResult] = []
    seeds = [flags.run.seed + number for number in range(flags.seeds)]
    if flags.seeds > 1:
        check_several(flags.run)

    for number, seed in enumerate(seeds, start=1):
        if flags.seeds > 1:
            console.print(f"Seed {seed}, {number} of {flags.seeds}")

        run_config = config_of_seed(flags, seed)
        result = finetune_once(flags, run_config)
        if result is None:  # a dry run
            return True
        if not result.outcome.finished:
            return False

        if first:
            show_result(result, run_config.out, flags.tuning, console)

        results.append(result)

    if flags.seeds > 1 and first:
        show_spread(results, seeds, flags.run.out, console)

    return True


def config_of_seed(flags: Flags, seed: int) -> FinetuneRunConfig:
    """The run of one seed; if there are several, each has its own folder."""
    if flags.seeds == 1:
        return flags.run

    return replace(flags.run, seed=seed, out=flags.run.out / f"seed-{seed}")


def finetune_once(flags: Flags, run_config: FinetuneRunConfig) -> FinetuneResult | None:
    """Fine-tune with one seed; a run of several that is refused leaves no folder."""
    from qkv.lab import samples

    remember = {}
    if flags.seeds > 1:
        remember = {"seeds": flags.seeds, "first_seed": flags.run.seed}

    try:
        return finetune(
            flags.tuning,
            flags.learning,
            run_config,
            remember=remember,
            samples=samples.sample_maker,
        )
    except ValueError:
        if flags.seeds > 1:
            remove_empty_run(run_config.out)

        raise


def check_several(run: FinetuneRunConfig) -> None:
    """Refuse to run several seeds under torchrun, or in the folder of another run."""
    if under_torchrun():
        raise ValueError(
            "seeds: under torchrun one seed at a time; give each its own --seed and --out"
        )
    if (run.out / RUN).exists():
        raise ValueError(
            f"out: {run.out} holds a run of one seed; choose another folder for several"
        )
    if (run.out / SEEDS).exists() and not run.resume:
        raise ValueError(
            f"out: {run.out} holds runs already; add --resume to continue them, or choose another "
            "folder"
        )


def remove_empty_run(out: Path) -> None:
    """Remove the folder of a run that was refused before its first step."""
    if not out.is_dir():
        return

    if [path.name for path in out.iterdir()] == [LOCK]:
        (out / LOCK).unlink()
        out.rmdir()
        if not any(out.parent.iterdir()):
            out.parent.rmdir()


# Output


def show_result(result: FinetuneResult, out: Path, tune: FinetuneConfig, console: Console) -> None:
    """Print the confusion matrix and the validation scores, and draw the matrix."""
    from qkv.insight.render.figures.confusion_matrix import confusion_table, draw_confusion

    if result.confusion is not None:
        console.print(confusion_table(result.confusion, result.labels))
        picture = draw_confusion(result.confusion, result.labels, out / PICTURE, str(out.name))
        console.print(f"Drawn: {picture}")

    scores = []
    for name, value in result.measured.items():
        scores.append(f"{name.replace('_', ' ')} {value:.4f}")

    console.print(f"On validation: {', '.join(scores)}")
    console.print(f"Use it: qkv {COMMANDS.get(tune.task, 'classify')} {out}")


def show_spread(
    results: Sequence[FinetuneResult], seeds: Sequence[int], out: Path, console: Console
) -> None:
    """Print the mean and the standard deviation over the seeds, and write them to a file."""
    measured = {}
    spread = {}
    table = Table("", "mean", "deviation", f"seeds {seeds[0]} to {seeds[-1]}")

    for name in results[0].measured:
        values = [result.measured[name] for result in results]
        mean = statistics.fmean(values)
        deviation = statistics.stdev(values)
        measured[name] = values
        spread[name] = {"mean": mean, "deviation": deviation}
        listed = "  ".join(f"{value:.4f}" for value in values)
        table.add_row(name.replace("_", " "), f"{mean:.4f}", f"{deviation:.4f}", listed)

    console.print(table)
    written = {"seeds": seeds, "measured": measured, "spread": spread}
    storage.write_text(out / SEEDS, json.dumps(written, indent=1))
