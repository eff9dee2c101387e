"""qkv probe: train small probes on every layer of a frozen model."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Annotated

import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from qkv.command_line.model_opening import (
    DEFAULT_MACHINE,
    Machine,
    ModelName,
    Opened,
    open_float32,
)
from qkv.command_line.output_checks import check_writable
from qkv.command_line.user_input import note
from qkv.insight.probing.activations import ActivationDtype, check_layers
from qkv.insight.probing.linear_probe import ProbeTraining
from qkv.insight.probing.probe_model import ProbeResult, ProgressCallback, probe
from qkv.insight.probing.probe_tasks import ProbeTask, probe_task
from qkv.models.configs import Pooling

PICTURE = "probe.png"
DEFAULT_PROBE_TRAINING = ProbeTraining()
NOTE_EVERY = 30.0
"""Seconds between two notes on the progress, where there is no terminal."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Train a linear probe (or an MLP) on the activations of every layer of a frozen model.

    qkv probe minilm --target train.conllu:upos --validation dev.conllu --test test.conllu --out
    probes/upos

    qkv probe runs/mine --target position --data python --hidden 256

    qkv probe smollm2 --target sentiment.tsv

    Two controls are probed as well: a model of the same config with random weights, and shuffled
    labels.
    """

    model: ModelName
    """The folder of a run or of transformers, a GGUF file, or minilm or smollm2. In a translator
    the encoder is probed, in a fine-tuned model the backbone."""
    target: str
    """position, the position of a token; file.conllu:upos (xpos, deprel, ...), a column of each
    word, where head is the distance to the syntactic head; or a table of texts with a label each, a
    class or a number."""
    data: tuple[str, ...] = ()
    """With position: the texts, named like the data of qkv train."""
    validation: tuple[str, ...] = ()
    """With other targets: files for early stopping (default: a tenth of the texts)."""
    test: tuple[str, ...] = ()
    """With other targets: files to test on."""
    examples: int | None = None
    """Maximum number of training texts."""
    text: str | None = None
    """With a table: the column of the text (default: the usual names)."""
    label: str | None = None
    """With a table: the column of the label."""
    pooling: Pooling = "mean"
    """With a table: the vector of a text is the mean over its tokens, or that of the first or last
    token."""
    numbers: bool | None = None
    """With a table: labels are numbers, not classes (default: if one has a fraction)."""
    length: int = 64
    """With position: tokens of a window, and so the number of positions."""
    windows: int = 2000
    """With position: windows to train on; a tenth as many to test on."""
    layers: tuple[str, ...] = ()
    """Only these layers: embedding, 0 and so on for the blocks, norm (default: all)."""
    seeds: int = 3
    """Probes per layer, each with other weights and another order."""
    controls: bool = True
    """Probe a random-weight model and shuffled labels, too."""
    recompute: bool = False
    """Run the model again in each epoch, and train the probes of all layers at once, instead of
    storing the activations in files."""
    store: ActivationDtype = "float32"
    """Number format of the stored activations; float16 takes half the space."""
    out: Path | None = None
    """A folder for results.json, probe.png and probes.safetensors."""
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False
    """Print the results as JSON instead of a table."""
    learning: ProbeTraining = DEFAULT_PROBE_TRAINING
    """Training of the probes."""
    machine: Machine = DEFAULT_MACHINE
    """Device and precision."""

    def run(self) -> None:
        if self.seeds < 1:
            raise ValueError(f"seeds: expected 1 or more, not {self.seeds}")

        if self.out is not None:
            check_writable("out", self.out / PICTURE)

        opened = open_float32(self.model, self.machine)
        check_layers(opened.model, self.layers)
        task = self.build_task(opened)
        for line in task.notes:
            note(line)

        with progress_of_stages() as stage:
            results = probe(
                opened.model,
                task,
                name=Path(self.model).name,
                layers=self.layers,
                seeds=self.seeds,
                learning=self.learning,
                controls=self.controls,
                keep="recompute" if self.recompute else "disk",
                store=self.store,
                stage=stage,
            )

        self.report(results)

    def build_task(self, opened: Opened) -> ProbeTask:
        """What the probes learn, and from which examples."""
        return probe_task(
            opened.model,
            opened.tokenizer,
            self.target,
            data=self.data,
            validation=self.validation,
            test=self.test,
            length=self.length,
            windows=self.windows,
            most=self.examples,
            text=self.text,
            label=self.label,
            pooling=self.pooling,
            numbers=self.numbers,
        )

    def report(self, results: ProbeResult) -> None:
        """Print the results, and write them with their picture."""
        # Imports matplotlib, which takes long.
        from qkv.insight.render.figures.probe_figure import draw_probed, probe_table

        console = Console(highlight=False)
        if self.as_json:
            print(json.dumps(results.as_object(), ensure_ascii=False))
        else:
            console.print(probe_table(results))

        if self.out is not None:
            results.save(self.out)
            draw_probed(results, self.out / PICTURE)
            if not self.as_json:
                console.print(
                    f"{self.out}: results.json, {PICTURE}, probes.safetensors",
                    soft_wrap=True,
                    markup=False,
                )


@contextmanager
def progress_of_stages() -> Iterator[ProgressCallback]:
    """A bar for each stage; without a terminal, notes at its start and from time to time."""
    if not sys.stderr.isatty():
        yield stage_notes()
        return

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )

    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        tasks = {}

        def advance(stage: str, part: float) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage, total=1.0)

            progress.update(tasks[stage], advance=part)

        yield advance


def stage_notes() -> ProgressCallback:
    """A function that notes when a stage starts, and its progress every half minute."""
    done: dict[str, float] = {}
    last = 0.0

    def advance(stage: str, part: float) -> None:
        nonlocal last
        starts = stage not in done
        done[stage] = done.get(stage, 0.0) + part
        now = monotonic()
        if starts or now - last >= NOTE_EVERY:
            last = now
            note(f"{stage} ..." if starts else f"{stage}: {done[stage]:.0%}")

    return advance
