"""Fine-tuning with a head: special tokens, head, examples and batches for a GPT or a BERT."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from qkv import artifact
from qkv.data.batches.framing import Frame
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
from qkv.text import Tokenizer
from qkv.training.finetune.finetune_config import FinetuneConfig, FinetuneRunConfig
from qkv.training.finetune.finetune_examples import Examples, example_notes, read_examples
from qkv.training.finetune.task_metrics import measures
from qkv.training.finetune.task_objective import TaskObjective
from qkv.training.finetune.tuned_task import (
    Pretrained,
    length_multiple,
    open_pretrained,
    padding_id,
    seeded_model,
    tuned_task,
    with_dropout,
)
from qkv.training.setup.training_task import TrainingTask

NEW_MARKS = {"start": "[begin]", "delimiter": "[delimiter]", "extract": "[extract]"}
LANGUAGE = 0.5
"""Weight of GPT-1's auxiliary language loss."""
HEAD_DROPOUT = 0.1


def labelled_task(tune: FinetuneConfig, run: FinetuneRunConfig) -> TrainingTask:
    """The training task of a head on a GPT or a BERT."""
    # Examples, and the pre-trained model
    examples = read_examples(tune, run.seed)
    labels, label_notes = find_labels(examples, tune.task)
    pretrained = open_pretrained(tune.model)
    pretrained = pretrained._replace(model=backbone_of(pretrained.model))
    if pretrained.model.has_source:
        raise ValueError(
            f"model: {tune.model} is an encoder-decoder; {tune.task} expects a GPT or a BERT"
        )

    # The model with its head
    pretrained, marks = add_marks(pretrained, tune, run.seed)
    config = task_model_config(tune, pretrained, **marks, **labels)
    language = language_weight(tune, pretrained.model)
    model = build_task_model(config, pretrained.model, tune, run.seed)

    # Batches
    batches = partial(build_batches, run, config, pretrained.tokenizer)
    data = batches(examples.training)
    validation = batches(examples.validation)
    names = config.head.labels
    notes = example_notes(data.framed, validation.framed, names, config.context)

    objective = partial(
        TaskObjective,
        language=language,
        class_weights=find_class_weights(tune, names, data.targets),
    )

    return tuned_task(
        tune,
        run,
        pretrained._replace(model=model),
        (data, validation),
        examples.sources,
        (*label_notes, *notes),
        language_loss=language > 0,
        length=max(1, len(data.framed.ids) // len(data.framed)),
        objective=objective,
        measure=partial(measures, config.head),
        metric=find_metric(tune, config.head),
    )


def find_labels(examples: Examples, task: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The head's classes, or the offset and scale of its numbers; and notes on them."""
    if not examples.numbers:
        names, notes = class_names(examples.training, examples.validation, task)
        return {"labels": names}, notes

    numbers = label_numbers(examples.training)
    offset, scale = mean_and_deviation(numbers, examples.training[0].where)
    return {"offset": offset, "scale": scale}, ()


def build_batches(
    run: FinetuneRunConfig,
    config: TaskModelConfig,
    tokenizer: Tokenizer,
    examples: Sequence[Example],
) -> LabelledData:
    """Batches of examples, which are framed as rows of tokens."""
    head = config.head
    frame = Frame(**config.frame)
    framed = frame.encode(tokenizer, examples)
    targets: Any
    numbers = None
    if head.numbers:
        targets = [0] * len(examples)
        # In the head's own units: numbers far from zero would lose their digits in float32.
        numbers = (label_numbers(examples) - head.offset) / head.scale
    else:
        targets = label_targets(examples, head.labels, head.task)

    multiple = length_multiple(run.device)
    return LabelledData(framed, targets, numbers, frame, run.batch, run.seed, multiple=multiple)


# Special tokens and head


def add_marks(
    pretrained: Pretrained, tune: FinetuneConfig, seed: int
) -> tuple[Pretrained, dict[str, int | None]]:
    """The model with the special tokens around texts, and their ids as fields of the head."""
    causal = pretrained.model.is_causal
    new = tune.marks == "new" or (tune.marks is None and tune.train == "everything")
    if causal and new:
        pretrained = pretrained.with_special_tokens(tuple(NEW_MARKS.values()), seed)
        find = pretrained.tokenizer.id
        return pretrained, {name: find(token) for name, token in NEW_MARKS.items()}

    tokenizer = pretrained.tokenizer
    if tokenizer.end is None:
        raise ValueError("marks: the tokenizer has no token that ends a text; expected new")
    if not causal and tokenizer.start is None:
        raise ValueError(
            "model: its tokenizer has no token that starts a text, which a BERT reads first"
        )

    end = tokenizer.end
    return pretrained, {"start": tokenizer.start, "delimiter": end, "extract": end}


def task_model_config(
    tune: FinetuneConfig, pretrained: Pretrained, **fields: Any
) -> TaskModelConfig:
    """The configuration of backbone and head; `fields` are the head's marks and labels."""
    backbone = pretrained.model
    pooling = tune.pooling or default_pooling(tune.model, backbone)
    dropout = tune.dropout
    if dropout is None:
        dropout = HEAD_DROPOUT

    head = HeadConfig(
        task=tune.task,  # type: ignore[arg-type]
        pooling=pooling,
        dropout=dropout,
        bias=not backbone.is_causal or tune.task == "tag",
        padding=padding_id(pretrained.tokenizer),
        context=tune.context,
        **fields,
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
