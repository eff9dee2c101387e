"""qkv probe: what each layer of a frozen model knows, read off by small probes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Annotated

import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from qkv.command_line.model_opening import Machine, ModelName, check_place, finely, note, open_model
from qkv.insight.probing.activations import Store, check_layers
from qkv.insight.probing.linear_probe import Learning
from qkv.insight.probing.probe_model import Stage, probe
from qkv.insight.probing.probe_tasks import probe_task
from qkv.models import BERT, GPT, RNN, TaskModel, Transformer
from qkv.models.configs import Pooling

PICTURE = "probe.png"
EVERY = 30.0
"""Seconds between two lines that say how far it is, where there is no terminal."""


def run(
    model: ModelName,
    target: str,
    data: tuple[str, ...] = (),
    validation: tuple[str, ...] = (),
    test: tuple[str, ...] = (),
    examples: int | None = None,
    text: str | None = None,
    label: str | None = None,
    pooling: Pooling = "mean",
    numbers: bool | None = None,
    length: int = 64,
    windows: int = 2000,
    layers: tuple[str, ...] = (),
    seeds: int = 3,
    controls: bool = True,
    recompute: bool = False,
    store: Store = "float32",
    out: Path | None = None,
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
    learning: tyro.conf.OmitArgPrefixes[Learning] = Learning(),  # noqa: B008 - tyro reads the defaults
    machine: tyro.conf.OmitArgPrefixes[Machine] = Machine(),  # noqa: B008
) -> None:
    """Train a linear probe (or one with a hidden layer) on what every layer of a frozen model says,
    and test it.

    qkv probe minilm --target train.conllu:upos --validation dev.conllu --test test.conllu --out
    probes/upos

    qkv probe runs/mine --target position --data python --hidden 256

    qkv probe smollm2 --target sentiment.tsv

    Two controls are probed beside it: a model of the same config with random weights, and labels
    that were shuffled.

    Args: model: The folder of a run or of transformers, a GGUF file, or minilm or smollm2. A
        translator's encoder is probed, and a fine-tuned model's backbone. target: position, the
        place of a token; file.conllu:upos (xpos, deprel, ...), a column of each word, of head how
        many words away it is; or a table of texts with a label each, a class or a number. data:
        With position: the texts, named like the data of qkv train. validation: With other targets:
        files for early stopping; a tenth of the texts is held out unless given. test: And files to
        test on. examples: Learn from so many texts at most. text: With a table: the column that has
        the text; the usual names are looked for unless given. label: With a table: the column that
        has the label. pooling: With a table: the vector of a text, the mean of its words', or that
        of its first or last one. numbers: With a table: whether labels are numbers, not classes; if
        one has a fraction unless given. length: With position: tokens of a window, and so the
        number of places. windows: With position: so many windows to learn from, a tenth of that to
        test on. layers: Some of the layers: embedding, 0 and so on for the blocks, norm; all unless
        given. seeds: Probes of each kind, each from other weights and in another order. controls:
        Probe a random model and shuffled labels, too. recompute: Let the model read the texts again
        in each epoch, and learn the probes of all layers at once, instead of keeping what the
        layers say in files. Nothing is written. store: How numbers are kept in those files; float16
        takes half the room. out: A folder for results.json, probe.png and probes.safetensors.
        as_json: Print the results as JSON instead of a table. learning: How the probes learn.
        machine: Where and how it computes.
    """
    if seeds < 1:
        raise ValueError(f"seeds: expected 1 or more, not {seeds}")

    check_place("out", None if out is None else out / PICTURE)
    opened = open_model(model, finely(machine), GPT, BERT, TaskModel, Transformer, RNN)
    check_layers(opened.model, layers)
    columns = {"text": text, "label": label, "pooling": pooling, "numbers": numbers}
    question = probe_task(
        opened.model, opened.tokenizer, target, data=data, validation=validation, test=test, length=length,
        windows=windows, most=examples, **columns,
    )  # fmt: skip

    for each in question.notes:
        note(each)

    with watched() as stage:
        found = probe(
            opened.model, question, name=Path(model).name, layers=layers, seeds=seeds, learning=learning,
            controls=controls, keep="recompute" if recompute else "disk", store=store, stage=stage,
        )  # fmt: skip

    from qkv.insight.render.figures.probe_figure import (  # which takes long to import
        draw_probed,
        probe_table,
    )

    console = Console(highlight=False)
    if as_json:
        print(json.dumps(found.as_object(), ensure_ascii=False))
    else:
        console.print(probe_table(found))

    if out is not None:
        found.save(out)
        draw_probed(found, out / PICTURE)
        if not as_json:
            console.print(
                f"{out}: results.json, {PICTURE}, probes.safetensors", soft_wrap=True, markup=False
            )


@contextmanager
def watched() -> Iterator[Stage]:
    """A bar for each stage; without a terminal a line when it begins, and from time to time how far
    it is.
    """
    if not sys.stderr.isatty():
        yield told()
        return

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )

    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        tasks = {}

        def hear(what: str, part: float) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=1.0)

            progress.update(tasks[what], advance=part)

        yield hear


def told() -> Stage:
    done: dict[str, float] = {}
    last = 0.0

    def hear(what: str, part: float) -> None:
        nonlocal last
        begins, now = what not in done, monotonic()
        done[what] = done.get(what, 0.0) + part
        if begins or now - last >= EVERY:
            last = now
            note(f"{what} ..." if begins else f"{what}: {done[what]:.0%}")

    return hear
