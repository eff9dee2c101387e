"""The training task: from the names of data to tokenizer, batches and the model's configuration."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, get_args, runtime_checkable

from rich.console import Console
from torch import Tensor

from qkv.data.batches.batch import Batch
from qkv.data.batches.causal import CausalData
from qkv.data.batches.masked import MaskedData, WordPieces
from qkv.data.batches.paired import PairedData
from qkv.data.batches.streams import StreamedData
from qkv.data.sources.named import NAMED_SOURCES
from qkv.data.sources.source import Source, open_pairs, open_texts
from qkv.data.tokens.prepare import prepare_pairs, prepare_texts
from qkv.data.tokens.token_arrays import Pairs, Tokens
from qkv.models.configs import OwnGPTConfig, RNNLMConfig
from qkv.models.model import Model
from qkv.models.registry import Config, build
from qkv.models.without_numbers import without_numbers
from qkv.text import Kind, Tokenizer, train
from qkv.text.special_tokens import OURS
from qkv.training.objective import Objective
from qkv.training.run_config import DataConfig
from qkv.training.schedule import USUAL_WARMUP

MOST_TOKENS_HELD_OUT = 200_000
MOST_PAIRS_HELD_OUT = 2_000
BYTES = 256
"""Tokens that a byte-pair vocabulary has at least, besides special ones."""


@runtime_checkable
class TrainingData(Protocol):
    """Batches as a pure function of the position, and all of them in order."""

    steps_per_epoch: int
    tokens_per_step: int
    order_version: int
    """Version of the order in which `batch` reads the data; it changes when the order does."""

    def batch(self, step: int) -> Batch: ...

    def ordered(self) -> Iterator[Batch]: ...


@dataclass(frozen=True, kw_only=True)
class Workload:
    """How much of a model a step computes, which decides what it costs."""

    output_fraction: float = 1.0
    """Fraction of the tokens whose features pass the output layer."""
    trained_fraction: float = 1.0
    """Fraction of the parameters that are trained."""
    backward_fraction: float = 1.0
    """Fraction of the layers that gradients pass through."""
    length: int | None = None
    """Tokens of a typical sequence, where it is far from the model's context."""


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
    workload: Workload = field(default_factory=Workload)
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
    trainable: int | None = None
    """Number of trained parameters, where some may be frozen."""


def assemble(
    config: Config, data: DataConfig, *, batch_tokens: int, seed: int, tokenizer: Path | None = None
) -> TrainingTask:
    """Read, tokenize and prepare the data; `tokenizer` holds the one of a run that is resumed."""
    model = meta_model(config)
    if model.task is not None:
        raise ValueError("config: a model with a head is fine-tuned: qkv finetune")

    task = paired_task if model.has_source else text_task
    return task(model, data, batch_tokens, seed, tokenizer)


def meta_model(config: Config) -> Model:
    """A model without numbers, which knows what the model of this config can do."""
    with without_numbers():
        return build(config)


def text_task(
    model: Model, data: DataConfig, batch_tokens: int, seed: int, tokenizer_folder: Path | None
) -> TrainingTask:
    """Texts for a model that predicts the next token, or masked tokens."""
    # Tokenize, and set the validation data apart
    config = model.config
    open_named = partial(open_texts, column=data.column)
    source = open_named(data.data)
    texts = (piece.text for piece in source)
    tokenizer = find_tokenizer(data, texts, config.vocabulary, tokenizer_folder)
    prepare = partial(prepare_texts, tokenizer=tokenizer)
    validation_texts = validation_source(data, open_named)
    training, validation = held_out(
        source, validation_texts, prepare, data.held_out, MOST_TOKENS_HELD_OUT
    )

    # Batches
    config = replace(config, vocabulary=tokenizer.vocabulary)
    length = row_length(config, data)
    rows = max(1, batch_tokens // length)
    workload = Workload()
    if model.predicts == "masked":
        config = replace(config, pooler=False, next_sentence=False)  # which this does not train
        workload = Workload(output_fraction=data.mask_rate)

    def batches(tokens: Tokens) -> TrainingData:
        if model.predicts == "next":
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

    training_data = batches(training)
    if data.carry_memory:
        training_data = streams(model, training, batch_tokens, seed)

    notes = [sizes_note(training, validation, "tokens", config.vocabulary)]
    notes += text_notes(model, data, training_data, len(training))

    return TrainingTask(
        config, tokenizer, training_data, batches(validation),
        joint_fingerprint(training, validation), workload, tuple(notes),
    )  # fmt: skip


def text_notes(model: Model, data: DataConfig, training: TrainingData, tokens: int) -> list[str]:
    """What may surprise in data of texts."""
    notes = []
    if tokenizer_kind(data, model.config.vocabulary) != data.tokenizer:
        notes.append(
            f"a vocabulary of {model.config.vocabulary} is too small for byte pairs, "
            "so tokens are characters"
        )

    length = row_length(model.config, data)
    if tokens <= length and not isinstance(training, StreamedData):
        notes.append(
            f"that is less than one row of {length:,} tokens: "
            "the same row comes again and again, padded"
        )

    return notes


def streams(model: Model, tokens: Tokens, batch_tokens: int, seed: int) -> StreamedData:
    """Training data whose rows go on from step to step, one segment of the context at a time."""
    if model.predicts != "next" or not model.reads_on:
        raise ValueError(
            "carry_memory: expected a model that remembers: a gpt with --position relative "
            "--memory, or an rnn-lm"
        )

    context = model.config.context
    return StreamedData(tokens, context, max(1, batch_tokens // context), seed)


def row_length(config: Any, data: DataConfig) -> int:
    """Tokens of a row: the context, or with a segment memory several segments to remember."""
    memory = getattr(config, "memory", 0)
    reads_on = memory or isinstance(config, RNNLMConfig)
    if reads_on and not data.across_documents:
        raise ValueError(
            "across_documents: a recurrent model, or one with memory, reads on from text to text; "
            "leave it True"
        )

    if isinstance(config, OwnGPTConfig) and not data.across_documents:
        raise ValueError("across_documents: your own GPT reads a row as one text; leave it True")

    return config.context * (1 + -(-memory // config.context))


def paired_task(
    model: Model, data: DataConfig, batch_tokens: int, seed: int, tokenizer_folder: Path | None
) -> TrainingTask:
    """Pairs of source and target for an encoder-decoder."""
    config = model.config
    if config.source_vocabulary is not None:
        raise ValueError(
            "source_vocabulary: one tokenizer serves both languages here; leave it out"
        )

    open_named = partial(open_pairs, columns=data.columns)
    source = open_named(data.data)
    texts = chain.from_iterable(source)
    tokenizer = find_tokenizer(data, texts, config.vocabulary, tokenizer_folder)
    config = replace(config, vocabulary=tokenizer.vocabulary)
    training, validation, left_out = read_pairs(
        source,
        validation_source(data, open_named),
        tokenizer,
        data.held_out,
        budget=batch_tokens,
        seed=seed,
        context=getattr(config, "context", None),
    )

    pairs = training.pairs
    sizes = sizes_note(pairs, validation.pairs, "pairs", config.vocabulary)
    first_source = tokenizer.decode(pairs.source(0))
    first_target = tokenizer.decode(pairs.target(0))

    return TrainingTask(
        config,
        tokenizer,
        training,
        validation,
        joint_fingerprint(pairs, validation.pairs),
        notes=(sizes, *left_out, f"the first pair: {first_source} -> {first_target}"),
    )


def read_pairs(
    source: Source[Any],
    validation: Source[Any] | None,
    tokenizer: Tokenizer,
    fraction: float,
    budget: int | None = None,
    **options: Any,
) -> tuple[PairedData, PairedData, list[str]]:
    """Batches of pairs to train and to validate on, and a note if some pairs are too long.

    Without `validation` a fraction is held out; `options` are those of PairedData.
    """
    for role in ("start", "end", "padding"):
        options[role] = getattr(tokenizer, role)
        if options[role] is None:
            raise ValueError(f"tokenizer: translation needs a token for {role}, and it has none")

    prepare = partial(prepare_pairs, tokenizer=tokenizer)
    batches = partial(PairedData, budget=budget, **options)
    parts = held_out(source, validation, prepare, fraction, MOST_PAIRS_HELD_OUT)
    training, held = map(batches, parts)
    left_out = training.left_out + held.left_out
    if not left_out:
        return training, held, []

    longest = "the context or a whole batch" if budget else "the context"
    note = f"{left_out:,} pairs are longer than {longest}, and are left out"
    return training, held, [note]


def held_out(
    source: Source[Any],
    validation: Source[Any] | None,
    prepare: Callable[[Any], Any],
    fraction: float,
    most: int,
) -> Any:
    """The data to train on and the `validation` data, or else a fraction that is held out."""
    everything = prepare(source)
    if validation is not None:
        return everything, prepare(validation)

    return everything.split(min(fraction, most / max(1, len(everything))))


def find_tokenizer(
    data: DataConfig, texts: Iterable[str], vocabulary: int, folder: Path | None
) -> Tokenizer:
    """The tokenizer in a run's folder, or the one that `data` names: learned, or read."""
    if folder is not None:
        return Tokenizer.read(folder)

    if data.tokenizer in get_args(Kind):
        kind = tokenizer_kind(data, vocabulary)
        # The status is shown on a terminal only.
        with Console(stderr=True).status(f"learning a {kind} tokenizer"):
            return train(kind, texts, vocabulary)  # type: ignore[arg-type]

    if not Path(data.tokenizer).exists():
        kinds = ", ".join(get_args(Kind))
        raise ValueError(
            f"tokenizer: {data.tokenizer!r} is neither a file nor a folder, nor one of {kinds}"
        )

    return Tokenizer.read(data.tokenizer)


def tokenizer_kind(data: DataConfig, vocabulary: int) -> str:
    """The kind of tokenizer to learn: characters where the vocabulary cannot hold all bytes."""
    if data.tokenizer == "byte-pair" and vocabulary < len(OURS) + BYTES:
        return "characters"

    return data.tokenizer


def validation_source(
    data: DataConfig, open_named: Callable[[Sequence[str]], Source[Any]]
) -> Source[Any] | None:
    """The validation data, if it is named; embedded data has a validation part of its own."""
    names = data.validation
    if not names and len(data.data) == 1 and data.data[0] in NAMED_SOURCES:
        names = (f"{data.data[0]}:valid",)

    return open_named(names) if names else None


def sizes_note(training: Sized, validation: Sized, unit: str, vocabulary: int | None = None) -> str:
    note = f"{len(training):,} {unit} to train on, {len(validation):,} to validate on"
    return f"{note}, vocabulary {vocabulary:,}" if vocabulary else note


def joint_fingerprint(training: Tokens | Pairs, validation: Tokens | Pairs) -> str:
    """One checksum of the data to train on and the data to validate on."""
    return hashlib.sha256(f"{training.fingerprint} {validation.fingerprint}".encode()).hexdigest()
