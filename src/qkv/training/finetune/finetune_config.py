"""What is fine-tuned, for what task, and how much of it: every choice a field with its meaning."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal, get_args

from qkv.models.configs import HeadTask, Pooling
from qkv.nn.config import check_above_zero, check_at_least_one, check_probability, documented
from qkv.nn.stack_config import AdapterConfig, Projection
from qkv.training.run_config import OptimizerConfig, RunOptions

TuneTask = Literal[
    "classify", "pair", "similarity", "choice", "tag", "regress", "chat", "translate"
]
Trained = Literal["everything", "last", "head", "adapters"]
Marks = Literal["new", "own"]
Metric = Literal["accuracy", "macro_f1", "matthews", "pearson", "mean_absolute_error", "loss"]
USUAL_EPOCHS, MOST_EPOCHS, ENOUGH_STEPS = 3, 30, 300
USUAL_WARMUP = 500
HEADS: tuple[str, ...] = get_args(HeadTask)
DEFAULTS = OptimizerConfig(schedule="linear", final_rate=0.0, weight_decay=0.01, beta2=0.999)
"""How weights move in fine-tuning, unless a person says otherwise."""


@documented
@dataclass(frozen=True, kw_only=True)
class FinetuneConfig:
    """What is fine-tuned, and for what."""

    model: str
    """The pre-trained model: the folder of a run or of transformers, a GGUF file, or the name of an
    installed one (minilm, smollm2)."""
    task: TuneTask
    """classify: a text to a class. pair: two texts to a class. similarity: two texts, in no order,
    to a class or a number. choice: one of several endings. tag: a label a word. regress: a number.
    chat: answers in conversations. translate: with an encoder-decoder."""
    data: tuple[str, ...]
    """Labelled rows (.tsv, .csv, .jsonl, .parquet), .conllu for tags, conversations in .jsonl for
    chat, pairs for translate; files, folders, globs, - or hf:NAME."""
    validation: tuple[str, ...] = ()
    """What to validate on, named like data; a part of the data is held out unless given."""
    held_out: float = 0.1
    """Without validation: the fraction of the data held out, at most 2,000 examples."""
    examples: int | None = None
    """Train on so many, chosen by the seed, the classes as even as they can be; all unless given.
    """
    text: str | None = None
    """The column that has the text; the usual names are looked for unless given."""
    pair: str | None = None
    """The column that has the second text."""
    label: str | None = None
    """The column that has the label; in .conllu upos unless given."""
    numbers: bool | None = None
    """Similarity: whether the labels are numbers, not classes; whether one has a fraction says so
    unless given.
    """
    train: Trained = "everything"
    """How much learns: everything, the last layers and the head, the head alone (a linear probe),
    or low-rank adapters (LoRA) and the head."""
    last: int = 2
    """With train = last: so many layers."""
    rank: int = AdapterConfig.rank
    """Of the adapters."""
    alpha: float = AdapterConfig.alpha
    """The adapters' change is multiplied by alpha / rank."""
    adapter_dropout: float = 0.0
    """Probability to drop a number of what an adapter reads."""
    projections: tuple[Projection, ...] = AdapterConfig.projections
    """What is adapted: query, key, value, output of attention; gate (of SwiGLU), up, down of the
    feed-forward.
    """
    pooling: Pooling | None = None
    """The vector of a text: last (the extract token's; a GPT's unless given), first ([CLS]'s; of a
    BERT that has a pooler), or mean (of other BERTs, and where a folder of sentence-transformers
    says so, as minilm's does)."""
    marks: Marks | None = None
    """A GPT's start, delimiter and extract tokens: new ones as in GPT-1, or the tokenizer's own
    start and end; new when everything is trained, unless given."""
    language: float | None = None
    """A GPT's auxiliary loss as in GPT-1: so much of the language model's; 0.5 when everything is
    trained, unless given."""
    class_weights: tuple[str, ...] = ()
    """balanced, or label=weight ...: how much the loss of each class counts; all alike unless
    given.
    """
    dropout: float | None = None
    """Of the body and the head in training; the body's own, and 0.1 in the head, unless given."""
    context: int | None = None
    """Longest text in tokens; the model's own unless given, and 1,024 at most for chat."""
    metric: Metric | None = None
    """What says which weights are the best: accuracy for classes, pearson for similarity,
    mean_absolute_error for numbers, and loss for chat and translate, unless given."""
    scratch: bool = False
    """Begin with random weights instead of the pre-trained ones, to see what pre-training is worth.
    """

    def __post_init__(self) -> None:
        check_probability(self, "held_out")
        check_above_zero(self, "held_out")
        check_at_least_one(self, "examples", "last", "context")
        if self.dropout is not None:
            check_probability(self, "dropout")

        if self.language is not None and self.language < 0:
            raise ValueError(f"language: expected 0 or more, not {self.language!r}")
        if not self.data:
            raise ValueError("data: expected one source or more")

        for name in (
            ()
            if self.task in HEADS
            else ("text", "pair", "label", "numbers", "pooling", "marks", "language")
        ):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{name}: {self.task} puts no head on the model and has no use for it; leave it out"
                )

        if self.numbers and self.task not in ("similarity", "regress"):
            raise ValueError(f"numbers: {self.task} has classes; expected similarity or regress")
        if self.numbers is False and self.task == "regress":
            raise ValueError("numbers: what regress says is always a number; leave it out")
        if self.train == "head" and self.task not in HEADS:
            raise ValueError(
                f"train: {self.task} puts no head on the model; expected everything, last or adapters"
            )
        if self.scratch and self.train != "everything":
            raise ValueError(
                "scratch: random weights must all be trained, so expected train = everything"
            )
        if self.class_weights and self.task not in ("classify", "pair", "similarity", "tag"):
            raise ValueError(f"class_weights: {self.task} has no classes; leave them out")
        if self.train != "everything" and self.marks == "new":
            raise ValueError(
                f"marks: new tokens must be learned, and train = {self.train} freezes them; expected own"
            )
        if self.task == "translate" and self.context is not None:
            raise ValueError(
                "context: translate reads whole sentences, as long as the model's own; leave it out"
            )

        _ = self.adapters  # whose own checks speak now

    def unused(self) -> tuple[str, ...]:
        """What a person gave, but what is trained has no use for."""
        of = {"last": ("last",), "adapters": ("rank", "alpha", "adapter_dropout", "projections")}
        defaults = {each.name: each.default for each in fields(self)}
        return tuple(
            f"{name} is not used: it is for train = {train}, not {self.train}"
            for train, names in of.items()
            for name in names
            if self.train != train and getattr(self, name) != defaults[name]
        )

    @property
    def adapters(self) -> AdapterConfig | None:
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
    """How a run of fine-tuning goes."""

    epochs: float | None = None
    """Times through the data; 3 unless given, and more of little data: up to 30, for 300 steps."""
    batch: int = 32
    """Examples (labelled texts, conversations, pairs) of one update, over all micro-batches and
    machines.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epochs is not None:
            check_above_zero(self, "epochs")

        check_at_least_one(self, "batch")

    def steps(self, steps_per_epoch: int) -> int:
        """Updates in all."""
        usual = min(max(USUAL_EPOCHS, ENOUGH_STEPS / steps_per_epoch), MOST_EPOCHS)
        return math.ceil((usual if self.epochs is None else self.epochs) * steps_per_epoch)
