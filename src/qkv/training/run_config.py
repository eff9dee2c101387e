"""How a model is trained: every choice a field with its meaning, so that the command line explains
itself.
"""

from __future__ import annotations

import math
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

Schedule = Literal["cosine", "linear", "inverse-sqrt", "stable", "constant"]
Optimizer = Literal["adamw", "muon"]
Average = Literal["none", "exponential", "last"]
Distributed = Literal["ddp", "fsdp"]
Sink = Literal["tensorboard", "wandb"]
Precision = Literal["float32", "bf16", "fp16"]


def among(known: dict[str, Any], kind: type[Any]) -> dict[str, Any]:
    """Of many values by name, those that are fields of a config."""
    return {each.name: known[each.name] for each in fields(kind) if each.name in known}


@documented
@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What is read."""

    data: tuple[str, ...]
    """Files, folders, globs, - for standard input, hf:NAME of the Hugging Face hub, or the embedded
    python or turkish. For translation: two parallel files, or rows with two columns."""
    validation: tuple[str, ...] = ()
    """What to validate on, named like data; a part of the data is held out unless given."""
    held_out: float = 0.1
    """Without validation: the fraction of the data held out, at most 200,000 tokens or 2,000 pairs.
    """
    column: str = "text"
    """The column that has the text, in .jsonl, .csv, .tsv and .parquet."""
    columns: tuple[str, str] | None = None
    """For translation: the columns that have source and target."""
    tokenizer: str = "byte-pair"
    """Learned from the data: characters, words, byte-pair or word-piece; or a tokenizer.json, or a
    folder with one.
    """
    across_documents: bool = True
    """Texts packed into one row see each other; without, each text is alone."""
    mask_rate: float = 0.15
    """BERT: the fraction of words that are hidden."""
    whole_words: bool = False
    """BERT: hide all pieces of a word together."""

    def __post_init__(self) -> None:
        check_probability(self, "held_out", "mask_rate")
        check_above_zero(self, "held_out", "mask_rate")
        if not self.data:
            raise ValueError("data: expected one source or more")


@documented
@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """How the weights move."""

    optimizer: Optimizer = "adamw"
    """adamw, or muon for the matrices inside the blocks and adamw for everything else."""
    learning_rate: float | None = None
    """The highest; unless given, 6e-4 for a width of 768 and more for narrower models, as 1 /
    sqrt(width). With the inverse-sqrt schedule, the paper's 1 / sqrt(width * warmup). In
    fine-tuning 5e-5 for a width of 768, 1e-4 for the last layers, 5e-4 for adapters, 3e-3 for a
    head alone, and 3e-4 from scratch."""
    muon_learning_rate: float = 0.02
    """Muon's own, before its factor for the shape of a matrix."""
    schedule: Schedule = "cosine"
    """After warming up: cosine or linear down to final_rate, the paper's inverse-sqrt, stable then
    down at the end (warm-up-stable-decay), or constant."""
    warmup: int | None = None
    """Steps of linear warm-up to the highest learning rate; unless given 100 (500 in fine-tuning),
    but at most a tenth of all steps."""
    decay: float = 0.2
    """With the stable schedule: the fraction of all steps in which the rate goes down."""
    final_rate: float = 0.1
    """The last learning rate as a fraction of the highest."""
    weight_decay: float = 0.1
    """Of matrices, a step: this times the learning rate, so more under muon; norms and biases have
    none.
    """
    beta1: float = 0.9
    """AdamW's memory of gradients."""
    beta2: float = 0.95
    """AdamW's memory of their squares."""
    epsilon: float = 1e-8
    """Added to AdamW's denominator."""
    clip: float = 1.0
    """The largest norm of all gradients together; 0 for no clipping."""
    smoothing: float = 0.0
    """Label smoothing: the probability taken from the right word and given to all alike."""
    layer_decay: float = 1.0
    """The learning rate of each layer as a fraction of that of the layer above it; the embedding
    has the lowest.
    """
    average: Average = "none"
    """Which weights are kept in the end: the best on validation, an exponential average, or the
    mean of the last checkpoints."""
    average_decay: float = 0.999
    """Of the exponential average, a step."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_above_zero(self, "muon_learning_rate", "epsilon", "layer_decay")
        if self.learning_rate is not None:
            check_above_zero(self, "learning_rate")

        check_probability(self, "beta1", "beta2", "smoothing", "average_decay")
        if self.layer_decay > 1:
            raise ValueError(f"layer_decay: expected at most 1, not {self.layer_decay!r}")

        for name in ("decay", "final_rate", "weight_decay", "clip"):
            value = getattr(self, name)
            fraction = name in ("decay", "final_rate")
            if not 0 <= value <= (1 if fraction else math.inf):
                raise ValueError(
                    f"{name}: expected {'0 to 1' if fraction else '0 or more'}, not {value!r}"
                )


@documented
@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How any run goes, be it of training or of fine-tuning."""

    out: Path
    """The folder of the run: the model, its checkpoints and metrics."""
    seed: int = 0
    """Of the weights, the order of the data and dropout."""
    micro_batch_tokens: int | None = None
    """Tokens of one forward pass on one device; as many as fit unless given."""
    precision: Precision | None = None
    """float32 (on a GPU with TF32 products), bf16 or fp16; the best for this machine unless given.
    """
    device: str | None = None
    """cpu, cuda, cuda:1 ...; a GPU if there is one unless given."""
    compile: bool | None = None
    """Compile the model first (some tens of seconds). Unless given: on a GPU, for gpt and bert; not
    for transformer and rnn, whose batches have many shapes, nor in fine-tuning."""
    recompute: bool = False
    """Gradient checkpointing: keep only each block's input and compute the rest again, for less
    memory.
    """
    deterministic: bool = False
    """On a GPU, use only kernels that give the same bits every time; a CPU does anyway."""
    distributed: Distributed = "ddp"
    """Under torchrun: ddp copies the model to every device, fsdp shards it over them, and shows no
    samples.
    """
    validate_every: int | None = None
    """Steps between validations; ten in a run unless given (in a short one every 25), and one at
    its end.
    """
    sample_every: int | None = None
    """Steps between samples of what the model says; four in a run unless given, 0 for none."""
    stop_after: int | None = None
    """Early stopping: the run ends when so many validations in a row were no better than the best.
    """
    checkpoint_every: int | None = None
    """Steps between checkpoints; twenty in a run unless given (in a short one every 25), and one at
    its end.
    """
    keep: int | Literal["all"] = 3
    """How many of the last checkpoints stay, besides the best one, or all. RUN@400 opens the one of
    step 400.
    """
    log_every: int = 10
    """Without a terminal: steps between lines."""
    spike: float = 2.0
    """A step is skipped when its loss is this much above the median of the last hundred; 0 to skip
    none.
    """
    patience: int = 3
    """After this many bad steps in a row, go back to the last checkpoint and leave their data out;
    after going back as often without a new checkpoint, give up."""
    sinks: tuple[Sink, ...] = ()
    """Where the metrics go besides metrics.jsonl: tensorboard, wandb."""
    resume: bool = False
    """Go on with the run in out; with no run there yet, begin one."""
    dry_run: bool = False
    """Say what the run would be, its size, memory and cost, and stop."""

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
        if self.seed < 0:
            raise ValueError(f"seed: expected 0 or more, not {self.seed}")
        if self.spike < 0:
            raise ValueError(f"spike: expected 0 or more, not {self.spike}")
        if self.sample_every is not None and self.sample_every < 0:
            raise ValueError(f"sample_every: expected 0 or more, not {self.sample_every}")


@documented
@dataclass(frozen=True, kw_only=True)
class RunConfig(RunOptions):
    """How a run of training goes."""

    steps: int = 1000
    """Updates of the weights."""
    batch_tokens: int = 4096
    """Tokens of one update, over all micro-batches and machines, in whole rows; of a translation,
    of each side, padding included."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least_one(self, "steps", "batch_tokens")

    def every(self, given: int | None, times: int) -> int:
        """A number of steps, by default so that it comes so many times in a run, or fewer in a
        short one.
        """
        return max(25, self.steps // times) if given is None else given
