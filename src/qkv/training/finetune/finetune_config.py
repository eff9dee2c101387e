"""Configuration of fine-tuning: model, task, data, and how much of the model is trained."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal, get_args

from qkv.models.configs import HeadTask, Pooling
from qkv.nn.config import check_above_zero, check_at_least_one, check_probability, documented
from qkv.nn.stack_config import AdapterConfig, Projection
from qkv.training.run_config import OptimizerConfig, RunOptions, check_not_negative

TuneTask = Literal[
    "classify", "pair", "similarity", "choice", "tag", "regress", "chat", "translate"
]
Trained = Literal["everything", "last", "head", "adapters"]
Marks = Literal["new", "own"]
Metric = Literal["accuracy", "macro_f1", "matthews", "pearson", "mean_absolute_error", "loss"]

HEADS: tuple[str, ...] = get_args(HeadTask)
"""Tasks that put a head on the model."""
HEAD_OPTIONS = ("text", "pair", "label", "numbers", "pooling", "marks", "language")
"""Options of tasks with a head only."""
TRAIN_OPTIONS = {"last": ("last",), "adapters": ("rank", "alpha", "adapter_dropout", "projections")}
"""Options of one value of `train` only."""

USUAL_EPOCHS = 3
MOST_EPOCHS = 30
ENOUGH_STEPS = 300
USUAL_WARMUP = 500
DEFAULTS = OptimizerConfig(schedule="linear", final_rate=0.0, weight_decay=0.01, beta2=0.999)
"""The optimizer's defaults in fine-tuning."""


@documented
@dataclass(frozen=True, kw_only=True)
class FinetuneConfig:
    """Which model is fine-tuned, for which task and on which data.

    Raises:
        ValueError: A field is out of its range, or does not go with the task.

    Example:
        >>> tune = FinetuneConfig(model="minilm", task="classify", data=("sst2.tsv",), train="head")
        >>> tune.held_out
        0.1
    """

    model: str
    """The pre-trained model: the folder of a run or of transformers, a GGUF file, or the name of an
    installed one (minilm, smollm2)."""
    task: TuneTask
    """classify: a text to a class. pair: two texts to a class. similarity: two texts, in no order,
    to a class or a number. choice: one of several endings. tag: a label for every word. regress: a
    number. chat: answers in conversations. translate: with an encoder-decoder."""
    data: tuple[str, ...]
    """Labelled rows (.tsv, .csv, .jsonl, .parquet), .conllu for tags, conversations in .jsonl for
    chat, pairs for translate; files, folders, globs, - or hf:NAME."""
    validation: tuple[str, ...] = ()
    """Data to validate on, named like --data (default: a part of the data is held out)."""
    held_out: float = 0.1
    """Without --validation: the fraction of the data held out, at most 2,000 examples."""
    examples: int | None = None
    """Number of examples to train on, chosen by the seed, with the classes as even as possible
    (default: all)."""
    text: str | None = None
    """The column with the text (default: one with a usual name)."""
    pair: str | None = None
    """The column with the second text."""
    label: str | None = None
    """The column with the label (default: one with a usual name; upos in .conllu)."""
    numbers: bool | None = None
    """Similarity: the labels are numbers, not classes (default: if a label has a fraction)."""
    train: Trained = "everything"
    """What is trained: everything, the last layers and the head, the head alone (a linear probe),
    or low-rank adapters (LoRA) and the head."""
    last: int = 2
    """With --train last: the number of layers."""
    rank: int = AdapterConfig.rank
    """Rank of the adapters."""
    alpha: float = AdapterConfig.alpha
    """The adapters' change is multiplied by alpha / rank."""
    adapter_dropout: float = 0.0
    """Dropout on the input of the adapters."""
    projections: tuple[Projection, ...] = AdapterConfig.projections
    """The adapted matrices: query, key, value, output of attention; gate (of SwiGLU), up, down of
    the feed-forward."""
    pooling: Pooling | None = None
    """The vector of a text: last (that of the extract token; default for a GPT), first (that of
    [CLS]; default for a BERT with a pooler), or mean (default for other BERTs and where a folder of
    sentence-transformers is configured so, as minilm is)."""
    marks: Marks | None = None
    """A GPT's start, delimiter and extract tokens: new ones as in GPT-1, or the tokenizer's own
    start and end (default: new if everything is trained)."""
    language: float | None = None
    """Weight of a GPT's auxiliary language-modelling loss, as in GPT-1 (default 0.5 if everything
    is trained, else 0)."""
    class_weights: tuple[str, ...] = ()
    """balanced, or label=weight ...: weights of the classes in the loss (default 1 each)."""
    dropout: float | None = None
    """Dropout of backbone and head (default: the backbone's own, and 0.1 in the head)."""
    context: int | None = None
    """Longest text in tokens (default: the model's context, but at most 1,024 for chat)."""
    metric: Metric | None = None
    """The metric that decides which weights are the best (default: accuracy for classes, pearson
    for similarity, mean_absolute_error for numbers, loss for chat and translate)."""
    scratch: bool = False
    """Start with random weights instead of the pre-trained ones, to measure what pre-training is
    worth."""

    def __post_init__(self) -> None:
        self.check_ranges()
        self.check_head_options()
        self.check_numbers()
        self.check_training()
        _ = self.adapters  # which checks its own fields

    def check_ranges(self) -> None:
        check_probability(self, "held_out")
        check_above_zero(self, "held_out")
        check_at_least_one(self, "examples", "last", "context")
        if self.dropout is not None:
            check_probability(self, "dropout")

        check_not_negative(self, "language")
        if not self.data:
            raise ValueError("data: expected one source or more")

    def check_head_options(self) -> None:
        """A task without a head takes none of the head's options."""
        if self.task in HEADS:
            return

        for name in HEAD_OPTIONS:
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{name}: {self.task} puts no head on the model and has no use for it; "
                    "leave it out"
                )

        if self.train == "head":
            raise ValueError(
                f"train: {self.task} puts no head on the model; "
                "expected everything, last or adapters"
            )
        if self.metric not in (None, "loss"):
            raise ValueError(f"metric: {self.task} is judged by its loss, not by {self.metric}")

    def check_numbers(self) -> None:
        """Numbers and classes must suit the task."""
        if self.numbers and self.task not in ("similarity", "regress"):
            raise ValueError(f"numbers: {self.task} has classes; expected similarity or regress")
        if self.numbers is False and self.task == "regress":
            raise ValueError("numbers: regress always predicts a number; leave it out")
        if self.class_weights and self.task not in ("classify", "pair", "similarity", "tag"):
            raise ValueError(f"class_weights: {self.task} has no classes; leave them out")

    def check_training(self) -> None:
        """What is trained must suit the other options."""
        if self.scratch and self.train != "everything":
            raise ValueError(
                "scratch: random weights must all be trained, so expected train = everything"
            )
        if self.train != "everything" and self.marks == "new":
            raise ValueError(
                f"marks: new tokens must be learned, and train = {self.train} freezes them; "
                "expected own"
            )
        if self.task == "translate" and self.context is not None:
            raise ValueError(
                "context: translate reads whole sentences, as long as the model's own; leave it out"
            )

    def unused(self) -> tuple[str, ...]:
        """Notes on options that were set but have no effect with this value of `train`."""
        defaults = {field.name: field.default for field in fields(self)}
        notes: list[str] = []
        for train, names in TRAIN_OPTIONS.items():
            for name in names:
                if self.train != train and getattr(self, name) != defaults[name]:
                    notes.append(f"{name} is not used: it is for train = {train}, not {self.train}")

        return tuple(notes)

    @property
    def adapters(self) -> AdapterConfig | None:
        """The configuration of the adapters; None if none are trained."""
        if self.train != "adapters":
            return None

        return AdapterConfig(
            rank=self.rank,
            alpha=self.alpha,
            dropout=self.adapter_dropout,
            projections=self.projections,
        )


@documented
@dataclass(frozen=True, kw_only=True)
class FinetuneRunConfig(RunOptions):
    """How long a fine-tuning run is, where it is saved, and how it is computed.

    Raises:
        ValueError: A field is out of its range.

    Example:
        >>> FinetuneRunConfig(out="runs/sst2", epochs=2).steps(steps_per_epoch=100)
        200
    """

    epochs: float | None = None
    """Times through the data (default 3; more if the data are few: up to 30, for 300 steps)."""
    batch: int = 32
    """Examples (labelled texts, conversations, pairs) per update, over all micro-batches and
    machines."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epochs is not None:
            check_above_zero(self, "epochs")

        check_at_least_one(self, "batch")

    def steps(self, steps_per_epoch: int) -> int:
        """Updates of the whole run."""
        epochs = self.epochs
        if epochs is None:
            epochs = min(max(USUAL_EPOCHS, ENOUGH_STEPS / steps_per_epoch), MOST_EPOCHS)

        return math.ceil(epochs * steps_per_epoch)
