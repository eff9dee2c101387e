"""Checks of exercise 10: schedule, AdamW, clipping and accumulation equal torch's and ours."""

from __future__ import annotations

import copy
from types import ModuleType

import torch
from torch import Tensor, nn

from qkv.learn.exercises.language_model.adamw_mistakes import adamw_mistakes, torch_steps
from qkv.learn.exercises.language_model.rate_curve import RateCurve
from qkv.learn.exercises.language_model.reference_training import (
    LIMITS,
    Mistake,
    Part,
    flat_parameters,
    mean_loss,
    train_steps,
)
from qkv.learn.expectations import Failed, InputDraw, check, expect_equal, table
from qkv.learn.result_kinds import as_number, expect_number, expect_results
from qkv.training.optimizer import gradient_norm

IGNORE = -100


@check("learning_rate", "Warm-up, then half a cosine")
def warmup_and_cosine(mine: ModuleType, draw: InputDraw) -> None:
    # With a warm-up of one step, several mistakes give the same rates.
    curve = RateCurve(3 * draw.size + 2, warmup=draw.size + 1, highest=0.02, final=0.2)
    steps, warmup, highest, final = curve
    expect_equal(
        curve.rates(lambda step: mine.learning_rate(step, steps, highest, warmup, final)),
        curve.scheduled("cosine"),
        f"learning rates of {steps} steps, {warmup} of warm-up, highest {highest}, final {final}",
        curve.mistakes(),
        tolerance=1e-7,
    )


# AdamW


@check("adamw_update", "Equal to torch.optim.AdamW over several steps")
def adamw_steps(mine: ModuleType, draw: InputDraw) -> None:
    shape = (draw.size, 2)
    start = draw.normal(*shape).double()
    # Small gradients, of the size of epsilon, show where epsilon stands.
    gradients = [
        draw.normal(*shape).double(),
        3 * draw.normal(*shape).double(),
        1e-4 * draw.normal(*shape).double(),
    ]
    options = {"rate": 0.1, "decay": 0.3, "beta1": 0.8, "beta2": 0.9, "epsilon": 1e-3}
    for count in range(1, len(gradients) + 1):
        found = student_steps(mine, start, gradients[:count], options)
        expected = torch_steps(start, gradients[:count], options)
        expect_equal(
            found,
            expected,
            f"the parameter after {count} {'steps' if count > 1 else 'step'}",
            adamw_mistakes(start, gradients[:count], options),
            inputs={"parameter before": start, "gradient of the last step": gradients[count - 1]},
            tolerance=1e-7,
        )


def student_steps(
    mine: ModuleType, start: Tensor, gradients: list[Tensor], options: dict[str, float]
) -> Tensor:
    """The parameter after the student's updates."""
    parameter = start.clone()
    mean = torch.zeros_like(start)
    square = torch.zeros_like(start)
    for step, gradient in enumerate(gradients, start=1):
        results = mine.adamw_update(parameter, gradient.clone(), mean, square, step, **options)
        parameter, mean, square = expect_results(results, ("parameter", "mean", "square"))
        for name, result in (("parameter", parameter), ("mean", mean), ("square", square)):
            expect_equal(torch.zeros_like(result), torch.zeros_like(start), f"the new {name}")

    return parameter


# Clipping


@check("clip", "The norm of all gradients together is at most the limit")
def global_norm(mine: ModuleType, draw: InputDraw) -> None:
    gradients = [draw.normal(draw.size, 2), 3 * draw.normal(3), 0.1 * draw.normal(1)]
    parameters = [nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()

    norm = gradient_norm(parameters)
    norms = torch.stack([gradient.norm() for gradient in gradients])
    for limit in (float(norm) / 2, float(norm) * 2):
        given = [gradient.clone() for gradient in gradients]
        found, found_norm = expect_results(mine.clip(given, limit), ("gradients", "their norm"))
        expect_number(
            found_norm,
            float(norm),
            "the norm of all gradients",
            {
                "clip: a sum of the norms; the norm of all numbers together is the square root "
                "of the sum of all squares": float(norms.sum()),
                "clip: the square root is missing": float(norm**2),
                "clip: this is the norm after clipping; expected the one before": min(
                    limit, float(norm)
                ),
                "clip: this is the largest of the norms": float(norms.max()),
            },
        )
        if not isinstance(found, list) or len(found) != len(gradients):
            raise Failed(f"clip: expected a list of {len(gradients)} gradients")

        expect_clipped(found, gradients, limit, float(norm))


def expect_clipped(found: list[Tensor], gradients: list[Tensor], limit: float, norm: float) -> None:
    """Fail unless all gradients are multiplied by the same factor, limit / norm or 1."""
    together = flat(gradients)
    lengths = [gradient.numel() for gradient in gradients]
    own = [g * min(1.0, limit / float(g.norm())) for g in gradients]
    expect_equal(
        flat(found),
        together * min(1.0, limit / norm),
        f"{len(lengths)} gradients one after the other, of {lengths} numbers, with the norm "
        f"{norm:.3g} and the limit {limit:.3g}",
        {
            "clip: each gradient is clipped by its own norm, which changes the direction of "
            "the step": flat(own),
            "clip: each number is clipped, which changes the direction of the step": (
                together.clamp(-limit, limit)
            ),
            "clip: the gradients are made larger: the norm is at most the limit, "
            "not always equal to it": together * (limit / norm),
            "clip: the gradients are not clipped": together,
            "clip: limit is ignored; it is not always 1": together * min(1.0, 1.0 / norm),
        },
    )


def flat(tensors: list[Tensor]) -> Tensor:
    """All numbers of some tensors, one after the other."""
    return torch.cat([tensor.flatten() for tensor in tensors])


# Accumulation


def draw_model(draw: InputDraw) -> nn.Module:
    """A small model from ids (B, T) to logits (B, T, V), in float64."""
    model = nn.Sequential(nn.Embedding(draw.size + 2, 3), nn.Linear(3, draw.size + 2)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(draw.normal(*parameter.shape))

    return model


def draw_parts(draw: InputDraw, rows: tuple[int, ...] = (2, 1, 3)) -> list[Part]:
    """Parts with different numbers of rows and of targets, one target at least in each."""
    V, T = draw.size + 2, draw.size + 1
    parts = []
    for number, B in enumerate(rows):
        ids = draw.integers(V, B, T)
        targets = draw.integers(V, B, T)
        hidden = draw.integers(3, B, T) < number
        hidden[0, 0] = False
        parts.append((ids, targets.masked_fill(hidden, IGNORE)))

    return parts


@check("accumulate", "The gradient of the whole batch, with unequal numbers of targets")
def accumulation(mine: ModuleType, draw: InputDraw) -> None:
    model = draw_model(draw)
    parts = draw_parts(draw)
    counts = [int((targets != IGNORE).sum()) for _, targets in parts]
    whole = mean_loss(model, parts)
    means = [mean_loss(model, [part]) for part in parts]
    positions = sum(targets.numel() for _, targets in parts)
    wrong_losses = {
        "the mean of the parts' means: a target counts more where its part has few": torch.stack(
            means
        ).mean(),
        "the sum of the parts' means; divide all sums by the number of all targets": torch.stack(
            means
        ).sum(),
        "not divided by the number of targets": whole * sum(counts),
        "divided by all positions, also those without a target (IGNORE)": whole
        * sum(counts)
        / positions,
        "divided by the number of targets of the last part alone": whole * sum(counts) / counts[-1],
        "divided by the number of parts": whole * sum(counts) / len(parts),
    }
    last = means[-1] * counts[-1] / sum(counts)
    targets_table = table("targets of each part", torch.tensor([counts]), ["number"])

    found = student_gradients(mine, model, parts)
    mistakes = {}
    for text, loss in wrong_losses.items():
        mistakes[f"accumulate: the gradient is {text}"] = flat_gradient(model, loss)

    mistakes[
        "accumulate: only the gradient of the last part is left: backward adds to .grad, and "
        "nothing may empty it between the parts"
    ] = flat_gradient(model, last)
    try:
        expect_equal(found[1], flat_gradient(model, whole), "the gradient", mistakes)
    except Failed as failed:
        raise Failed(failed.message, targets_table, *failed.examples) from None

    expect_number(
        found[0],
        whole.item(),
        "the mean loss",
        {f"accumulate: the loss is {text}": loss.item() for text, loss in wrong_losses.items()}
        | {"accumulate: the loss is that of the last part alone": last.item()},
    )


def flat_gradient(model: nn.Module, loss: Tensor) -> Tensor:
    """The gradient of a loss for all parameters as one vector."""
    gradients = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    return torch.cat([gradient.flatten() for gradient in gradients])


def student_gradients(
    mine: ModuleType, model: nn.Module, parts: list[Part]
) -> tuple[float, Tensor]:
    """The student's loss and gradient; fails unless each part is read and forgotten in turn."""
    model = copy.deepcopy(model)
    largest = max(len(ids) for ids, _ in parts)
    forward_passes: list[int] = []
    backward_passes: list[int] = []

    def before_pass(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if len(inputs[0]) > largest:
            raise Failed(
                f"accumulate: the model reads {len(inputs[0])} rows at once; only one part is in "
                "memory at a time"
            )
        if len(forward_passes) > len(backward_passes):
            raise Failed(
                "accumulate: the next part is read before backward of the one before it; only one "
                "part is in memory at a time"
            )

        forward_passes.append(len(inputs[0]))

    model.register_forward_pre_hook(before_pass)
    weight = next(model.parameters())
    weight.register_post_accumulate_grad_hook(lambda _: backward_passes.append(1))
    loss = as_number(mine.accumulate(model, parts), "the loss of accumulate")

    gradients = []
    for parameter in model.parameters():
        if parameter.grad is None:
            raise Failed("accumulate: a parameter has no .grad; is backward called?")

        gradients.append(parameter.grad.flatten())

    return loss, torch.cat(gradients)


# The whole step

STEP_MISTAKES: dict[Mistake, str] = {
    "kept gradients": "training_step: the gradients of the step before are still in .grad: "
    "model.zero_grad() comes first",
    "no clipping": "training_step: the gradients are not clipped; clip returns the clipped ones",
    "fixed limit": "training_step: limit is ignored; it is not always 1",
    "highest rate": "training_step: the rate is always the highest; learning_rate has that of "
    "this step",
    "next rate": "training_step: this is the rate of the next step; the steps count from 0",
    "no update": "training_step: the parameters have not changed; is optimizer.step called?",
}


@check("training_step", "Three steps equal torch's")
def whole_steps(mine: ModuleType, draw: InputDraw) -> None:
    start = draw_model(draw)
    with torch.no_grad():
        for parameter in start.parameters():
            parameter.mul_(3)  # the gradients have a norm above 1

    batches = [draw_parts(draw) for _ in range(3)]
    model = copy.deepcopy(start)
    optimizer = mine.AdamW(model)
    for step in range(3):
        with torch.no_grad():
            before = mean_loss(model, batches[step]).item()

        loss = mine.training_step(
            model, optimizer, batches[step], step, 5, highest=0.05, warmup=3, limit=LIMITS[step]
        )
        mistakes = {}
        for mistake, text in STEP_MISTAKES.items():
            wrong = train_steps(start, batches[: step + 1], 5, mistake)
            mistakes[text] = flat_parameters(wrong)

        expect_equal(
            flat_parameters(model),
            flat_parameters(train_steps(start, batches[: step + 1], 5)),
            f"the parameters after step {step}, one after the other",
            mistakes,
            tolerance=1e-6,
        )
        with torch.no_grad():
            after = mean_loss(model, batches[step]).item()

        expect_number(
            loss,
            before,
            f"the loss that training_step returns at step {step}",
            {"training_step: this is the loss after the update; expected the one before": after},
        )


@check("training_step", "Your GPT learns a sequence by heart")
def gpt_learns(mine: ModuleType, draw: InputDraw) -> None:
    if draw.size > 1:
        return

    torch.manual_seed(0)
    ids = draw.integers(6, 1, 9)
    model = mine.GPT(6, 8, 8, 1, 2)
    optimizer = mine.AdamW(model)
    losses = []
    for step in range(40):
        loss = mine.training_step(model, optimizer, [(ids[:, :-1], ids[:, 1:])], step, 40)
        losses.append(as_number(loss, "the loss of training_step"))

    if not losses[-1] < 0.2 * losses[0]:
        raise Failed(
            f"your GPT does not learn: the loss of one sequence was {losses[0]:.3g} and is "
            f"{losses[-1]:.3g} after 40 steps; do all checks of ex09_gpt.py hold?",
            table("loss every 5 steps", torch.tensor(losses[::5])),
        )
