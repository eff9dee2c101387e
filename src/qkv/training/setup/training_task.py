"""The training task: from the names of data to tokenizer, batches and the model's configuration."""

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
from qkv.data.sources.named import NAMED_SOURCES
from qkv.data.sources.source import open_pairs, open_texts
from qkv.data.tokens.prepare import prepare_pairs, prepare_texts
from qkv.data.tokens.token_arrays import Pairs, Tokens
from qkv.models.bert import BERTConfig
from qkv.models.gpt import GPTConfig
from qkv.models.model import Model
from qkv.models.registry import Config
from qkv.models.rnn import RNNConfig
from qkv.models.task_model import TaskModelConfig
from qkv.models.transformer import TransformerConfig
from qkv.text import Kind, Tokenizer, train
from qkv.training.objective import Objective
from qkv.training.run_config import DataConfig
from qkv.training.schedule import USUAL_WARMUP

MOST_TOKENS_HELD_OUT = 200_000
MOST_PAIRS_HELD_OUT = 2_000


@runtime_checkable
class TrainingData(Protocol):
    """Batches as a pure function of the position, and all of them in order."""

    steps_per_epoch: int
    tokens_per_step: int
    order_version: int
    """Version of the order in which `batch` reads the data; it changes when the order does."""

    def batch(self, step: int) -> Batch: ...

    def ordered(self) -> Iterator[Batch]: ...


@dataclass(frozen=True)
class TrainingTask:
    """What a model is trained on, and how."""

    config: Config
    """The model's configuration, with the tokenizer's vocabulary."""
    tokenizer: Tokenizer
    training: TrainingData
    validation: TrainingData
    fingerprint: str
    """Checksum of the data to train and validate on, and of the tokenizer."""
    output_fraction: float = 1.0
    """Fraction of the tokens whose features pass the output layer."""
    notes: tuple[str, ...] = ()
    """Facts about the data to print."""
    initial_model: Callable[[], Model] | None = None
    """The model to continue training (default: a new one)."""
    objective: Callable[..., Objective] = Objective
    """Makes the objective from the model, `precision` and `smoothing`."""
    measure: Callable[[Tensor], dict[str, float]] | None = None
    """Computes metrics from what validation counts."""
    metric: str = "loss"
    """The metric that decides which weights are the best."""
    save: Callable[[Mapping[str, Tensor], Path], None] | None = None
    """Writes weights as an artifact, where that is more than saving the model."""
    steps: int | None = None
    """Steps of the run, where it is counted in epochs."""
    learning_rate: float | None = None
    """The highest learning rate by default."""
    warmup: int = USUAL_WARMUP
    """Steps of warm-up by default, but at most a tenth of all."""
    trained_fraction: float = 1.0
    """Fraction of the parameters that are trained."""
    backward_fraction: float = 1.0
    """Fraction of the layers that gradients pass through."""
    trainable: int | None = None
    """Number of trained parameters, where some may be frozen."""
    length: int | None = None
    """Tokens of a typical sequence, where it is far from the model's context."""


def assemble(
    config: Config, data: DataConfig, *, batch_tokens: int, seed: int, tokenizer: Path | None = None
) -> TrainingTask:
    """Read, tokenize and prepare the data; `tokenizer` holds the one of a run that is resumed."""
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
    tokenizer_folder: Path | None,
) -> TrainingTask:
    """Texts for a GPT (next token) or a BERT (masked tokens)."""
    # Tokenize, and set the validation data apart
    source = open_texts(data.data, column=data.column)
    texts = (piece.text for piece in source)
    tokenizer = find_tokenizer(data, texts, config.vocabulary, tokenizer_folder)
    tokens = prepare_texts(source, tokenizer)
    names = validation_source(data)
    if names:
        training = tokens
        validation = prepare_texts(open_texts(names, column=data.column), tokenizer)
    else:
        fraction = min(data.held_out, MOST_TOKENS_HELD_OUT / max(1, len(tokens)))
        training, validation = tokens.split(fraction)

    # Batches
    config = replace(config, vocabulary=tokenizer.vocabulary)
    length = row_length(config, data)
    rows = max(1, batch_tokens // length)

    def batches(tokens: Tokens) -> TrainingData:
        if isinstance(config, GPTConfig):
            return CausalData(tokens, length, rows, seed, across_documents=data.across_documents)

        return MaskedData(
            tokens,
            length,
            rows,
            seed,
            WordPieces.of(tokenizer),
            rate=data.mask_rate,
            whole_words=data.whole_words,
            across_documents=data.across_documents,
        )

    notes = [sizes_note(training, validation, "tokens", config.vocabulary)]
    if len(training) <= length:
        notes.append(
            f"that is less than one row of {length:,} tokens: "
            "the same row comes again and again, padded"
        )

    output_fraction = 1.0
    if isinstance(config, BERTConfig):
        output_fraction = data.mask_rate

    return TrainingTask(
        config, tokenizer, batches(training), batches(validation),
        joint_fingerprint(training, validation), output_fraction, tuple(notes),
    )  # fmt: skip


def row_length(config: GPTConfig | BERTConfig, data: DataConfig) -> int:
    """Tokens of a row: the context, or with a segment memory several segments to remember."""
    if not isinstance(config, GPTConfig) or not config.memory:
        return config.context

    if not data.across_documents:
        raise ValueError(
            "across_documents: a model with memory reads on from text to text; leave it True"
        )

    segments = 1 + -(-config.memory // config.context)
    return segments * config.context


def paired_task(
    config: TransformerConfig | RNNConfig,
    data: DataConfig,
    batch_tokens: int,
    seed: int,
    tokenizer_folder: Path | None,
) -> TrainingTask:
    """Pairs of source and target for an encoder-decoder."""
    if config.source_vocabulary is not None:
        raise ValueError(
            "source_vocabulary: one tokenizer serves both languages here; leave it out"
        )

    # Tokenize, and set the validation data apart
    source = open_pairs(data.data, columns=data.columns)
    texts = chain.from_iterable(source)
    tokenizer = find_tokenizer(data, texts, config.vocabulary, tokenizer_folder)
    for role in ("start", "end", "padding"):
        if getattr(tokenizer, role) is None:
            raise ValueError(f"tokenizer: translation needs a token for {role}, and it has none")

    pairs = prepare_pairs(source, tokenizer)
    names = validation_source(data)
    if names:
        training = pairs
        validation = prepare_pairs(open_pairs(names, columns=data.columns), tokenizer)
    else:
        fraction = min(data.held_out, MOST_PAIRS_HELD_OUT / max(1, len(pairs)))
        training, validation = pairs.split(fraction)

    # Batches
    config = replace(config, vocabulary=tokenizer.vocabulary)
    training_data = paired_batches(training, config, tokenizer, batch_tokens, seed)
    validation_data = paired_batches(validation, config, tokenizer, batch_tokens, seed)

    notes = [sizes_note(training, validation, "pairs", config.vocabulary)]
    left_out = training_data.left_out + validation_data.left_out
    if left_out:
        notes.append(
            f"{left_out:,} pairs are longer than the context or a whole batch, and are left out"
        )

    first_source = tokenizer.decode(training.source(0))
    first_target = tokenizer.decode(training.target(0))
    notes.append(f"the first pair: {first_source} -> {first_target}")

    return TrainingTask(
        config,
        tokenizer,
        training_data,
        validation_data,
        joint_fingerprint(training, validation),
        notes=tuple(notes),
    )


def paired_batches(
    pairs: Pairs,
    config: TransformerConfig | RNNConfig,
    tokenizer: Tokenizer,
    batch_tokens: int,
    seed: int,
) -> PairedData:
    assert tokenizer.start is not None
    assert tokenizer.end is not None
    assert tokenizer.padding is not None
    context = None
    if isinstance(config, TransformerConfig):
        context = config.context

    return PairedData(
        pairs, tokenizer.start, tokenizer.end, tokenizer.padding, batch_tokens, seed, context
    )


def find_tokenizer(
    data: DataConfig, texts: Iterable[str], vocabulary: int, folder: Path | None
) -> Tokenizer:
    """The tokenizer in a run's folder, or the one that `data` names: learned, or read."""
    if folder is not None:
        return Tokenizer.read(folder)

    if data.tokenizer in get_args(Kind):
        # The status is shown on a terminal only.
        with Console(stderr=True).status(f"learning a {data.tokenizer} tokenizer"):
            return train(data.tokenizer, texts, vocabulary)  # type: ignore[arg-type]

    if not Path(data.tokenizer).exists():
        kinds = ", ".join(get_args(Kind))
        raise ValueError(
            f"tokenizer: {data.tokenizer!r} is neither a file nor a folder, nor one of {kinds}"
        )

    return Tokenizer.read(data.tokenizer)


def validation_source(data: DataConfig) -> tuple[str, ...]:
    """The names of validation data; embedded data has a validation part of its own."""
    if not data.validation and len(data.data) == 1 and data.data[0] in NAMED_SOURCES:
        return (f"{data.data[0]}:valid",)

    return data.validation


def sizes_note(
    training: Tokens | Pairs, validation: Tokens | Pairs, unit: str, vocabulary: int
) -> str:
    return (
        f"{len(training):,} {unit} to train on, {len(validation):,} to validate on, "
        f"vocabulary {vocabulary:,}"
    )


def joint_fingerprint(training: Tokens | Pairs, validation: Tokens | Pairs) -> str:
    """One checksum of the data to train on and the data to validate on."""
    return hashlib.sha256(f"{training.fingerprint} {validation.fingerprint}".encode()).hexdigest()
