"""Fine-tuning with a head: special tokens, head, examples and batches for a GPT or a BERT."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from qkv import artifact
from qkv.data.batches.framing import Frame, FramedExamples
from qkv.data.batches.labelled import LabelledData, Targets
from qkv.data.batches.labels import (
    balanced_weights,
    class_names,
    label_numbers,
    label_targets,
    mean_and_deviation,
)
from qkv.data.sources.examples import Example
from qkv.models.configs import HeadConfig, Pooling
from qkv.models.convert.hf_folder import read_json
from qkv.models.model import Model, backbone_of
from qkv.models.registry import with_weights
from qkv.models.task_model import TaskModelConfig, backbone_for
from qkv.models.variants.resize_vocabulary import with_vocabulary
from qkv.text import Tokenizer
from qkv.training.finetune.finetune_config import FinetuneConfig, FinetuneRunConfig
from qkv.training.finetune.finetune_examples import Examples, example_notes, read_examples
from qkv.training.finetune.task_metrics import measures
from qkv.training.finetune.task_objective import TaskObjective
from qkv.training.finetune.tuned_task import (
    length_multiple,
    open_pretrained,
    padding_id,
    seeded_model,
    tuned_task,
    with_dropout,
)
from qkv.training.setup.training_task import TrainingTask

NEW_MARKS = ("[begin]", "[delimiter]", "[extract]")
LANGUAGE = 0.5
"""Weight of GPT-1's auxiliary language loss."""
HEAD_DROPOUT = 0.1


class Labels(NamedTuple):
    """Classes, or the offset and scale of numbers."""

    names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    offset: float = 0.0
    scale: float = 1.0


class TaskMarks(NamedTuple):
    """A backbone and tokenizer with the ids of the special tokens around texts."""

    backbone: Any
    """A GPT or a BERT."""
    tokenizer: Tokenizer
    start: int | None
    delimiter: int
    extract: int


def labelled_task(tune: FinetuneConfig, run: FinetuneRunConfig) -> TrainingTask:
    """The training task of a head on a GPT or a BERT."""
    # Examples, and the pre-trained model
    examples = read_examples(tune, run.seed)
    labels = find_labels(examples, tune.task)
    pretrained = open_pretrained(tune.model)
    backbone = backbone_of(pretrained.model)
    if backbone.has_source:
        raise ValueError(
            f"model: {tune.model} is an encoder-decoder; {tune.task} expects a GPT or a BERT"
        )

    # The model with its head
    marks = add_marks(backbone, pretrained.tokenizer, tune, run.seed)
    tokenizer = marks.tokenizer
    config = task_model_config(tune, marks, labels)
    language = language_weight(tune, marks.backbone)
    model = build_task_model(config, marks.backbone, tune, run.seed)

    # Batches
    batches = partial(build_batches, tune, run, config, tokenizer, examples.numbers)
    framed, data = batches(examples.training)
    framed_validation, validation_data = batches(examples.validation)
    notes = example_notes(
        examples.training,
        examples.validation,
        labels.names,
        (framed, framed_validation),
        config.context,
    )

    objective = partial(
        TaskObjective,
        language=language,
        class_weights=find_class_weights(tune, labels.names, data.targets),
    )

    return tuned_task(
        tune,
        run,
        model,
        tokenizer,
        (data, validation_data),
        pretrained.fingerprint(examples.sources, tokenizer),
        (*labels.notes, *notes),
        language_loss=language > 0,
        length=max(1, len(framed.ids) // len(framed)),
        objective=objective,
        measure=partial(measures, config.head),
        metric=find_metric(tune, config.head),
    )


def find_labels(examples: Examples, task: str) -> Labels:
    """The classes of the examples, or the mean and spread of their numbers."""
    if not examples.numbers:
        return Labels(*class_names(examples.training, examples.validation, task))

    numbers = label_numbers(examples.training)
    offset, scale = mean_and_deviation(numbers, examples.training[0].where)
    return Labels(offset=offset, scale=scale)


def build_batches(
    tune: FinetuneConfig,
    run: FinetuneRunConfig,
    config: TaskModelConfig,
    tokenizer: Tokenizer,
    has_numbers: bool,
    examples: Sequence[Example],
) -> tuple[FramedExamples, LabelledData]:
    """Examples as rows of tokens, and the batches of them."""
    head = config.head
    frame = Frame(**config.frame)
    framed = frame.encode(tokenizer, examples)
    targets: Any
    numbers = None
    if has_numbers:
        targets = [0] * len(examples)
        # In the head's own units: numbers far from zero would lose their digits in float32.
        numbers = (label_numbers(examples) - head.offset) / head.scale
    else:
        targets = label_targets(examples, head.labels, tune.task)

    data = LabelledData(
        framed,
        targets,
        numbers,
        frame,
        run.batch,
        run.seed,
        multiple=length_multiple(run.device),
    )

    return framed, data


# Special tokens and head


def add_marks(backbone: Any, tokenizer: Tokenizer, tune: FinetuneConfig, seed: int) -> TaskMarks:
    """Choose the special tokens around texts; new ones enlarge the vocabulary."""
    new = tune.marks == "new" or (tune.marks is None and tune.train == "everything")
    if backbone.is_causal and new:
        tokenizer = tokenizer.with_special_tokens(NEW_MARKS)
        start, delimiter, extract = map(tokenizer.id, NEW_MARKS)
        assert delimiter is not None
        assert extract is not None
        vocabulary = max(backbone.config.vocabulary, tokenizer.vocabulary)
        larger = with_vocabulary(backbone, vocabulary, seed)
        return TaskMarks(larger, tokenizer, start, delimiter, extract)

    if tokenizer.end is None:
        raise ValueError("marks: the tokenizer has no token that ends a text; expected new")
    if not backbone.is_causal and tokenizer.start is None:
        raise ValueError(
            "model: its tokenizer has no token that starts a text, which a BERT reads first"
        )

    return TaskMarks(backbone, tokenizer, tokenizer.start, tokenizer.end, tokenizer.end)


def task_model_config(tune: FinetuneConfig, marks: TaskMarks, labels: Labels) -> TaskModelConfig:
    """The configuration of backbone and head."""
    backbone = marks.backbone
    pooling = tune.pooling or default_pooling(tune.model, backbone)
    dropout = tune.dropout
    if dropout is None:
        dropout = HEAD_DROPOUT

    head = HeadConfig(
        task=tune.task,  # type: ignore[arg-type]
        labels=labels.names,
        pooling=pooling,
        dropout=dropout,
        bias=not backbone.is_causal or tune.task == "tag",
        start=marks.start,
        delimiter=marks.delimiter,
        extract=marks.extract,
        padding=padding_id(marks.tokenizer),
        context=tune.context,
        offset=labels.offset,
        scale=labels.scale,
    )

    pooler = pooling == "first" and tune.task != "tag"
    with_pooler = backbone_for(backbone.config, pooler=pooler)

    return TaskModelConfig(backbone=with_dropout(with_pooler, tune), head=head)


def default_pooling(model: str, backbone: Model) -> Pooling:
    """A GPT's last vector; a BERT's first if it was pre-trained with a pooler, else the mean."""
    if backbone.is_causal:
        return "last"

    # A folder of sentence-transformers configures its pooling.
    file = artifact.model_path(model) / "1_Pooling" / "config.json"
    if file.is_file() and read_json(file).get("pooling_mode_mean_tokens") is True:
        return "mean"

    return "first" if backbone.config.pooler else "mean"


def build_task_model(
    config: TaskModelConfig, backbone: Model, tune: FinetuneConfig, seed: int
) -> Model:
    """The model with the backbone's weights, unless from scratch, and a new head."""
    model = seeded_model(config, seed)
    if tune.scratch:
        return model

    weights = model.state_dict()
    for name, tensor in backbone.state_dict().items():
        if f"backbone.{name}" in weights:
            weights[f"backbone.{name}"] = tensor

    return with_weights(config, weights)


# Defaults that depend on the model and the data


def language_weight(tune: FinetuneConfig, backbone: Model) -> float:
    """Weight of the auxiliary language loss; by default GPT-1's if the whole GPT is trained."""
    if tune.language and not backbone.is_causal:
        raise ValueError("language: only a GPT predicts the next token; leave it out")
    if tune.language is not None:
        return tune.language
    if backbone.is_causal and tune.train == "everything":
        return LANGUAGE

    return 0.0


def find_metric(tune: FinetuneConfig, head: HeadConfig) -> str:
    """The metric that decides which weights are the best."""
    default = "accuracy"
    known = ["loss", "accuracy"]
    if head.numbers:
        default = "mean_absolute_error"
        known = ["loss", "pearson", "mean_absolute_error"]
        if head.task == "similarity":
            default = "pearson"

    if head.labels:
        known += ["macro_f1", "matthews"]
    if tune.metric is not None and tune.metric not in known:
        raise ValueError(f"metric: {head.task} has {', '.join(known)}, not {tune.metric}")

    return tune.metric or default


def find_class_weights(
    tune: FinetuneConfig, labels: Sequence[str], targets: Targets | None
) -> tuple[float, ...] | None:
    """The weights of the classes in the loss; None if all are 1."""
    if not tune.class_weights:
        return None
    if not labels:
        raise ValueError(f"class_weights: {tune.task} with numbers has no classes; leave them out")

    if tune.class_weights == ("balanced",):
        assert targets is not None
        return tuple(balanced_weights(targets, len(labels)))

    weights = dict.fromkeys(labels, 1.0)
    for item in tune.class_weights:
        label, equals, text = item.rpartition("=")
        if not equals or label not in labels:
            raise ValueError(
                f"class_weights: expected balanced, or label=weight of {', '.join(labels)}, "
                f"not {item!r}"
            )

        try:
            weights[label] = float(text)
        except ValueError:
            weights[label] = math.nan

        if not 0 <= weights[label] < math.inf:
            raise ValueError(f"class_weights: expected a weight of 0 or more, not {item!r}")

    return tuple(weights.values())
