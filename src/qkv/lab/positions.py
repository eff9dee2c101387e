"""Which models encode token positions? Haviv et al. (2022) as one command: `qkv lab positions`.

In a causal model the number of visible tokens differs from position to position, so it can count
them. In a bidirectional model every position sees the same tokens: without a positional encoding it
cannot tell positions apart. Small models of both kinds are trained on the same text; then probes
try to read the position of each token off every layer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import tyro
from rich.console import Console

from qkv import artifact, storage
from qkv.data.batches.causal import CausalData
from qkv.data.sources.source import open_texts
from qkv.insight.probing.activations import ActivationStorage, activations
from qkv.insight.probing.linear_probe import ProbeTraining
from qkv.insight.probing.probe_model import LayerScore, ProbeRun, best_of
from qkv.insight.probing.probe_tasks import ProbeTask, position_task
from qkv.insight.render.figures.figure_style import COLOURS
from qkv.insight.render.figures.probe_figure import Line, Panel, draw_panels
from qkv.models import BERTConfig, GPTConfig
from qkv.models.model import Model
from qkv.nn.config import check_at_least_one
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
"""Share of the held-out text to validate probes on, and again to test them on."""


class Trained(NamedTuple):
    """A trained model and its probes."""

    name: str
    loss: float
    """Validation loss: of the next token, or of masked tokens."""
    scores: dict[str, list[LayerScore]]
    """The scores of the probes by layer, for the `hidden` and the `linear` probe."""


@dataclass(frozen=True, kw_only=True)
class PositionExperiment:
    """The settings of the experiment."""

    data: tuple[str, ...] = ("python",)
    """Texts to train on: files, folders, globs, or the embedded python."""
    out: Path = Path("runs/positions")
    """Folder for the models, results.json and positions.png; finished models are kept."""
    validation: tuple[str, ...] = ()
    """Texts to validate on and to probe; by default a part of the data is held out."""
    column: str = "text"
    """The column of the text, in tables."""
    only: tuple[Kind, ...] = ()
    """Some of the models (default all); masked is the bidirectional one."""
    vocabulary: int = 2048
    """Size of the vocabulary, which is learned from the data."""
    width: int = 128
    """Width of the models."""
    depth: int = 4
    """Blocks of each model."""
    heads: int = 4
    """Attention heads."""
    context: int = 64
    """Tokens in a text, and so the number of positions."""
    steps: int = 600
    """Training steps of each model."""
    batch_tokens: int = 1024
    """Tokens in a step."""
    learning_rate: float | None = None
    """Peak learning rate; by default it depends on the width."""
    windows: int = 1000
    """Windows of held-out text that probes are trained on."""
    hidden: int = 128
    """Width of the hidden layer of the paper's probe."""
    seeds: int = 1
    """Probes of each kind, with different weights and order of the data."""
    device: str | None = None
    """cpu, cuda ...; by default a GPU if there is one."""
    precision: Precision | None = None
    """Precision of training; by default the best of the device."""
    compile: bool | None = None
    """Compile each model first; by default on a GPU."""

    def __post_init__(self) -> None:
        check_at_least_one(self, "seeds", "windows", "hidden")

    @property
    def shape(self) -> dict[str, Any]:
        """The sizes of each model."""
        names = ("vocabulary", "context", "width", "depth", "heads")
        return {name: getattr(self, name) for name in names}

    @property
    def tokenizer(self) -> Path:
        """The file of the tokenizer that all models share."""
        return self.out / "tokenizer.json"

    @property
    def data_config(self) -> DataConfig:
        """The data of each model."""
        return DataConfig(
            data=self.data,
            validation=self.validation,
            column=self.column,
            tokenizer=str(self.tokenizer),
        )

    def run_config(self, name: str) -> RunConfig:
        """The training run of one model."""
        quarter = -(-self.steps // 4)
        return RunConfig(
            out=self.out / folder_of(name),
            steps=self.steps,
            batch_tokens=self.batch_tokens,
            device=self.device,
            precision=self.precision,
            compile=self.compile,
            keep=1,
            resume=True,
            validate_every=quarter,
            checkpoint_every=quarter,
            log_every=max(1, self.steps // 5),
            sample_every=0,
        )


def positions(
    experiment: tyro.conf.OmitArgPrefixes[PositionExperiment] = PositionExperiment(),  # noqa: B008
) -> None:
    """Train models with and without a positional encoding, and probe each layer for positions.

    Args:
        experiment: The settings.
    """
    console = Console(highlight=False)
    out = experiment.out
    configs = configs_of(experiment.shape)
    if experiment.only:
        configs = {name: configs[name] for name in configs if name in experiment.only}

    console.print(plan(experiment, configs), soft_wrap=True)
    learn_tokenizer(experiment)
    task = held_out_positions(experiment)
    results: list[Trained] = []

    for number, (name, config) in enumerate(configs.items(), start=1):
        console.rule(f"[bold]{number} of {len(configs)}: {title_of(name)}")
        loss = train_model(experiment, name, config, console)
        if loss is None:
            console.print("Stopped. The same command resumes the training.")
            return

        scores = probed(experiment, name, task)
        results.append(Trained(name, loss, scores))
        for kind, by_layer in scores.items():
            distances = "  ".join(f"{score.mean:.2f}" for score in by_layer)
            console.print(f"{kind} probe, distance by layer, the embedding first: {distances}")

        write_results(experiment, results, task)

    console.print(table(results, task))
    figure = draw(results, task, out / "positions.png")
    console.print(f"{figure} and {out / 'results.json'}", soft_wrap=True, markup=False)


# The models


def configs_of(shape: dict[str, Any]) -> dict[str, GPTConfig | BERTConfig]:
    """Causal models that differ in their positional encoding, and a bidirectional one without."""
    configs: dict[str, GPTConfig | BERTConfig] = {}
    for name in CAUSAL:
        # Token embeddings start at 0.02, and would vanish beside waves of amplitude 1.
        scaled = name == "sinusoidal"
        configs[name] = GPTConfig(position=name, scaled_embedding=scaled, **shape)

    configs[MASKED] = BERTConfig(
        position="none",
        segments=0,
        pooler=False,
        next_sentence=False,
        norm_placement="before",
        norm_epsilon=1e-5,
        **shape,
    )

    return configs


def title_of(name: str) -> str:
    """The readable name of a model in tables and figures."""
    if name == MASKED:
        return "a bidirectional masked model without positional encoding"

    return f"causal, positional encoding: {name}"


def folder_of(name: str) -> str:
    """The folder of a model."""
    if name == MASKED:
        return "masked-none"

    return f"causal-{name}"


def learn_tokenizer(experiment: PositionExperiment) -> None:
    """Train one tokenizer for all models, so that they read the same tokens."""
    if experiment.tokenizer.exists():
        return

    texts = (piece.text for piece in open_texts(experiment.data, column=experiment.column))
    byte_pair = replace(experiment.data_config, tokenizer="byte-pair")
    find_tokenizer(byte_pair, texts, experiment.vocabulary, None).write(experiment.tokenizer)


def train_model(
    experiment: PositionExperiment, name: str, config: GPTConfig | BERTConfig, console: Console
) -> float | None:
    """Train one model; return its validation loss, or None if the training was stopped."""
    run = experiment.run_config(name)
    optimizer = OptimizerConfig(learning_rate=experiment.learning_rate)
    outcome = train(config, experiment.data_config, optimizer, run, console=console)
    if outcome is None or not outcome.finished:
        return None
    if outcome.validation_loss is None:
        return math.nan

    return outcome.validation_loss


def plan(experiment: PositionExperiment, configs: Mapping[str, Any]) -> str:
    """The estimated time, before the training starts."""
    device = device_named(experiment.device)
    precision = experiment.precision or best_precision(device)
    tokens = experiment.steps * experiment.batch_tokens
    flops = sum(cost(config, 1, precision).flops_per_token * tokens for config in configs.values())
    seconds = flops / (0.4 * measured_peak(device, precision))

    return (
        f"{len(configs)} models, {tokens:,} tokens each. Estimated time: {clock(seconds)} of "
        f"training on {device.type} (at 40% utilisation), and about half of that for the probes."
    )


# The probes


def held_out_positions(experiment: PositionExperiment) -> ProbeTask:
    """The position task on text that no model was trained on.

    The windows begin in the middle of texts, without a start token that would reveal the first
    position.
    """
    config = GPTConfig(**experiment.shape)
    task = assemble(config, experiment.data_config, batch_tokens=experiment.batch_tokens, seed=0)
    data = task.validation
    assert isinstance(data, CausalData)
    return position_task(data.tokens, experiment.context, experiment.windows, held_out=FOR_PROBES)


def probed(
    experiment: PositionExperiment, name: str, task: ProbeTask
) -> dict[str, list[LayerScore]]:
    """The distance by layer for the paper's probe with one hidden layer, and for a linear one."""
    device = device_named(experiment.device)
    model = artifact.load(experiment.out / folder_of(name)).model.to(device)
    batch = 512 if device.type == "cpu" else 4096
    scores: dict[str, list[LayerScore]] = {}

    with activations(model, task.parts, keep=storage_for(task, model, device)) as parts:
        for kind, width in (("hidden", experiment.hidden), ("linear", 0)):
            learning = ProbeTraining(hidden=width, batch=batch, rate=3e-3, epochs=10)
            run = ProbeRun(task, range(experiment.seeds), learning)
            run.train(parts, ("model",))
            scores[kind] = [score for score in run.scores if score.measure == "distance"]

    return scores


def storage_for(task: ProbeTask, model: Model, device: torch.device) -> ActivationStorage:
    """Memory if all layers fit easily; else disk, or on a GPU recompute, which is faster there."""
    vectors = sum(len(part.targets) for part in task.parts)
    needed = 4 * vectors * (model.config.depth + 2) * model.config.width
    available = 2**30
    alternative: ActivationStorage = "disk"
    if device.type == "cuda":
        available = torch.cuda.mem_get_info(device)[0] // 4
        alternative = "recompute"

    if needed < available:
        return "memory"

    return alternative


# The results


def write_results(experiment: PositionExperiment, results: list[Trained], task: ProbeTask) -> None:
    """Write results.json."""
    models = []
    for result in results:
        distance = {}
        for kind, scores in result.scores.items():
            distance[kind] = [score._asdict() | {"mean": score.mean} for score in scores]

        models.append(
            {
                "positions": result.name,
                "causal": result.name != MASKED,
                "validation_loss": result.loss,
                "distance": distance,
            }
        )

    report = {
        **experiment.shape,
        "steps": experiment.steps,
        "batch_tokens": experiment.batch_tokens,
        "hidden": experiment.hidden,
        "always_the_middle": len(task.labels) / 4,
        "windows": list(map(len, task.parts)),
        "models": models,
    }
    storage.write_text(experiment.out / "results.json", json.dumps(report, indent=1) + "\n")


def baselines(task: ProbeTask) -> dict[str, float]:
    """The mean distance of predictions that ignore the model."""
    count = len(task.labels)
    return {"always the middle": count / 4, "at random": count / 3}


def table(results: list[Trained], task: ProbeTask) -> Table:
    """A row for each model: its loss, and the best layer of both probes."""
    middle, random = baselines(task).values()
    result_table = Table(header_style="bold", caption_justify="left")
    result_table.caption = (
        "Probes: mean absolute distance between the true and the predicted position, at the best "
        "layer by validation. Baselines: always the middle: "
        f"{middle:.1f}; at random: {random:.1f}. The loss of the masked model is that of masked "
        "tokens."
    )
    result_table.add_column("positions")
    for name in ("loss", "perplexity", "hidden probe", "layer", "linear probe", "layer"):
        result_table.add_column(name, justify="right")

    for result in results:
        name = "none, bidirectional" if result.name == MASKED else result.name
        cells = [name, f"{result.loss:.4f}", f"{math.exp(result.loss):,.1f}"]
        for scores in result.scores.values():
            best = best_of(scores)
            cells += [f"{best.mean:.2f}", best.layer]

        result_table.add_row(*cells)

    return result_table


def draw(results: list[Trained], task: ProbeTask, path: Path) -> Path:
    """The paper's figure: the distance by layer, one line for each model."""
    panels = []
    names = [*CAUSAL, MASKED]
    for kind, title in (("hidden", "probe with one hidden ReLU layer"), ("linear", "linear probe")):
        lines = []
        for result in results:
            masked = result.name == MASKED
            label = "bidirectional, none" if masked else f"causal, {result.name}"
            colour = COLOURS[names.index(result.name)]
            lines.append(Line(label, result.scores[kind], colour, dashed=masked))

        panels.append(Panel(title, lines, baselines(task), "distance"))

    return draw_panels(
        panels,
        path,
        "Which models encode token positions?",
        f"mean absolute distance of the probe's prediction, {len(task.labels)} positions, "
        "held-out text",
    )
