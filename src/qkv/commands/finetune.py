"""qkv finetune: a pre-trained model learns a task."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console

from qkv import storage
from qkv.checkpoint import RUN
from qkv.command_line.parsing import naming_flags, parse
from qkv.commands.train import value_of
from qkv.nn.config import check_at_least_one
from qkv.tables import Table
from qkv.training.finetune.finetune import FinetuneResult, finetune
from qkv.training.finetune.finetune_config import DEFAULTS, FinetuneConfig, FinetuneRunConfig
from qkv.training.run_config import OptimizerConfig, among
from qkv.training.setup.run_folder import LOCK, remembered
from qkv.training.systems.distributed import first_process, under_torchrun

SEEDS = "seeds.json"
PICTURE = "confusion.png"


@dataclass(frozen=True, kw_only=True)
class Flags:
    tuning: FinetuneConfig
    run: FinetuneRunConfig
    learning: OptimizerConfig = field(default_factory=lambda: DEFAULTS)
    seeds: int = 1
    """Fine-tune so many times, with seeds one after the other, and tell the mean and the spread."""

    def __post_init__(self) -> None:
        check_at_least_one(self, "seeds")


def main(arguments: list[str]) -> bool:
    """Fine-tune as the command line says; False where the run was interrupted."""
    flags = flags_of(arguments, value_of("--out", arguments), "--resume" in arguments)
    with naming_flags(Flags):
        return run(flags) or under_torchrun()


def flags_of(arguments: list[str], out: str | None, resume: bool) -> Flags:
    """From the command line; a run that is resumed gives the defaults. The model comes first,
    without a flag.
    """
    if arguments and not arguments[0].startswith("-"):
        arguments = ["--model", *arguments]

    return parse(
        Flags,
        arguments,
        "qkv finetune",
        default=known_flags(out if resume else None),
        description="Teach a pre-trained model a task: qkv finetune MODEL --task ... "
        "It can be stopped at any time and goes on with --resume.",
    )


def known_flags(out: str | None) -> Flags:
    known: dict[str, Any] = dict.fromkeys(("model", "task", "data", "out"), tyro.MISSING)
    learning, seeds = DEFAULTS, 1
    begun = None if out is None else first_run(Path(out))
    before = None if begun is None else remembered(begun, "finetune")
    if before is not None:
        known |= before[1] | {"out": Path(str(out)), "resume": False}
        learning = OptimizerConfig(**among(known, OptimizerConfig))
        known["seed"], seeds = known.get("first_seed", known["seed"]), known.get("seeds", 1)

    return Flags(
        tuning=FinetuneConfig(**among(known, FinetuneConfig)),
        run=FinetuneRunConfig(**among(known, FinetuneRunConfig)),
        learning=learning,
        seeds=seeds,
    )


def first_run(out: Path) -> Path | None:
    """The folder of the run, or of the first of several seeds, if there is one."""
    places = [out, *sorted(out.glob("seed-*"))]
    return next((place for place in places if (place / RUN).exists()), None)


def run(flags: Flags) -> bool:
    """Whether it came to its end."""
    from qkv.lab import samples

    first = first_process()
    console = Console(highlight=False, quiet=not first)
    done: list[FinetuneResult] = []
    seeds = [flags.run.seed + number for number in range(flags.seeds)]
    if flags.seeds > 1:
        check_several(flags.run)

    for number, seed in enumerate(seeds):
        one, remember = flags.run, {}
        if flags.seeds > 1:
            remember = {"seeds": flags.seeds, "first_seed": seeds[0]}
            one = replace(flags.run, seed=seed, out=flags.run.out / f"seed-{seed}")
            console.print(f"Seed {seed}, {number + 1} of {flags.seeds}")

        try:
            made = finetune(
                flags.tuning, flags.learning, one, remember=remember, samples=samples.maker
            )
        except ValueError:
            if flags.seeds > 1:
                leave_nothing(one.out)

            raise

        if made is None:
            return True
        if not made.outcome.finished:
            return False

        if first:
            show(made, one.out, flags.tuning, console)

        done.append(made)

    if flags.seeds > 1 and first:
        tell_spread(done, seeds, flags.run.out, console)

    return True


def check_several(run: FinetuneRunConfig) -> None:
    """Several seeds have a folder each, inside one that is theirs alone."""
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
            f"out: {run.out} holds runs already; add --resume to go on with them, or choose another folder"
        )


def leave_nothing(out: Path) -> None:
    """A seed that was refused before its first step leaves no folder that would be in the way."""
    if out.is_dir() and [path.name for path in out.iterdir()] == [LOCK]:
        (out / LOCK).unlink()
        out.rmdir()
        if not any(out.parent.iterdir()):
            out.parent.rmdir()


def show(made: FinetuneResult, out: Path, tune: FinetuneConfig, console: Console) -> None:
    from qkv.insight.render.figures.confusion_matrix import confusion_table, draw_confusion

    if made.confusion is not None:
        console.print(confusion_table(made.confusion, made.labels))
        console.print(
            f"Drawn: {draw_confusion(made.confusion, made.labels, out / PICTURE, str(out.name))}"
        )

    console.print(
        "On validation: "
        + ", ".join(
            f"{name.replace('_', ' ')} {value:.4f}" for name, value in made.measured.items()
        )
    )

    verb = {"tag": "tag", "chat": "chat", "translate": "translate"}.get(tune.task, "classify")
    console.print(f"Use it: qkv {verb} {out}")


def tell_spread(
    done: Sequence[FinetuneResult], seeds: Sequence[int], out: Path, console: Console
) -> None:
    """Mean and standard deviation over the seeds, on the screen and in a file."""
    rows = {name: [made.measured[name] for made in done] for name in done[0].measured}
    spread = {
        name: {"mean": statistics.fmean(row), "deviation": statistics.stdev(row)}
        for name, row in rows.items()
    }
    table = Table("", "mean", "deviation", f"seeds {seeds[0]} to {seeds[-1]}")

    for name, row in rows.items():
        mean, deviation = spread[name]["mean"], spread[name]["deviation"]
        each = "  ".join(f"{value:.4f}" for value in row)
        table.add_row(name.replace("_", " "), f"{mean:.4f}", f"{deviation:.4f}", each)

    console.print(table)
    storage.write_text(
        out / SEEDS, json.dumps({"seeds": seeds, "measured": rows, "spread": spread}, indent=1)
    )
