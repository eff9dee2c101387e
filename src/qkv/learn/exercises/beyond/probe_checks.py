"""Checks of exercise 16: a probe by gradient descent, and heads knocked out as by qkv's ablate."""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from qkv.data.batches.batch import Batch
from qkv.insight.heads.head_ablation import ablate
from qkv.learn.exercises.beyond.probe_references import (
    beside,
    descend,
    mistakes_of_change,
    mistakes_of_descent,
)
from qkv.learn.exercises.beyond.twin_models import randomise
from qkv.learn.exercises.language_model.matching_gpt import matching_gpt
from qkv.learn.expectations import Failed, InputDraw, check, expect_equal, expect_shape, table
from qkv.learn.result_kinds import expect_number, expect_results


def new_gpt(mine: ModuleType, draw: InputDraw) -> tuple[Any, Tensor]:
    """A student's GPT with random weights, and ids (2, T)."""
    T = draw.size + 2
    model = mine.GPT(7, T, 6, 1 + draw.size // 2, 2 + draw.size % 2)
    randomise(model, draw)
    return model, draw.integers(7, 2, T)


@check("frozen_vectors", "The hidden vectors of all tokens, without a gradient")
def vectors_of_model(mine: ModuleType, draw: InputDraw) -> None:
    model, ids = new_gpt(mine, draw)
    found = mine.frozen_vectors(model, ids)
    with torch.no_grad():
        twin = matching_gpt(model)
        right = twin.hidden(ids)
        logits = twin(ids)

    if isinstance(found, Tensor) and found.shape[-1] == logits.shape[-1]:
        raise Failed("frozen_vectors: these are the logits; a probe reads the vectors, hidden(ids)")
    if isinstance(found, Tensor) and found.shape == right.shape:
        raise Failed("frozen_vectors: (B, T, E); a probe reads rows, (B T, E): flatten(0, 1)")

    expect_equal(
        found,
        right.flatten(0, 1),
        "frozen_vectors",
        {
            "frozen_vectors: the tokens are ordered by position, then row; keep a row together": (
                right.transpose(0, 1).flatten(0, 1)
            ),
        },
        shape="(B T, E)",
        tolerance=1e-4,
    )
    if found.requires_grad:
        raise Failed(
            "frozen_vectors: the vectors have a gradient, so that the model would be trained "
            "with the probe; compute them under torch.no_grad()"
        )


@check("split", "Training and test have no example in common")
def held_out(mine: ModuleType, draw: InputDraw) -> None:
    N = draw.size + 3
    held = 1 + draw.size // 2
    x = draw.normal(N, 2)
    y = torch.arange(N)
    order = draw.permutation(N)
    if torch.equal(order.sort().values, order):
        order = order.flip(0)

    found = mine.split(x, y, order, held)
    expect_results(found, ("x", "y", "x_test", "y_test"), "split")
    for part, name in zip(found, ("x", "y", "x_test", "y_test"), strict=True):
        if not isinstance(part, Tensor):
            raise Failed(f"split, {name}: expected a tensor, not {type(part).__name__}")

    both = sorted(set(found[1].tolist()) & set(found[3].tolist()))
    if both:
        raise Failed(
            f"split: example {both[0]} is in training and in the test; a probe that has seen the "
            "test tells nothing",
            table("order", order.unsqueeze(0)),
        )
    if len(found[3]) != held and len(found[1]) == held:
        raise Failed(f"split: training and test are exchanged; the test has {held} examples")

    train, test = order[:-held], order[-held:]
    for part, label, chosen, name in (
        (found[0], found[1], train, "training"),
        (found[2], found[3], test, "the test"),
    ):
        mistakes = {
            "split: the order is not used; examples of one text lie side by side": y[
                : -held if name == "training" else N
            ][-len(chosen) :],
            "split: the test are the first examples of the order; take the last": (
                order[held:] if name == "training" else order[:held]
            ),
        }
        inputs = {"order": order.unsqueeze(0)}
        expect_equal(label, y[chosen], f"split, the labels of {name}", mistakes, inputs=inputs)
        expect_equal(
            part,
            x[chosen],
            f"split, the vectors of {name}: each must be that of its label",
            inputs=inputs | {"x": x},
        )


# A linear probe


def draw_examples(draw: InputDraw) -> tuple[Tensor, Tensor, int]:
    """Vectors (N, E), labels (N,) that depend on them, and the number of classes."""
    classes = 2 + draw.size // 2
    x = draw.normal(6 * draw.size, draw.size + 1)
    direction = draw.normal(draw.size + 1, classes)
    y = (x @ direction + 0.5 * draw.normal(len(x), classes)).argmax(1)
    return x, y, classes


@check("fit_probe", "Gradient descent on the mean cross-entropy, from 0")
def gradient_descent(mine: ModuleType, draw: InputDraw) -> None:
    x, y, classes = draw_examples(draw)
    for steps, rate in ((1, 0.5), (7, 0.3)):
        found = mine.fit_probe(x, y, classes, steps, rate)
        expect_results(found, ("the weight (C, E)", "the bias (C,)"), "fit_probe")
        right = descend(x, y, classes, steps, rate)
        expect_shape(found[0], tuple(right[0].shape), "fit_probe, the weight", "(C, E)")
        expect_shape(found[1], tuple(right[1].shape), "fit_probe, the bias", "(C,)")

        expect_equal(
            beside(found),
            beside(right),
            f"fit_probe after {steps} steps: weight, and bias as the last column",
            partial(mistakes_of_descent, x, y, classes, steps, rate),
            inputs={"x": x, "y": y.unsqueeze(0)},
            tolerance=1e-4,
        )


@check("fit_probe", "The same result in every call, and x is not changed")
def from_zero(mine: ModuleType, draw: InputDraw) -> None:
    x, y, classes = draw_examples(draw)
    before = x.clone()
    first = mine.fit_probe(x, y, classes, 3)
    expect_results(first, ("the weight (C, E)", "the bias (C,)"), "fit_probe")
    torch.manual_seed(17)
    second = mine.fit_probe(x, y, classes, 3)
    if not torch.equal(before, x):
        raise Failed("fit_probe: x was changed; the vectors are frozen")
    if not torch.equal(first[0], second[0]):
        raise Failed("fit_probe: two calls have different results; weight and bias begin as 0")


@check("accuracy", "The share of examples whose label has the largest logit")
def share_of_hits(mine: ModuleType, draw: InputDraw) -> None:
    x, y, classes = draw_examples(draw)
    weight = draw.normal(classes, x.shape[1])
    bias = 2 * draw.normal(classes)
    logits = x @ weight.T + bias

    def share(guesses: Tensor) -> float:
        return (guesses == y).float().mean().item()

    right = share(logits.argmax(1))
    expect_number(
        mine.accuracy(weight, bias, x, y),
        right,
        "accuracy",
        {
            "accuracy: in percent; it is a share from 0 to 1": 100 * right,
            "accuracy: the number of hits; divide it by the number of examples": len(y) * right,
            "accuracy: the share of misses": 1 - right,
            "accuracy: the bias is missing": share((x @ weight.T).argmax(1)),
            "accuracy: this is the smallest logit; take the largest": share(logits.argmin(1)),
        },
        inputs={"logits": logits, "y": y.unsqueeze(0)},
    )


@check("majority", "The most frequent label of training, measured in the test")
def most_frequent(mine: ModuleType, draw: InputDraw) -> None:
    # In training 2 is the most frequent, in the test another label is.
    y = torch.tensor([2] * (draw.size + 2) + [0] * draw.size + [1])
    y = y[draw.permutation(len(y))]
    y_test = torch.tensor([0] * (draw.size + 1) + [2] * draw.size + [1, 1])
    right = draw.size / len(y_test)
    expect_number(
        mine.majority(y, y_test),
        right,
        "majority",
        {
            "majority: the most frequent label of the test; it may be known from training only": (
                (draw.size + 1) / len(y_test)
            ),
            "majority: measured in training; the test is what counts": (draw.size + 2) / len(y),
            "majority: 1 / C is the share if all labels were equally frequent": 1 / 3,
            "majority: in percent; it is a share from 0 to 1": 100 * right,
        },
        inputs={"y": y.unsqueeze(0), "y_test": y_test.unsqueeze(0)},
    )


@check("probe", "Probe, majority and control, measured with examples that were held out")
def probe_with_baselines(mine: ModuleType, draw: InputDraw) -> None:
    x, y, classes = draw_examples(draw)
    x, y = x.repeat(4, 1) + 0.8 * draw.normal(4 * len(x), x.shape[1]), y.repeat(4)
    held = len(x) // 3
    order, shuffle = draw.permutation(len(x)), draw.permutation(len(x) - held)
    found = mine.probe(x, y, order, held, classes, shuffle)
    names = ("the probe's accuracy", "the majority's", "the control's")
    expect_results(found, names, "probe")

    # Accuracies of the true probe and of the control, in training and in the test
    train, test = order[:-held], order[-held:]
    true = descend(x[train], y[train], classes, 100, 0.5)
    control = descend(x[train], y[train][shuffle], classes, 100, 0.5)
    most = y[train].bincount(minlength=classes).argmax()

    def share(pair: tuple[Tensor, Tensor], chosen: Tensor, goal: Tensor) -> float:
        guesses = (x[chosen] @ pair[0].T + pair[1]).argmax(1)
        return (guesses == goal).float().mean().item()

    in_test = share(true, test, y[test])
    expect_number(
        found[0],
        in_test,
        "probe, its accuracy",
        {
            "probe: the accuracy in training; measure it with the examples held out": (
                share(true, train, y[train])
            ),
            "probe: this is the accuracy of the control": share(control, test, y[test]),
        },
    )
    expect_number(
        found[1],
        (y[test] == most).float().mean().item(),
        "probe, the majority",
        {"probe: the second result is the majority's; this is the probe's": in_test},
    )
    expect_number(
        found[2],
        share(control, test, y[test]),
        "probe, the control",
        {
            "probe: the control learns from true labels; shuffle the labels of training, and not "
            "the vectors with them": in_test,
            "probe: the control is measured with shuffled labels; measure with those held out": (
                share(control, train, y[train][shuffle])
            ),
            "probe: the control is measured in training": share(control, train, y[train]),
        },
    )


# A head knocked out


@check("knock_out", "The numbers of one head are 0, all others stay")
def zeros_of_head(mine: ModuleType, draw: InputDraw) -> None:
    for heads in (2, 3):
        width = draw.size + 1
        x = draw.normal(2, 4, heads * width)
        for head in range(heads):
            before = x.clone()
            found = mine.knock_out(x, head, heads)
            if not torch.equal(x, before):
                raise Failed("knock_out: x itself was changed; return a new tensor")

            mine_heads = torch.arange(heads * width) // width
            interleaved = torch.arange(heads * width) % heads
            at_position = torch.arange(4).unsqueeze(1) == head
            expect_equal(
                found,
                x * (mine_heads != head),
                f"knock_out, head {head} of {heads}",
                {
                    "knock_out: only this head is left; it is the one that should be 0": (
                        x * (mine_heads == head)
                    ),
                    f"knock_out: one number in {heads} is 0; a head has D numbers side by side": (
                        x * (interleaved != head)
                    ),
                    f"knock_out: position {head} is 0; a head is a part of every vector": (
                        x * ~at_position
                    ),
                    "knock_out: one number is 0; a head has D = E / heads of them": (
                        x * (torch.arange(heads * width) != head)
                    ),
                    "knock_out: nothing is 0": x,
                    f"knock_out: another head is 0; the first is head 0, this is head {head}": (
                        x * (mine_heads != (head - 1) % heads)
                    ),
                },
                shape="(B, T, E)",
                inputs={"x": x},
            )


@check("loss_change", "Afterwards the model is what it was")
def model_is_restored(mine: ModuleType, draw: InputDraw) -> None:
    model, ids = new_gpt(mine, draw)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        logits = model(ids)
        mine.loss_change(model, ids, 0, 0)
        for name, value in model.state_dict().items():
            if name not in before or not torch.equal(value, before[name]):
                raise Failed(f"loss_change: {name} of the model was changed")

        if not torch.allclose(logits, model(ids), atol=1e-6):
            raise Failed(
                "loss_change: the head is still knocked out afterwards; handle.remove() takes "
                "the hook out again"
            )


@check("loss_change", "The loss without the head minus the loss with it")
def change_of_loss(mine: ModuleType, draw: InputDraw) -> None:
    model, ids = new_gpt(mine, draw)
    twin = matching_gpt(model)
    batch = Batch(ids=ids[:, :-1], targets=ids[:, 1:])
    result = ablate(twin, [batch])
    changes = torch.tensor(result.change["self"])
    for layer, head in torch.cartesian_prod(*map(torch.arange, changes.shape)).tolist():
        expect_number(
            mine.loss_change(model, ids, layer, head),
            changes[layer, head].item(),
            f"loss_change, layer {layer}, head {head}",
            partial(mistakes_of_change, twin, batch, changes, layer, head, result.unchanged),
            inputs={"change of the loss by layer and head": changes},
            tolerance=1e-4,
        )
