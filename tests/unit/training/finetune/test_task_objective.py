"""The loss of answers, in training and in validation, against plain float64 code."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.data.batches.batch import IGNORE, Batch
from qkv.data.batches.framing import Frame, FramedExamples, TokenizedExample
from qkv.data.batches.labelled import join
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


def tuned(task: str, family: str = "gpt", **choices: Any) -> TaskModel:
    """In float64, without dropout, whose every weight matters."""
    config = BERTConfig(**SIZE) if family == "bert" else GPTConfig(**SIZE, **choices)
    labels = () if task in ("choice", "regress") else LABELS
    head = HeadConfig(
        task=task, labels=labels, pooling="first" if family == "bert" else "last", dropout=0.0, start=1, delimiter=2,
        extract=3, padding=0, offset=4.0, scale=2.5,
    )  # type: ignore[arg-type] # fmt: skip
    return lively(TaskModelConfig(backbone=backbone_for(config, pooler=True), head=head)).train()


def made(model: TaskModel, rows: int = 7, only: int | None = None) -> Batch:
    """Random examples of different lengths; the third asks nothing. Or only one of them, with
    nothing beside it.
    """
    draw = torch.Generator().manual_seed(3)
    task = model.config.head.task
    written = []
    for row in range(rows):
        group = {"similarity": 2, "choice": 2 + row % 2}.get(task, 1)
        lengths = torch.randint(3, 9, (group,), generator=draw).tolist()
        sequences = [[1, *torch.randint(4, V, (n,), generator=draw).tolist(), 3] for n in lengths]
        last = model.config.head.pooling == "last"
        target_positions = [len(each) - 1 if last else 0 for each in sequences]
        if task == "tag":
            target_positions = list(range(1, lengths[0] + 1))
        written.append(
            TokenizedExample(
                sequences, [len(each) for each in sequences], target_positions, False, 0
            )
        )
    framed = FramedExamples(written)
    if task == "tag":
        targets: Any = [
            torch.randint(3, (len(each.target_positions),), generator=draw).numpy()
            for each in framed
        ]
    else:
        targets = torch.randint(2 if task == "choice" else 3, (rows,), generator=draw).tolist()
    numbers = (4 + torch.randn(rows, generator=draw)).tolist() if task == "regress" else None
    targets, frame = [0] * rows if numbers else targets, Frame(**model.config.frame)
    if only is not None:
        numbers = numbers and numbers[only : only + 1]
        return join([framed[only]], frame, targets[only : only + 1], numbers)
    batch = join(list(framed), frame, targets, numbers)
    batch.targets[2] = IGNORE
    return batch


def answer_losses(
    model: TaskModel, batch: Batch, smoothing: float = 0.0, weights: Tensor | None = None
) -> Tensor:
    """Place by place, by the definition: minus the logarithm of softmax, or the square of the
    error.
    """
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
    for row in range(batch.rows):
        for place in range(batch.targets.shape[1]):
            target = int(batch.targets[row, place])
            if target == IGNORE:
                continue
            if batch.numbers is not None:  # which are in the head's own units
                losses.append(
                    ((scores[row, 0, 0] - head.offset) / head.scale - batch.numbers[row, 0]) ** 2
                )
                continue
            logs = scores[row, place] - scores[row, place].exp().sum().log()
            loss = (
                -logs[target]
                if not smoothing
                else -(1 - smoothing) * logs[target] - smoothing * logs.mean()
            )
            losses.append(loss if weights is None else loss * weights[target])
    return torch.stack(losses)


def word_losses(model: TaskModel, batch: Batch) -> Tensor:
    """For each target that is asked, the mean over the row's own texts of the mean over their
    words.
    """
    assert isinstance(model.backbone, GPT)
    found = []
    ids = batch.ids.unflatten(1, (batch.group, -1))
    padding_mask = (
        torch.ones_like(ids, dtype=torch.bool)
        if batch.padding_mask is None
        else batch.padding_mask.unflatten(1, (batch.group, -1))
    )
    for row in range(batch.rows):
        asked = [target for target in batch.targets[row].tolist() if target != IGNORE]
        if not asked:
            continue
        of_row = []
        for number, (sequence, kept) in enumerate(zip(ids[row], padding_mask[row], strict=True)):
            assert batch.target_positions is not None
            if model.config.head.task == "choice" and batch.target_positions[row, number] < 0:
                continue  # there is no such choice
            words = sequence[kept]
            logits = model.backbone(words[None, :-1])[0]  # (T - 1, V)
            of_row.append(F.cross_entropy(logits, words[1:]))
        found += [torch.stack(of_row).mean() for _ in asked]
    return torch.stack(found)


def gradients(model: TaskModel, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {
        name: weight.grad.clone()
        for name, weight in model.named_parameters()
        if weight.grad is not None
    }


def assert_same(model: TaskModel, ours: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(ours, expected, rtol=tolerance, atol=tolerance)
    one, other = gradients(model, ours), gradients(model, expected)
    for name in other:
        assert (one[name] - other[name]).norm() <= 10 * tolerance * (1 + other[name].norm()), name


# In training


@pytest.mark.parametrize("family", ["gpt", "bert"])
@pytest.mark.parametrize("task", TASKS)
def test_the_loss_is_the_sum_over_what_is_asked(task: str, family: str) -> None:
    model = tuned(task, family)
    batch = made(model)
    assert_same(model, TaskObjective(model)(batch), answer_losses(model, batch).sum())


@pytest.mark.parametrize("task", ["classify", "tag"])
def test_smoothing_and_class_weights(task: str) -> None:
    model = tuned(task)
    batch, weights = made(model), torch.tensor([0.5, 2.0, 0.0], dtype=torch.float64)
    objective = TaskObjective(model, smoothing=0.2, class_weights=(0.5, 2.0, 0.0))
    assert_same(model, objective(batch), answer_losses(model, batch, 0.2, weights).sum())


@pytest.mark.parametrize("task", TASKS)
def test_the_auxiliary_loss_is_the_mean_of_each_texts_words(task: str) -> None:
    model = tuned(task)
    batch = made(model)
    assert len(word_losses(model, batch)) == batch.count
    expected = answer_losses(model, batch).sum() + 0.5 * word_losses(model, batch).sum()
    assert_same(
        model, TaskObjective(model, language=0.5)(batch), expected, 1e-7
    )  # a text's share is a float32
    if (
        task != "tag"
    ):  # one answer a text: the mean over the texts is what is added to the mean over the answers
        mean = answer_losses(model, batch).mean() + 0.5 * word_losses(model, batch).mean()
        assert float(
            gradients_of(TaskObjective(model, language=0.5), batch, ALONE)[0]
        ) == pytest.approx(mean.item())


@pytest.mark.parametrize("task", TASKS)
def test_the_loss_of_a_row_does_not_depend_on_its_neighbours(task: str) -> None:
    model = tuned(task)
    objective = TaskObjective(model, language=0.5)
    together = objective(made(model))
    alone = torch.stack([objective(made(model, only=row)) for row in range(7) if row != 2])
    assert_same(model, together, alone.sum(), 1e-7)


@pytest.mark.parametrize("task", TASKS)
def test_a_batch_in_parts_is_the_whole_batch(task: str) -> None:
    model = tuned(task)
    weights = (0.5, 2.0, 1.5) if model.config.head.labels else None
    objective, batch = TaskObjective(model, language=0.5, class_weights=weights), made(model)
    found = []
    for parts in (1, 3, 7):
        model.zero_grad()
        loss, _ = gradients_of(objective, batch, ALONE, parts=parts)
        found.append(
            (loss.double(), {name: w.grad.clone() for name, w in model.named_parameters()})
        )
    for loss, gradient in found[1:]:
        torch.testing.assert_close(loss, found[0][0], rtol=1e-6, atol=1e-6)  # added up in float32
        for name in gradient:
            torch.testing.assert_close(
                gradient[name], found[0][1][name], rtol=1e-9, atol=1e-10, msg=name
            )


def test_an_untied_output_layer_learns_from_words_alone() -> None:
    model = tuned("classify", tied=False)
    batch = made(model)
    assert "backbone.head.weight" not in gradients(model, TaskObjective(model)(batch))
    assert (
        gradients(model, TaskObjective(model, language=0.5)(batch))["backbone.head.weight"]
        .abs()
        .max()
        > 0
    )


def test_only_a_gpt_language_loss() -> None:
    with pytest.raises(
        ValueError, match=r"^language: only a GPT predicts the next word; leave it out"
    ):
        TaskObjective(tuned("classify", "bert"), language=0.5)


# In validation


@pytest.mark.parametrize("task", TASKS)
def test_validation_counts_and_neither_weighs_nor_smooths(task: str) -> None:
    model = tuned(task)
    weights = (0.5, 2.0, 1.5) if model.config.head.labels else None
    objective = TaskObjective(model, language=0.5, smoothing=0.2, class_weights=weights).eval()
    batch = made(model)
    with torch.no_grad():
        found = objective(batch)
        assert batch.target_positions is not None
        scores, _ = objective.reader(batch)
        expected = torch.cat(
            [
                answer_losses(model, batch).sum()[None],
                count_metrics(model.config.head, scores, batch),
            ]
        )
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)

    class Both:
        steps_per_epoch = tokens_per_step = order_version = 1

        def ordered(self) -> Any:
            return iter([batch, batch.part(0, 4)])

        def batch(self, step: int) -> Batch:
            return batch

    validation = validate(objective, Both(), ALONE, parts=2)
    assert objective.training
    with torch.no_grad():
        objective.eval()
        total = objective(batch) + objective(batch.part(0, 4))
    assert validation.loss == pytest.approx(
        float(total[0]) / (batch.count + batch.part(0, 4).count), rel=1e-12
    )
    torch.testing.assert_close(validation.counted, total[1:].double(), rtol=1e-12, atol=1e-12)


# Words that count more or less


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [None, 5])
def test_shares_are_an_explicit_weighted_sum(smoothing: float, chunk: int | None) -> None:
    features = torch.randn(3, 7, 8, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(19, 8, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(19, dtype=torch.float64, requires_grad=True)
    targets, shares = torch.randint(19, (3, 7)), torch.rand(3, 7, dtype=torch.float64)
    targets[0, 2:4] = targets[2] = IGNORE
    shares[1, 1] = 0.0
    given = (features, weight, bias)
    ours = loss_sum(*given, targets, smoothing=smoothing, shares=shares, chunk=chunk)
    logits = (features @ weight.T + bias).flatten(0, 1)
    each = F.cross_entropy(
        logits, targets.flatten(), ignore_index=IGNORE, reduction="none", label_smoothing=smoothing
    )
    expected = (each * shares.flatten()).sum()
    torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)
    for one, other in zip(
        torch.autograd.grad(3 * ours, given), torch.autograd.grad(3 * expected, given), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
