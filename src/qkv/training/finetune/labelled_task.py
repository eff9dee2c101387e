"""From a pre-trained model and the names of data to what is fine-tuned on: marks, head, examples,
batches.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv import artifact
from qkv.data.batches.framing import Frame, FramedExamples
from qkv.data.batches.labelled import LabelledData, Targets
from qkv.data.batches.labels import balanced, labels_of, numbers_of, spread_of, targets_of
from qkv.data.sources.examples import Example
from qkv.models.bert import BERT, BERTConfig
from qkv.models.configs import HeadConfig, Pooling
from qkv.models.convert.hf_folder import read_json
from qkv.models.gpt import GPT, GPTConfig
from qkv.models.registry import Model, backbone_of, build, with_weights
from qkv.models.resize_vocabulary import with_vocabulary
from qkv.models.task_model import TaskModel, TaskModelConfig, backbone_for
from qkv.text import Tokenizer
from qkv.training.finetune.adapter_export import save_adapted
from qkv.training.finetune.finetune_config import USUAL_WARMUP, FinetuneConfig, FinetuneRunConfig
from qkv.training.finetune.finetune_examples import read_examples, told
from qkv.training.finetune.freeze import freeze, learning_in, passed_through
from qkv.training.finetune.task_metrics import measures
from qkv.training.finetune.task_objective import TaskObjective
from qkv.training.setup.training_task import TrainingTask
from qkv.training.systems.distributed import device_named

NEW_MARKS = ("[begin]", "[delimiter]", "[extract]")
SHAPES = 16
"""On a GPU texts are padded to a multiple of this: a step of a shape that comes again is recorded
and replayed.
"""
LANGUAGE = 0.5  # GPT-1's


class Start(NamedTuple):
    """What fine-tuning begins with."""

    model: Model
    tokenizer: Tokenizer
    fingerprint: str
    """Of the weights."""


def open_start(name: str) -> Start:
    model, tokenizer = artifact.load(name)
    tokenizer = tokenizer or artifact.tokenizer_of(name)
    return Start(model, tokenizer, artifact.checksum(model.state_dict()))


def labelled_task(tune: FinetuneConfig, run: FinetuneRunConfig) -> TrainingTask:
    """A head on a GPT or a BERT, and the examples it is taught with."""
    training, validation, has_numbers, sources = read_examples(tune, run.seed)
    labels, notes = ((), ()) if has_numbers else labels_of(training, validation, tune.task)
    start = open_start(tune.model)
    backbone = backbone_of(start.model)
    if not isinstance(backbone, GPT | BERT):
        raise ValueError(
            f"model: {tune.model} is an encoder-decoder; {tune.task} expects a GPT or a BERT"
        )

    backbone, tokenizer, marks = marked(backbone, start.tokenizer, tune, run.seed)
    offset, scale = (
        spread_of(numbers_of(training), training[0].where) if has_numbers else (0.0, 1.0)
    )
    config = headed_config(tune, backbone.config, marks, tokenizer, labels, offset, scale)
    frame = Frame(**config.frame)

    def batches(examples: Sequence[Example]) -> tuple[FramedExamples, LabelledData]:
        framed = frame.encode(tokenizer, examples)
        targets: Any = (
            [0] * len(examples) if has_numbers else targets_of(examples, labels, tune.task)
        )
        # In the head's own units: as they are, those far from zero would all be one number in
        # float32.
        numbers = (numbers_of(examples) - offset) / scale if has_numbers else None
        multiple = SHAPES if device_named(run.device).type == "cuda" else 1

        return framed, LabelledData(
            framed, targets, numbers, frame, run.batch, run.seed, multiple=multiple
        )

    (framed, data), (framed_validation, validation_data) = batches(training), batches(validation)
    notes = (
        *tune.unused(),
        *notes,
        *told(training, validation, labels, (framed, framed_validation), config.context),
    )
    language = language_of(tune, backbone)
    model = headed(config, backbone, tune, run.seed)
    trained = freeze(model, tune, says_words=language > 0, seed=run.seed)
    weights = class_weights(tune, labels, data.targets)

    return TrainingTask(
        config,
        tokenizer,
        data,
        validation_data,
        fingerprint_of(start, sources, tokenizer),
        asked=1.0 if language else 0.0,
        notes=notes,
        begin=lambda: model,
        objective=partial(TaskObjective, language=language, class_weights=weights),
        measure=partial(measures, config.head),
        metric=metric_of(tune, config.head),
        save=partial(save_adapted, config, tune, tokenizer) if tune.adapters else None,
        steps=run.steps(data.steps_per_epoch),
        rate=rate_of(tune, config.width),
        warmup=USUAL_WARMUP,
        trained=trained,
        learning=learning_in(model),
        through=passed_through(tune, config.depth),
        length=max(1, len(framed.ids) // len(framed)),
    )


# Marks and head


def marked(
    backbone: GPT | BERT, tokenizer: Tokenizer, tune: FinetuneConfig, seed: int
) -> tuple[GPT | BERT, Tokenizer, tuple[int | None, int, int]]:
    """The marks around texts: start, delimiter, extract. New ones make the vocabulary larger."""
    if (
        isinstance(backbone, GPT)
        and (tune.marks or ("new" if tune.train == "everything" else "own")) == "new"
    ):
        tokenizer = tokenizer.with_special(NEW_MARKS)
        start, delimiter, extract = (tokenizer.id(mark) for mark in NEW_MARKS)
        assert delimiter is not None
        assert extract is not None
        grown = with_vocabulary(
            backbone, max(backbone.config.vocabulary, tokenizer.vocabulary), seed
        )
        return grown, tokenizer, (start, delimiter, extract)

    if tokenizer.end is None:
        raise ValueError("marks: the tokenizer has no token that ends a text; expected new")
    if isinstance(backbone, BERT) and tokenizer.start is None:
        raise ValueError(
            "model: its tokenizer has no token that starts a text, which a BERT reads first"
        )

    return backbone, tokenizer, (tokenizer.start, tokenizer.end, tokenizer.end)


def headed_config(
    tune: FinetuneConfig,
    backbone: GPTConfig | BERTConfig,
    marks: tuple[int | None, int, int],
    tokenizer: Tokenizer,
    labels: tuple[str, ...],
    offset: float,
    scale: float,
) -> TaskModelConfig:
    start, delimiter, extract = marks
    bert = isinstance(backbone, BERTConfig)
    pooling = tune.pooling or (
        usual_pooling(tune.model, backbone) if isinstance(backbone, BERTConfig) else "last"
    )
    head = HeadConfig(
        task=tune.task,  # type: ignore[arg-type]
        labels=labels,
        pooling=pooling,
        dropout=0.1 if tune.dropout is None else tune.dropout,
        bias=bert or tune.task == "tag",
        start=start,
        delimiter=delimiter,
        extract=extract,
        padding=padding_of(tokenizer),
        context=tune.context,
        offset=offset,
        scale=scale,
    )

    inner = backbone_for(backbone, pooler=pooling == "first" and tune.task != "tag")

    return TaskModelConfig(backbone=with_dropout(inner, tune), head=head)


def usual_pooling(model: str, backbone: BERTConfig) -> Pooling:
    """The first word's vector where pre-training made it the text's, which a pooler shows; else the
    mean, and where a folder of sentence-transformers says so."""
    told = artifact.named(model) / "1_Pooling" / "config.json"
    if told.is_file() and read_json(told).get("pooling_mode_mean_tokens") is True:
        return "mean"

    return "first" if backbone.pooler else "mean"


def padding_of(tokenizer: Tokenizer) -> int:
    """What fills shorter rows up; nobody looks at it, so where there is no such token any other
    serves.
    """
    return next(id for id in (tokenizer.padding, tokenizer.end, 0) if id is not None)


def with_dropout(backbone: Any, tune: FinetuneConfig) -> Any:
    """As asked for; a frozen body has none, and shows the head the same vector every time."""
    dropout = 0.0 if tune.train == "head" else tune.dropout
    if dropout is None:
        return backbone

    names = [
        field.name for field in fields(backbone) if field.name in ("dropout", "attention_dropout")
    ]

    return replace(backbone, **dict.fromkeys(names, dropout))


def headed(
    config: TaskModelConfig, backbone: GPT | BERT, tune: FinetuneConfig, seed: int
) -> TaskModel:
    """The body's weights, unless from scratch, and a new head."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build(config)

    assert isinstance(model, TaskModel)
    if tune.scratch:
        return model

    own = model.backbone.state_dict()
    given: Mapping[str, Tensor] = backbone.state_dict()
    weights = {f"backbone.{name}": given[name] for name in own}

    return with_weights(
        config, weights | {f"head.{n}": t for n, t in model.head.state_dict().items()}
    )  # type: ignore[return-value]


# Choices that depend on the model and the data


def language_of(tune: FinetuneConfig, backbone: GPT | BERT) -> float:
    """How much the language model's loss counts: GPT-1's, where its words can still be learned."""
    if tune.language is not None:
        if tune.language and isinstance(backbone, BERT):
            raise ValueError("language: only a GPT predicts the next word; leave it out")

        return tune.language

    return LANGUAGE if isinstance(backbone, GPT) and tune.train == "everything" else 0.0


def metric_of(tune: FinetuneConfig, head: HeadConfig) -> str:
    usual = "accuracy"
    if head.numbers:
        usual = "pearson" if head.task == "similarity" else "mean_absolute_error"

    known = ["loss", "pearson", "mean_absolute_error"] if head.numbers else ["loss", "accuracy"]
    known += ["macro_f1", "matthews"] if head.labels else []
    if tune.metric is not None and tune.metric not in known:
        raise ValueError(f"metric: {head.task} has {', '.join(known)}, not {tune.metric}")

    return tune.metric or usual


def rate_of(tune: FinetuneConfig, width: int) -> float:
    """Highest learning rates that do well for most; narrower models take larger steps."""
    usual = {"everything": 5e-5, "last": 1e-4, "adapters": 5e-4, "head": 3e-3}[tune.train]
    return (3e-4 if tune.scratch else usual) * math.sqrt(768 / width)


def class_weights(
    tune: FinetuneConfig, labels: Sequence[str], targets: Targets | None
) -> tuple[float, ...] | None:
    if not tune.class_weights:
        return None
    if not labels:
        raise ValueError(f"class_weights: {tune.task} with numbers has no classes; leave them out")

    if tune.class_weights == ("balanced",):
        assert targets is not None
        return tuple(balanced(targets, len(labels)))

    given: dict[str, float] = {}

    for item in tune.class_weights:
        label, equals, weight = item.rpartition("=")
        if not equals or label not in labels:
            raise ValueError(
                f"class_weights: expected balanced, or label=weight of {', '.join(labels)}, not {item!r}"
            )

        try:
            given[label] = float(weight)
        except ValueError:
            given[label] = math.nan

        if not 0 <= given[label] < math.inf:
            raise ValueError(f"class_weights: expected a weight of 0 or more, not {item!r}")

    return tuple(given.get(label, 1.0) for label in labels)


def fingerprint_of(start: Start, sources: Mapping[str, str], tokenizer: Tokenizer) -> str:
    """Of contents alone: a run that is resumed may know its files by other names."""
    facts = [start.fingerprint, list(sources.values()), tokenizer.fingerprint]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()
