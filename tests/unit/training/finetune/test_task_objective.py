"""The objective of fine-tuning, in training and in validation, against plain float64 code."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.data.batches.batch import IGNORE, Batch
from qkv.data.batches.framing import Frame, FramedExamples, TokenizedExample
from qkv.data.batches.labelled import collate
from qkv.models import GPT, BERTConfig, GPTConfig, HeadConfig, TaskModel, TaskModelConfig
from qkv.models.task_model import backbone_for
from qkv.training.finetune.task_metrics import count_metrics
from qkv.training.finetune.task_objective import TaskObjective
from qkv.training.loss import loss_sum
from qkv.training.step import gradients_of, validate
from support.families import lively
from support.small_training import ALONE

V = 17
SIZE: dict[str, Any] = {
    "vocabulary": V,
    "context": 16,
    "width": 16,
    "depth": 2,
    "heads": 2,
    "hidden": 24,
}
LABELS = ("bad", "good", "so so")
TASKS = ["classify", "pair", "similarity", "choice", "tag", "regress"]


def task_model(task: str, family: str = "gpt", **options: Any) -> TaskModel:
    """A model in float64, without dropout, in which every weight matters."""
    config: Any = GPTConfig(**SIZE, **options)
    pooling: Any = "last"
    if family == "bert":
        config = BERTConfig(**SIZE)
        pooling = "first"

    labels = LABELS
    if task in ("choice", "regress"):
        labels = ()

    head = HeadConfig(
        task=task, labels=labels, pooling=pooling, dropout=0.0, start=1, delimiter=2, extract=3,
        padding=0, offset=4.0, scale=2.5,
    )  # type: ignore[arg-type] # fmt: skip
    return lively(TaskModelConfig(backbone=backbone_for(config, pooler=True), head=head)).train()


def random_examples(model: TaskModel, rows: int = 7, only: int | None = None) -> Batch:
    """A batch of examples of different lengths, the third without a target; or only one of them."""
    draw = torch.Generator().manual_seed(3)
    head = model.config.head

    # Sequences
    examples = []
    for row in range(rows):
        group = {"similarity": 2, "choice": 2 + row % 2}.get(head.task, 1)
        lengths = torch.randint(3, 9, (group,), generator=draw).tolist()
        sequences = [[1, *torch.randint(4, V, (n,), generator=draw).tolist(), 3] for n in lengths]
        positions = [0] * group
        if head.pooling == "last":
            positions = [length + 1 for length in lengths]
        if head.task == "tag":
            positions = list(range(1, lengths[0] + 1))

        sizes = [len(sequence) for sequence in sequences]
        examples.append(TokenizedExample(sequences, sizes, positions, False, 0))

    # Targets
    framed = FramedExamples(examples)
    targets: Any = [0] * rows
    numbers = None
    if head.task == "tag":
        targets = []
        for example in framed:
            size = (len(example.target_positions),)
            targets.append(torch.randint(3, size, generator=draw).numpy())
    elif head.task == "regress":
        numbers = (4 + torch.randn(rows, generator=draw)).tolist()
    else:
        classes = 2 if head.task == "choice" else 3
        targets = torch.randint(classes, (rows,), generator=draw).tolist()

    frame = Frame(**model.config.frame)
    if only is not None:
        numbers = numbers and numbers[only : only + 1]
        return collate([framed[only]], frame, targets[only : only + 1], numbers)

    batch = collate(list(framed), frame, targets, numbers)
    batch.targets[2] = IGNORE
    return batch


def answer_losses(
    model: TaskModel, batch: Batch, smoothing: float = 0.0, weights: Tensor | None = None
) -> Tensor:
    """The loss of every target by definition: minus log softmax, or the squared error."""
    assert batch.target_positions is not None
    scores = model(
        batch.ids,
        target_positions=batch.target_positions,
        padding_mask=batch.padding_mask,
        segments=batch.segments,
        group=batch.group,
    )
    head = model.config.head
    losses = []
    for row, column in (batch.targets != IGNORE).nonzero().tolist():
        if batch.numbers is not None:  # in the head's own units
            prediction = (scores[row, 0, 0] - head.offset) / head.scale
            losses.append((prediction - batch.numbers[row, 0]) ** 2)
            continue

        target = int(batch.targets[row, column])
        logs = scores[row, column] - scores[row, column].exp().sum().log()
        loss = -(1 - smoothing) * logs[target]
        if smoothing:
            loss = loss - smoothing * logs.mean()
        if weights is not None:
            loss = loss * weights[target]

        losses.append(loss)

    return torch.stack(losses)


def language_losses(model: TaskModel, batch: Batch) -> Tensor:
    """For every target, the mean over the row's sequences of their mean next-token loss."""
    assert isinstance(model.backbone, GPT)
    assert batch.target_positions is not None
    ids = batch.ids.unflatten(1, (batch.group, -1))
    padding_mask = torch.ones_like(ids, dtype=torch.bool)
    if batch.padding_mask is not None:
        padding_mask = batch.padding_mask.unflatten(1, (batch.group, -1))

    losses = []
    for row in range(batch.rows):
        targets = int((batch.targets[row] != IGNORE).sum())
        sequence_losses = []
        for number in range(batch.group):
            if model.config.head.task == "choice" and batch.target_positions[row, number] < 0:
                continue  # the row has fewer choices

            tokens = ids[row, number][padding_mask[row, number]]
            logits = model.backbone(tokens[None, :-1])[0]  # (T - 1, V)
            sequence_losses.append(F.cross_entropy(logits, tokens[1:]))

        if targets:
            losses += [torch.stack(sequence_losses).mean()] * targets

    return torch.stack(losses)


def gradients(model: TaskModel, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    parameters = [(name, weight) for name, weight in model.named_parameters()]
    return {name: weight.grad.clone() for name, weight in parameters if weight.grad is not None}


def assert_same(model: TaskModel, loss: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    """Equal losses and gradients."""
    torch.testing.assert_close(loss, expected, rtol=tolerance, atol=tolerance)
    actual = gradients(model, loss)
    for name, gradient in gradients(model, expected).items():
        difference = (actual[name] - gradient).norm()
        assert difference <= 10 * tolerance * (1 + gradient.norm()), name


# In training


@pytest.mark.parametrize("family", ["gpt", "bert"])
@pytest.mark.parametrize("task", TASKS)
def test_the_loss_is_the_sum_over_the_targets(task: str, family: str) -> None:
    model = task_model(task, family)
    batch = random_examples(model)
    assert_same(model, TaskObjective(model)(batch), answer_losses(model, batch).sum())


@pytest.mark.parametrize("task", ["classify", "tag"])
def test_smoothing_and_class_weights(task: str) -> None:
    model = task_model(task)
    batch = random_examples(model)
    weights = torch.tensor([0.5, 2.0, 0.0], dtype=torch.float64)
    objective = TaskObjective(model, smoothing=0.2, class_weights=(0.5, 2.0, 0.0))
    assert_same(model, objective(batch), answer_losses(model, batch, 0.2, weights).sum())


@pytest.mark.parametrize("task", TASKS)
def test_the_auxiliary_loss_is_the_mean_next_token_loss_of_each_sequence(task: str) -> None:
    model = task_model(task)
    batch = random_examples(model)
    assert len(language_losses(model, batch)) == batch.count
    expected = answer_losses(model, batch).sum() + 0.5 * language_losses(model, batch).sum()
    objective = TaskObjective(model, language=0.5)
    assert_same(model, objective(batch), expected, 1e-7)  # the shares are float32
    if task != "tag":  # with one target per row, the mean loss is a sum of two means
        mean = answer_losses(model, batch).mean() + 0.5 * language_losses(model, batch).mean()
        loss, _ = gradients_of(objective, batch, ALONE)
        assert float(loss) == pytest.approx(mean.item())


@pytest.mark.parametrize("task", TASKS)
def test_the_loss_of_a_row_does_not_depend_on_its_neighbours(task: str) -> None:
    model = task_model(task)
    objective = TaskObjective(model, language=0.5)
    together = objective(random_examples(model))
    rows = [objective(random_examples(model, only=row)) for row in (0, 1, 3, 4, 5, 6)]
    assert_same(model, together, torch.stack(rows).sum(), 1e-7)


@pytest.mark.parametrize("task", TASKS)
def test_micro_batches_give_the_gradients_of_the_whole_batch(task: str) -> None:
    model = task_model(task)
    weights = (0.5, 2.0, 1.5) if model.config.head.labels else None
    objective = TaskObjective(model, language=0.5, class_weights=weights)
    batch = random_examples(model)
    model.zero_grad()
    expected_loss, _ = gradients_of(objective, batch, ALONE)
    expected = {name: weight.grad.clone() for name, weight in model.named_parameters()}

    for parts in (3, 7):
        model.zero_grad()
        loss, _ = gradients_of(objective, batch, ALONE, parts=parts)
        # The losses are added up in float32.
        torch.testing.assert_close(loss.double(), expected_loss.double(), rtol=1e-6, atol=1e-6)
        for name, weight in model.named_parameters():
            torch.testing.assert_close(weight.grad, expected[name], rtol=1e-9, atol=1e-10, msg=name)


def test_an_untied_output_layer_has_a_gradient_only_of_the_language_loss() -> None:
    model = task_model("classify", tied=False)
    batch = random_examples(model)
    assert "backbone.head.weight" not in gradients(model, TaskObjective(model)(batch))
    with_language = gradients(model, TaskObjective(model, language=0.5)(batch))
    assert with_language["backbone.head.weight"].abs().max() > 0


def test_only_a_gpt_has_a_language_loss() -> None:
    with pytest.raises(ValueError, match=r"^language: only a GPT"):
        TaskObjective(task_model("classify", "bert"), language=0.5)


# In validation


@pytest.mark.parametrize("task", TASKS)
def test_validation_counts_metrics_without_weights_and_smoothing(task: str) -> None:
    model = task_model(task)
    weights = (0.5, 2.0, 1.5) if model.config.head.labels else None
    objective = TaskObjective(model, language=0.5, smoothing=0.2, class_weights=weights).eval()
    batch = random_examples(model)
    with torch.no_grad():
        counted = objective(batch)
        scores, _ = objective.reader(batch)
        loss = answer_losses(model, batch).sum()
        counts = count_metrics(model.config.head, scores, batch)

    expected = torch.cat([loss[None], counts])
    torch.testing.assert_close(counted, expected, rtol=1e-12, atol=1e-12)

    class TwoBatches:
        steps_per_epoch = tokens_per_step = order_version = 1

        def ordered(self) -> Any:
            return iter([batch, batch.part(0, 4)])

        def batch(self, step: int) -> Batch:
            return batch

    loss, counted = validate(objective, TwoBatches(), ALONE, parts=2)
    assert objective.training
    with torch.no_grad():
        objective.eval()
        total = objective(batch) + objective(batch.part(0, 4))

    count = batch.count + batch.part(0, 4).count
    assert loss == pytest.approx(float(total[0]) / count, rel=1e-12)
    torch.testing.assert_close(counted, total[1:].double(), rtol=1e-12, atol=1e-12)


# Weighted positions


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [None, 5])
def test_shares_weight_the_losses_of_positions(smoothing: float, chunk: int | None) -> None:
    features = torch.randn(3, 7, 8, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(19, 8, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(19, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(19, (3, 7))
    shares = torch.rand(3, 7, dtype=torch.float64)
    targets[0, 2:4] = targets[2] = IGNORE
    shares[1, 1] = 0.0
    inputs = (features, weight, bias)
    loss = loss_sum(*inputs, targets, smoothing=smoothing, shares=shares, chunk=chunk)
    logits = (features @ weight.T + bias).flatten(0, 1)
    losses = F.cross_entropy(
        logits, targets.flatten(), ignore_index=IGNORE, reduction="none", label_smoothing=smoothing
    )
    expected = (losses * shares.flatten()).sum()
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
    gradients = torch.autograd.grad(3 * loss, inputs)
    expected_gradients = torch.autograd.grad(3 * expected, inputs)
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-10, atol=1e-12)
