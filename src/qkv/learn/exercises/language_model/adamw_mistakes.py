"""AdamW by torch, and with one of the mistakes that a student may make."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn


def torch_steps(start: Tensor, gradients: list[Tensor], options: dict[str, float]) -> Tensor:
    """The parameter after torch's updates."""
    parameter = nn.Parameter(start.clone())
    optimizer = torch.optim.AdamW(
        [parameter],
        lr=options["rate"],
        betas=(options["beta1"], options["beta2"]),
        eps=options["epsilon"],
        weight_decay=options["decay"],
    )
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()

    return parameter.detach()


def adamw_mistakes(
    start: Tensor, gradients: list[Tensor], options: dict[str, float]
) -> dict[str, Callable[[], Tensor]]:
    """What comes out after known mistakes."""
    texts = {
        "coupled": "adamw_update: the decay is added to the gradient; AdamW's is decoupled: it is "
        "added to the change, after the division",
        "decay without rate": "adamw_update: the decay is not multiplied by the rate",
        "no decay": "adamw_update: the decay is missing",
        "no correction": "adamw_update: the bias correction is missing, the division by "
        "1 - beta^step",
        "correction kept": "adamw_update: the mean and square that are kept are those before the "
        "bias correction",
        "late correction": "adamw_update: the bias correction counts one step too many; "
        "step is 1 at the first update",
        "epsilon inside": "adamw_update: epsilon is added after the square root, not before it",
        "no epsilon": "adamw_update: epsilon is missing, or is not the one that is given",
        "no root": "adamw_update: the square root of s' is missing",
        "betas": "adamw_update: beta1 and beta2 are exchanged: beta1 is for the mean",
        "fixed betas": "adamw_update: beta1 and beta2 are ignored; use those that are given",
        "fixed beta1": "adamw_update: beta1 is ignored; it is not always 0.9",
        "fixed beta2": "adamw_update: beta2 is ignored; it is not always 0.95",
        "square of mean": "adamw_update: s is the mean of g^2, not the square of the mean",
        "uphill": "adamw_update: the step goes uphill: the change is subtracted",
        "plain": "adamw_update: this is plain gradient descent, w - rate g",
    }
    mistakes: dict[str, Callable[[], Tensor]] = {}
    for name, text in texts.items():
        mistakes[text] = partial(wrong_adamw, start, gradients, options, name)

    return mistakes


def wrong_adamw(
    start: Tensor, gradients: list[Tensor], options: dict[str, float], mistake: str
) -> Tensor:
    """AdamW with one mistake."""
    rate, decay, epsilon = options["rate"], options["decay"], options["epsilon"]
    beta1, beta2 = options["beta1"], options["beta2"]
    if mistake == "betas":
        beta1, beta2 = beta2, beta1
    if mistake in ("fixed betas", "fixed beta1"):
        beta1 = 0.9
    if mistake in ("fixed betas", "fixed beta2"):
        beta2 = 0.95

    w = start.clone()
    m = torch.zeros_like(w)
    s = torch.zeros_like(w)
    for step, gradient in enumerate(gradients, start=1):
        g = gradient + decay * w if mistake == "coupled" else gradient
        m = beta1 * m + (1 - beta1) * g
        s = beta2 * s + (1 - beta2) * (m if mistake == "square of mean" else g) ** 2

        power = step + (mistake == "late correction")
        first, second = m / (1 - beta1**power), s / (1 - beta2**power)
        if mistake == "no correction":
            first, second = m, s
        if mistake == "correction kept":
            m, s = first, second

        divisor = {
            "epsilon inside": (second + epsilon).sqrt(),
            "no epsilon": second.sqrt(),
            "no root": second + epsilon,
        }.get(mistake, second.sqrt() + epsilon)
        change = gradient if mistake == "plain" else first / divisor
        factor = 0.0 if mistake in ("coupled", "no decay", "plain") else rate * decay
        if mistake == "decay without rate":
            factor = decay

        sign = -1 if mistake == "uphill" else 1
        w = w - sign * (rate * change + factor * w)

    return w
