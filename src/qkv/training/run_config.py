"""Configuration of training: data, optimizer and run; the fields are the command line's flags."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from qkv.nn.config import (
    check_above_zero,
    check_at_least_one,
    check_fields,
    check_probability,
    documented,
)
from qkv.plugins import is_plugin

Schedule = Literal["cosine", "linear", "inverse-sqrt", "stable", "constant"]
Average = Literal["none", "exponential", "last"]
Distributed = Literal["ddp", "fsdp"]
Sink = Literal["tensorboard", "wandb"]
Precision = Literal["float32", "bf16", "fp16"]


OPTIMIZERS: dict[str, Any] = {"adamw": None, "muon": None}
"""Optimizers by name. To add one: OPTIMIZERS["mine"] = a class like those of torch.optim."""
OBJECTIVES: dict[str, Any] = {}
"""Objectives by name. To add one: OBJECTIVES["mine"] = a subclass of qkv.training.objective's."""


def pick_fields(known: dict[str, Any], kind: type[Any]) -> dict[str, Any]:
    """The values whose names are fields of a config class."""
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in known.items() if name in names}


@documented
@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What a model is trained and validated on.

    Raises:
        ValueError: A field is out of its range, or `data` is empty.

    Example:
        >>> DataConfig(data=("corpus.txt",), tokenizer="characters").held_out
        0.1
    """

    data: tuple[str, ...]
    """Files, folders, globs, - for standard input, hf:NAME of the Hugging Face hub, or the embedded
    python or turkish. For translation: two parallel files, or rows with two columns."""
    validation: tuple[str, ...] = ()
    """Data to validate on, named like --data (default: a part of the data is held out)."""
    held_out: float = 0.1
    """Without --validation: the fraction of the data held out, at most 200,000 tokens or 2,000
    pairs."""
    column: str = "text"
    """The column with the text, in .jsonl, .csv, .tsv and .parquet."""
    columns: tuple[str, str] | None = None
    """Translation: the columns with source and target."""
    tokenizer: str = "byte-pair"
    """The kind to learn from the data (characters, words, byte-pair or word-piece), or a
    tokenizer.json, or a folder with one."""
    across_documents: bool = True
    """Texts packed into one row attend to each other; without it, each text only to itself."""
    carry_memory: bool = False
    """A GPT with --memory (Transformer-XL), or an rnn-lm: rows of consecutive batches continue the
    same texts, and the model's memory is carried from step to step; on one device."""
    mask_rate: float = 0.15
    """BERT: the fraction of tokens that are masked."""
    whole_words: bool = False
    """BERT: mask all pieces of a word together."""

    def __post_init__(self) -> None:
        check_probability(self, "held_out", "mask_rate")
        check_above_zero(self, "held_out", "mask_rate")
        if not self.data:
            raise ValueError("data: expected one source or more")


@documented
@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Optimizer, learning rate schedule, regularisation and weight averaging.

    Raises:
        ValueError: A field is out of its range.

    Example:
        >>> OptimizerConfig(learning_rate=3e-4, schedule="linear").clip
        1.0
    """

    optimizer: str = "adamw"
    """adamw, or muon for the matrices inside the blocks and adamw for everything else, or
    FILE.py:NAME, your own class like those of torch.optim."""
    objective: str | None = None
    """FILE.py:NAME, your own loss: a subclass of qkv.training.objective.Objective (default: the
    cross-entropy of what the model predicts)."""
    learning_rate: float | None = None
    """The highest learning rate. By default 6e-4 for a width of 768 and more for narrower models,
    as 1 / sqrt(width); with the inverse-sqrt schedule the paper's 1 / sqrt(width * warmup). In
    fine-tuning 5e-5 for a width of 768, 1e-4 for the last layers, 5e-4 for adapters, 3e-3 for a
    head alone, and 3e-4 from scratch."""
    muon_learning_rate: float = 0.02
    """Muon's learning rate, before its factor for the shape of a matrix."""
    schedule: Schedule = "cosine"
    """After the warm-up: cosine or linear decay to final_rate, the paper's inverse-sqrt, stable
    with a decay at the end (warmup-stable-decay), or constant."""
    warmup: int | None = None
    """Steps of linear warm-up to the highest learning rate (default 100, or 500 in fine-tuning, but
    at most a tenth of all steps)."""
    decay: float = 0.2
    """Stable schedule: the fraction of all steps in which the learning rate decays."""
    final_rate: float = 0.1
    """The last learning rate as a fraction of the highest."""
    weight_decay: float = 0.1
    """Weight decay of matrices, per step and multiplied by the learning rate; norms and biases have
    none."""
    beta1: float = 0.9
    """AdamW: decay of the mean of gradients."""
    beta2: float = 0.95
    """AdamW: decay of the mean of squared gradients."""
    epsilon: float = 1e-8
    """AdamW: added to the denominator."""
    clip: float = 1.0
    """Gradient clipping: the largest norm of all gradients together; 0 for none."""
    smoothing: float = 0.0
    """Label smoothing: the probability moved from the right token to all tokens equally."""
    layer_decay: float = 1.0
    """The learning rate of each layer as a fraction of that of the layer above; the embedding has
    the lowest."""
    average: Average = "none"
    """The weights that are validated and saved: those trained (none), their exponential moving
    average, or in the end the mean of the last checkpoints (last)."""
    average_decay: float = 0.999
    """Decay per step of the exponential moving average."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_plugin("optimizer", self.optimizer, OPTIMIZERS)
        if self.objective is not None:
            check_plugin("objective", self.objective, OBJECTIVES)

        check_above_zero(self, "muon_learning_rate", "epsilon", "layer_decay")
        if self.learning_rate is not None:
            check_above_zero(self, "learning_rate")

        check_probability(self, "beta1", "beta2", "smoothing", "average_decay")
        if self.layer_decay > 1:
            raise ValueError(f"layer_decay: expected at most 1, not {self.layer_decay!r}")

        for name in ("decay", "final_rate"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise ValueError(f"{name}: expected 0 to 1, not {value!r}")

        check_not_negative(self, "weight_decay", "clip")


def check_not_negative(config: Any, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and not 0 <= value <= math.inf:
            raise ValueError(f"{name}: expected 0 or more, not {value!r}")


def check_plugin(field: str, name: str, known: Iterable[str]) -> None:
    if name not in known and not is_plugin(name):
        raise ValueError(f"{field}: expected {', '.join([*known, 'FILE.py:NAME'])}, not {name!r}")


@documented
@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of every run, of training and of fine-tuning."""

    out: Path
    """The folder of the run: the model, its checkpoints and metrics."""
    seed: int = 0
    """Seed of the weights, the order of the data and dropout."""
    micro_batch_tokens: int | None = None
    """Tokens of one micro-batch, i.e. one forward pass on one device (default: as many as fit)."""
    precision: Precision | None = None
    """float32 (on a GPU with TF32 products), bf16 or fp16 (default: the best for this machine)."""
    device: str | None = None
    """cpu, cuda, cuda:1 ... (default: a GPU if there is one)."""
    compile: bool | None = None
    """Compile the model first, which takes tens of seconds (default: on a GPU for gpt and bert, if
    the run is long enough to save more; not for transformer and rnn, whose batches have many
    shapes, nor in fine-tuning)."""
    recompute: bool = False
    """Gradient checkpointing: store only the input of each block and recompute the rest in the
    backward pass, for less memory."""
    deterministic: bool = False
    """On a GPU, use only kernels that give the same bits every time; a CPU always does."""
    distributed: Distributed = "ddp"
    """Under torchrun: ddp copies the model to every device, fsdp shards it over them (and shows no
    samples)."""
    validate_every: int | None = None
    """Steps between validations (default: ten in a run, but not more often than every 25 steps);
    the last step is always validated."""
    sample_every: int | None = None
    """Steps between samples of generated text (default: four in a run); 0 for none."""
    stop_after: int | None = None
    """Early stopping: end the run after this many validations in a row without a better one."""
    checkpoint_every: int | None = None
    """Steps between checkpoints (default: twenty in a run, but not more often than every 25 steps);
    the last step always has one."""
    keep: int | Literal["all"] = 3
    """Number of last checkpoints to keep besides the best one, or all. RUN@400 opens that of step
    400."""
    log_every: int = 10
    """Steps between printed lines, where the output is not a terminal."""
    spike: float = 2.0
    """Skip a step with a loss spike: its loss is this much above the median of the last hundred; 0
    to skip none."""
    patience: int = 3
    """After this many bad steps in a row, go back to the last checkpoint and leave their data out;
    after as many returns without a new checkpoint, give up."""
    sinks: tuple[Sink, ...] = ()
    """Where to log metrics besides metrics.jsonl: tensorboard, wandb."""
    resume: bool = False
    """Resume the run in --out; if there is none yet, begin one."""
    dry_run: bool = False
    """Print the plan (size, memory, cost) and stop."""

    def __post_init__(self) -> None:
        check_at_least_one(
            self,
            "micro_batch_tokens",
            "validate_every",
            "stop_after",
            "checkpoint_every",
            "log_every",
            "patience",
        )

        if self.keep != "all" and not (isinstance(self.keep, int) and self.keep >= 1):
            raise ValueError(f"keep: expected 1 or more, or all, not {self.keep!r}")

        check_not_negative(self, "seed", "spike", "sample_every")


@documented
@dataclass(frozen=True, kw_only=True)
class RunConfig(RunOptions):
    """How long a training run is, where it is saved, and how it is computed.

    Raises:
        ValueError: A field is out of its range.

    Example:
        >>> RunConfig(out=Path("runs/gpt"), steps=500).batch_tokens
        4096
    """

    steps: int = 1000
    """Updates of the weights."""
    batch_tokens: int = 4096
    """Tokens per update, over all micro-batches and machines, in whole rows; in translation the
    tokens of each side, padding included."""
    fp8: bool = False
    """Compute the output layer of a gpt, and feed-forward layers with GELU from width 768 on, in
    8-bit floating point (FP8), on a GPU of 2023 or later; all else stays in bf16."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least_one(self, "steps", "batch_tokens")

    def every(self, interval: int | None, times: int) -> int:
        """A number of steps; by default `times` in a run, but at least 25 steps."""
        if interval is None:
            return max(25, self.steps // times)

        return interval
