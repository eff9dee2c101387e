"""Does a model without positions know where its words stand? Haviv et al. 2022, in one command.
`qkv lab positions`

A causal model sees at each place as many words as there are before it, and can count. A model that
sees both ways sees the same words at every place: without positions it has nothing to tell the
places apart by. Small models of both kinds are trained on the same text; then a probe tries to read
the place of each token off every layer.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from rich.console import Console

from qkv import artifact, storage
from qkv.data.batches.causal import CausalData
from qkv.data.sources.source import open_texts
from qkv.data.tokens.token_arrays import Tokens
from qkv.insight.probing.activations import Keep, activations
from qkv.insight.probing.linear_probe import Learning
from qkv.insight.probing.probe_model import Scored, asked, best_of
from qkv.insight.probing.probe_tasks import ProbeTask, position_question
from qkv.insight.render.figures.figure_style import COLOURS
from qkv.insight.render.figures.probe_figure import Line, Panel, draw_panels
from qkv.models import BERTConfig, GPTConfig
from qkv.models.registry import Model
from qkv.nn.stack_config import Position
from qkv.tables import Table
from qkv.training.logging.progress import clock
from qkv.training.run_config import DataConfig, OptimizerConfig, RunConfig
from qkv.training.setup.cost import cost, measured_peak
from qkv.training.setup.training_task import assemble, find_tokenizer
from qkv.training.systems.distributed import device_named
from qkv.training.systems.precision import Precision, best_precision
from qkv.training.train import train

CAUSAL: tuple[Position, ...] = ("none", "learned", "sinusoidal", "rotary", "alibi")
MASKED = "masked"
Kind = Literal["none", "learned", "sinusoidal", "rotary", "alibi", "masked"]
FOR_PROBES = 0.2
"""The part of the held-out text to validate probes on, and the part to test them on."""


class Trained(NamedTuple):
    name: str
    loss: float
    """On the validation text: of the next word, or of masked words."""
    scores: dict[str, list[Scored]]
    """By probe: hidden and linear."""


def positions(
    data: tuple[str, ...] = ("python",),
    out: Path = Path("runs/positions"),
    *,
    validation: tuple[str, ...] = (),
    column: str = "text",
    only: tuple[Kind, ...] = (),
    vocabulary: int = 2048,
    width: int = 128,
    depth: int = 4,
    heads: int = 4,
    context: int = 64,
    steps: int = 600,
    batch_tokens: int = 1024,
    learning_rate: float | None = None,
    windows: int = 1000,
    hidden: int = 128,
    seeds: int = 1,
    device: str | None = None,
    precision: Precision | None = None,
    compile: bool | None = None,
) -> None:
    """Train causal models with and without positions, and one that is not causal; probe each layer
    for the place.

    Args: data: Texts to train on: files, folders, globs, or the embedded python. out: The folder
        for the models, results.json and positions.png. What is trained already is not trained
        again. validation: Texts to validate on, and to probe; a part of the data is held out unless
        given. column: The column that has the text, in tables. only: Some of the models; all unless
        given. masked is the one that is not causal. vocabulary: Tokens that are learned from the
        data. width: Numbers in the vector of a word. depth: Blocks of each model. heads: Attention
        heads. context: Tokens of a text, and so the number of places. steps: Updates of each
        model's weights. batch_tokens: Tokens of one update. learning_rate: The highest; by the
        width unless given. windows: Stretches of held-out text that probes learn from. hidden:
        Width of the hidden layer of the paper's probe. seeds: Probes of each kind, each from other
        weights and in another order. device: cpu, cuda ...; a GPU if there is one unless given.
        precision: Of training; the best for the machine unless given. compile: Compile each model
        first; on a GPU unless given.
    """
    console = Console(highlight=False)
    reading = DataConfig(
        data=data, validation=validation, column=column, tokenizer=str(tokenizer_in(out))
    )
    shape: dict[str, Any] = {"vocabulary": vocabulary, "context": context}
    shape |= {"width": width, "depth": depth, "heads": heads}
    configs = {
        name: config for name, config in configs_of(shape).items() if not only or name in only
    }

    for name, value in (("seeds", seeds), ("windows", windows), ("hidden", hidden)):
        if value < 1:
            raise ValueError(f"{name}: expected 1 or more, not {value}")

    chosen = device_named(device)
    console.print(plan(configs, steps * batch_tokens, chosen, precision), soft_wrap=True)
    learn_tokenizer(reading, out, vocabulary)
    question = asked_places(GPTConfig(**shape), reading, batch_tokens, context, windows)
    found: list[Trained] = []

    for number, (name, config) in enumerate(configs.items(), start=1):
        console.rule(f"[bold]{number} of {len(configs)}: {said(name)}")
        run = RunConfig(
            out=out / folder_of(name), steps=steps, batch_tokens=batch_tokens, device=device, precision=precision,
            compile=compile, keep=1, resume=True, validate_every=-(-steps // 4), checkpoint_every=-(-steps // 4),
            log_every=max(1, steps // 5), sample_every=0,
        )  # fmt: skip
        outcome = train(
            config, reading, OptimizerConfig(learning_rate=learning_rate), run, console=console
        )
        if outcome is None or not outcome.finished:
            console.print("Stopped. The same command goes on from here.")
            return

        loss = math.nan if outcome.validation_loss is None else outcome.validation_loss
        found.append(Trained(name, loss, probed(run.out, question, chosen, hidden, seeds)))
        for kind, scores in found[-1].scores.items():
            by_layer = "  ".join(f"{each.mean:.2f}" for each in scores)
            console.print(f"{kind} probe, distance by layer, the embedding first: {by_layer}")

        keep_results(
            out,
            found,
            question,
            shape | {"steps": steps, "batch_tokens": batch_tokens, "hidden": hidden},
        )

    console.print(table(found, question))
    drawn = draw(found, question, out / "positions.png")
    console.print(f"{drawn} and {out / 'results.json'}", soft_wrap=True, markup=False)


# The models


def configs_of(shape: dict[str, Any]) -> dict[str, GPTConfig | BERTConfig]:
    """All alike but for their positions; the one that is not causal but for its mask."""
    made: dict[str, GPTConfig | BERTConfig] = {
        # Waves of height 1 would drown words that begin with 0.02.
        name: GPTConfig(position=name, scaled_embedding=name == "sinusoidal", **shape)
        for name in CAUSAL
    }
    plain: dict[str, Any] = {"segments": 0, "pooler": False, "next_sentence": False}
    plain |= {"norm_placement": "before", "norm_epsilon": 1e-5}

    return made | {MASKED: BERTConfig(position="none", **plain, **shape)}


def said(name: str) -> str:
    return (
        "a masked model that sees both ways, without positions"
        if name == MASKED
        else f"causal, positions: {name}"
    )


def folder_of(name: str) -> str:
    return "masked-none" if name == MASKED else f"causal-{name}"


def tokenizer_in(out: Path) -> Path:
    return out / "tokenizer.json"


def learn_tokenizer(reading: DataConfig, out: Path, vocabulary: int) -> None:
    """One for all models, so that they read the same tokens."""
    if not tokenizer_in(out).exists():
        texts = (piece.text for piece in open_texts(reading.data, column=reading.column))
        find_tokenizer(replace(reading, tokenizer="byte-pair"), texts, vocabulary, None).write(
            tokenizer_in(out)
        )


def plan(
    configs: dict[str, Any], tokens: int, device: torch.device, precision: Precision | None
) -> str:
    """What it will cost, before it begins."""
    used = precision or best_precision(device)
    flops = sum(cost(config, 1, used).flops_per_token * tokens for config in configs.values())
    seconds = flops / (0.4 * measured_peak(device, used))

    return (
        f"{len(configs)} models, {tokens:,} tokens each: about {clock(seconds)} of training on {device.type} if 40% of "
        "its speed can be used; then their probes, about half as long again."
    )


# The probes


def asked_places(
    config: GPTConfig | BERTConfig,
    reading: DataConfig,
    batch_tokens: int,
    context: int,
    windows: int,
) -> ProbeTask:
    """Places in windows of the text that no model was trained on. They begin in the middle of
    texts, without a start token, so that no model knows the first place by its word."""
    task = assemble(config, reading, batch_tokens=batch_tokens, seed=0)
    assert isinstance(task.validation, CausalData)
    tokens: Tokens = task.validation.tokens

    return position_question(tokens, context, windows, held_out=FOR_PROBES)


def probed(
    folder: Path, question: ProbeTask, device: torch.device, hidden: int, seeds: int
) -> dict[str, list[Scored]]:
    """The distance by layer, of the paper's probe with one hidden layer and of a linear one."""
    model, _ = artifact.load(folder)
    found: dict[str, list[Scored]] = {}

    with activations(
        model.to(device), question.parts, keep=place_for(question, model, device)
    ) as parts:
        for kind, width in (("hidden", hidden), ("linear", 0)):
            learning = Learning(
                hidden=width, batch=512 if device.type == "cpu" else 4096, rate=3e-3, epochs=10
            )
            made = asked(parts, question, ("model",), range(seeds), learning)
            found[kind] = [score for score in made.scores if score.measure == "distance"]

    return found


def place_for(question: ProbeTask, model: Model, device: torch.device) -> Keep:
    """In memory where all layers take a quarter of it at most; else, on a GPU, the model reads
    faster than a disk.
    """
    places, config = sum(len(part.answers) for part in question.parts), model.config
    needed = 4 * places * (config.depth + 2) * config.width
    if device.type == "cuda":
        return "memory" if needed < torch.cuda.mem_get_info(device)[0] / 4 else "recompute"

    return "memory" if needed < 2**30 else "disk"


# What came out


def keep_results(out: Path, found: list[Trained], question: ProbeTask, how: dict[str, Any]) -> None:
    models = [
        {
            "positions": each.name,
            "causal": each.name != MASKED,
            "validation_loss": each.loss,
            "distance": {
                kind: [score._asdict() | {"mean": score.mean} for score in scores]
                for kind, scores in each.scores.items()
            },
        }
        for each in found
    ]

    context = len(question.labels)
    told = {
        **how,
        "always_the_middle": context / 4,
        "windows": [len(part) for part in question.parts],
        "models": models,
    }

    storage.write_text(out / "results.json", json.dumps(told, indent=1) + "\n")


def table(found: list[Trained], question: ProbeTask) -> Table:
    made = Table(header_style="bold", caption_justify="left")
    places = len(question.labels)
    made.caption = (
        "Probes: places between a token and the guess, the mean at the best layer by the validation part. Always "
        f"the middle: {places / 4:.1f}; at random: {places / 3:.1f}. Loss: the masked model's is of masked words."
    )
    made.add_column("positions")

    for name in ("loss", "perplexity", "hidden probe", "layer", "linear probe", "layer"):
        made.add_column(name, justify="right")

    for each in found:
        best = [best_of(scores) for scores in each.scores.values()]
        cells = [cell for score in best for cell in (f"{score.mean:.2f}", score.layer)]
        made.add_row(
            "none, not causal" if each.name == MASKED else each.name,
            f"{each.loss:.4f}",
            f"{math.exp(each.loss):,.1f}",
            *cells,
        )

    return made


def draw(found: list[Trained], question: ProbeTask, path: Path) -> Path:
    """The paper's figure: the distance by layer, one line a model."""
    panels, places = [], len(question.labels)
    levels = {"always the middle": places / 4, "at random": places / 3}

    for kind, title in (("hidden", "probe with one hidden ReLU layer"), ("linear", "linear probe")):
        lines = [
            Line(
                f"causal, {each.name}" if each.name != MASKED else "not causal, none",
                each.scores[kind],
                COLOURS[[*CAUSAL, MASKED].index(each.name)],
                dashed=each.name == MASKED,
            )
            for each in found
        ]

        panels.append(Panel(title, lines, levels, "distance"))

    return draw_panels(
        panels, path, "Who knows where a token stands?",
        f"mean absolute distance of a probe's guess, {places} places, text that no model was trained on",
    )  # fmt: skip
