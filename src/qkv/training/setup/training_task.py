"""From the names of data to what a model is trained on: tokenizer, prepared data, batches; and the
model's own size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Protocol, get_args, runtime_checkable

from rich.console import Console
from torch import Tensor

from qkv.data.batches.batch import Batch
from qkv.data.batches.causal import CausalData
from qkv.data.batches.masked import MaskedData, WordPieces
from qkv.data.batches.paired import PairedData
from qkv.data.sources.source import SPLITS, open_pairs, open_texts
from qkv.data.tokens.prepare import prepare_pairs, prepare_texts
from qkv.data.tokens.token_arrays import Pairs, Tokens
from qkv.models.bert import BERTConfig
from qkv.models.gpt import GPTConfig
from qkv.models.registry import Config, Model
from qkv.models.rnn import RNNConfig
from qkv.models.task_model import TaskModelConfig
from qkv.models.transformer import TransformerConfig
from qkv.text import Kind, Tokenizer, train
from qkv.training.objective import Objective
from qkv.training.run_config import DataConfig
from qkv.training.schedule import USUAL_WARMUP

MOST_HELD_OUT = {"tokens": 200_000, "pairs": 2_000}


@runtime_checkable
class TrainingData(Protocol):
    """Batches as a pure function of the step, and all of them in order."""

    steps_per_epoch: int
    tokens_per_step: int
    order_version: int
    """Of the order in which `batch` reads the data: another number where a version of ours changed
    it.
    """

    def batch(self, step: int) -> Batch: ...

    def ordered(self) -> Iterator[Batch]: ...


@dataclass(frozen=True)
class TrainingTask:
    """What a model is trained on."""

    config: Config
    """The model's, its vocabulary now that of the tokenizer."""
    tokenizer: Tokenizer
    training: TrainingData
    validation: TrainingData
    fingerprint: str
    """Of what is read, to train and to validate on, and how it is cut into tokens."""
    asked: float = 1.0
    """The fraction of the words read that the output layer is asked about."""
    notes: tuple[str, ...] = ()
    """What a person should know about the data."""
    begin: Callable[[], Model] | None = None
    """The model that is trained on; a new one unless given."""
    objective: Callable[..., Objective] = Objective
    """What is minimised, made from the model, the precision and the smoothing."""
    measure: Callable[[Tensor], dict[str, float]] | None = None
    """Metrics from what validation counts."""
    metric: str = "loss"
    """The one that says which weights are the best."""
    save: Callable[[Mapping[str, Tensor], Path], None] | None = None
    """How the weights become an artifact in a folder, where it is more than saving the model."""
    steps: int | None = None
    """As many as the run takes, where it is counted in epochs."""
    rate: float | None = None
    """The highest learning rate, unless a person gives one."""
    warmup: int = USUAL_WARMUP
    """Steps of warm-up unless a person gives a number, but at most a tenth of all."""
    trained: float = 1.0
    """The fraction of the parameters that learn."""
    through: float = 1.0
    """The fraction of the layers that gradients pass through on their way back."""
    learning: int | None = None
    """How many they are, where it may not be all of them."""
    length: int | None = None
    """Words of a text, about, where it is far from the model's context."""


def assemble(
    config: Config, data: DataConfig, *, batch_tokens: int, seed: int, tokenizer: Path | None = None
) -> TrainingTask:
    """Read, tokenize and prepare. `tokenizer` is one learned before, for a run that is resumed."""
    if isinstance(config, TransformerConfig | RNNConfig):
        return paired_task(config, data, batch_tokens, seed, tokenizer)
    if isinstance(config, TaskModelConfig):
        raise ValueError("config: a model with a head is fine-tuned: qkv finetune")

    return text_task(config, data, batch_tokens, seed, tokenizer)


def text_task(
    config: GPTConfig | BERTConfig,
    data: DataConfig,
    batch_tokens: int,
    seed: int,
    learned: Path | None,
) -> TrainingTask:
    source = open_texts(data.data, column=data.column)
    tokenizer = find_tokenizer(data, (piece.text for piece in source), config.vocabulary, learned)
    tokens = prepare_texts(source, tokenizer)
    held_out = validation_source(data)
    if held_out:
        training, validation = (
            tokens,
            prepare_texts(open_texts(held_out, column=data.column), tokenizer),
        )
    else:
        training, validation = tokens.split(fraction(data.held_out, len(tokens), "tokens"))

    config = replace(config, vocabulary=tokenizer.vocabulary)
    length = config.context
    if isinstance(config, GPTConfig) and config.memory:
        length *= 1 + -(
            -config.memory // config.context
        )  # a row of several segments, to have something to remember

    rows = max(1, batch_tokens // length)

    def batches(tokens: Tokens) -> TrainingData:
        across = data.across_documents
        if isinstance(config, GPTConfig):
            return CausalData(tokens, length, rows, seed, across_documents=across)

        return MaskedData(
            tokens, length, rows, seed, WordPieces.of(tokenizer), rate=data.mask_rate, whole_words=data.whole_words,
            across_documents=across,
        )  # fmt: skip

    if isinstance(config, GPTConfig) and config.memory and not data.across_documents:
        raise ValueError(
            "across_documents: a model with memory reads on from text to text; leave it True"
        )

    notes = [
        f"{len(training):,} tokens to train on, {len(validation):,} to validate on, vocabulary {config.vocabulary:,}"
    ]
    if len(training) <= length:
        notes.append(
            f"that is less than one row of {length:,} tokens: the same row comes again and again, padded"
        )

    asked = data.mask_rate if isinstance(config, BERTConfig) else 1.0
    fingerprint = both(training, validation)

    return TrainingTask(
        config, tokenizer, batches(training), batches(validation), fingerprint, asked, tuple(notes)
    )


def paired_task(
    config: TransformerConfig | RNNConfig,
    data: DataConfig,
    budget: int,
    seed: int,
    learned: Path | None,
) -> TrainingTask:
    if config.source_vocabulary is not None:
        raise ValueError(
            "source_vocabulary: one tokenizer serves both languages here; leave it out"
        )

    source = open_pairs(data.data, columns=data.columns)
    tokenizer = find_tokenizer(data, chain.from_iterable(source), config.vocabulary, learned)
    missing = [role for role in ("start", "end", "padding") if getattr(tokenizer, role) is None]
    if missing:
        raise ValueError(f"tokenizer: translation needs a token for {missing[0]}, and it has none")

    pairs = prepare_pairs(source, tokenizer)
    held_out = validation_source(data)
    if held_out:
        training, validation = (
            pairs,
            prepare_pairs(open_pairs(held_out, columns=data.columns), tokenizer),
        )
    else:
        training, validation = pairs.split(fraction(data.held_out, len(pairs), "pairs"))

    config = replace(config, vocabulary=tokenizer.vocabulary)
    context = config.context if isinstance(config, TransformerConfig) else None

    def batches(pairs: Pairs) -> PairedData:
        assert tokenizer.start is not None
        assert tokenizer.end is not None
        assert tokenizer.padding is not None
        return PairedData(
            pairs, tokenizer.start, tokenizer.end, tokenizer.padding, budget, seed, context
        )

    made = batches(training), batches(validation)
    notes = [
        f"{len(training):,} pairs to train on, {len(validation):,} to validate on, vocabulary {config.vocabulary:,}"
    ]
    if left_out := sum(each.left_out for each in made):
        notes.append(
            f"{left_out:,} pairs are longer than the context or a whole batch, and are left out"
        )

    first, second = (tokenizer.decode(side(0)) for side in (training.source, training.target))
    notes.append(f"the first pair: {first} -> {second}")

    return TrainingTask(config, tokenizer, *made, both(training, validation), notes=tuple(notes))


def find_tokenizer(
    data: DataConfig, texts: Iterable[str], vocabulary: int, learned: Path | None
) -> Tokenizer:
    if learned is not None:
        return Tokenizer.read(learned)

    if data.tokenizer in get_args(Kind):
        with Console(stderr=True).status(
            f"learning a tokenizer of kind {data.tokenizer}"
        ):  # seen on a terminal only
            return train(data.tokenizer, texts, vocabulary)  # type: ignore[arg-type]

    if not Path(data.tokenizer).exists():
        kinds = ", ".join(get_args(Kind))
        raise ValueError(
            f"tokenizer: {data.tokenizer!r} is neither a file nor a folder, nor one of {kinds}"
        )

    return Tokenizer.read(data.tokenizer)


def validation_source(data: DataConfig) -> tuple[str, ...]:
    """As given; the embedded sources bring their own."""
    if not data.validation and len(data.data) == 1 and data.data[0] in SPLITS:
        return (f"{data.data[0]}:valid",)

    return data.validation


def both(training: Tokens | Pairs, validation: Tokens | Pairs) -> str:
    return hashlib.sha256(f"{training.fingerprint} {validation.fingerprint}".encode()).hexdigest()


def fraction(held_out: float, count: int, of: str) -> float:
    return min(held_out, MOST_HELD_OUT[of] / max(1, count))
