"""A probe by PyTorch's gradient descent and losses without heads, with known mistakes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.data.batches.batch import Batch


def descend(
    x: Tensor, y: Tensor, classes: int, steps: int, rate: float, mistake: str = ""
) -> tuple[Tensor, Tensor]:
    """A probe by PyTorch's gradient descent, or the same with a known mistake."""
    linear = nn.Linear(x.shape[1], classes)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    if mistake == "no bias":
        linear.bias.requires_grad_(False)

    optimizer = torch.optim.SGD(
        [one for one in linear.parameters() if one.requires_grad],
        lr=0.5 if mistake == "always 0.5" else rate,
        maximize=mistake == "uphill",
    )
    counts = {"one step": 1, "one step fewer": steps - 1, "always 100": 100}
    for _ in range(counts.get(mistake, steps)):
        if mistake != "accumulated":
            optimizer.zero_grad()

        logits = linear(x)
        if mistake == "two softmax":
            logits = logits.softmax(-1)

        reduction = "sum" if mistake == "sum" else "mean"
        F.cross_entropy(logits, y, reduction=reduction).backward()
        optimizer.step()

    return linear.weight.detach(), linear.bias.detach()


MISTAKES = {
    "sum": "fit_probe: the loss is a sum over the examples; it is their mean",
    "uphill": "fit_probe: each step adds the gradient, so that the loss grows; subtract it",
    "accumulated": "fit_probe: gradients of earlier steps are added up; begin each step anew",
    "two softmax": "fit_probe: cross_entropy takes logits, and has its own softmax",
    "one step": "fit_probe: only one step was made",
    "one step fewer": "fit_probe: one step fewer was made than steps says",
    "always 100": "fit_probe: 100 steps were made; make as many as steps says",
    "always 0.5": "fit_probe: the gradient is multiplied by 0.5, not by the rate that is given",
    "no bias": "fit_probe: the bias stays 0; it is trained, too",
}
"""What the student is told of a probe that was trained in a wrong way."""


def beside(pair: tuple[Tensor, Tensor]) -> Tensor:
    """Weight and bias in one tensor, the bias as the last column."""
    return torch.cat([pair[0], pair[1].unsqueeze(1)], dim=1)


def mistakes_of_descent(
    x: Tensor, y: Tensor, classes: int, steps: int, rate: float
) -> dict[str, Tensor]:
    """Probes by known mistakes, by what to tell the student."""
    return {
        text: beside(descend(x, y, classes, steps, rate, mistake))
        for mistake, text in MISTAKES.items()
    }


def mistakes_of_change(
    twin: Any, batch: Batch, changes: Tensor, layer: int, head: int, loss: float
) -> dict[str, float]:
    """Changes of the loss by known mistakes, by what to tell the student.

    Args:
        twin: The library's model.
        batch: What it reads.
        changes: The right changes, (L, H).
        layer: The layer of the head that is knocked out.
        head: The head.
        loss: The loss with all heads.
    """
    right = changes[layer, head].item()
    mistakes = {
        "loss_change: the sign is wrong: a head that is needed makes the loss grow": -right,
        "loss_change: this is the loss without the head; subtract the loss with it": right + loss,
        "loss_change: divided by the loss with the head; subtract it": (right + loss) / loss,
        "loss_change: 0: the head was not knocked out": 0.0,
        "loss_change: all heads of the layer were knocked out": (
            without_heads(twin, batch, layer) - loss
        ),
        "loss_change: the numbers are set to 0 after attention.output, which has mixed the heads; "
        "set them to 0 before it": after_output(twin, batch, layer, head) - loss,
    }
    for other, row in enumerate(changes.tolist()):
        mistakes[f"loss_change: the head of another layer, {other}, was knocked out"] = row[head]

    for other, change in enumerate(changes[layer].tolist()):
        mistakes[f"loss_change: head {other} was knocked out, not head {head}"] = change

    return mistakes


@torch.no_grad()
def without_heads(twin: Any, batch: Batch, layer: int) -> float:
    """The loss with all heads of a layer set to 0."""
    attention = twin.stack.blocks[layer].attention
    handle = attention.output.register_forward_pre_hook(lambda module, inputs: (0 * inputs[0],))
    loss = F.cross_entropy(twin(batch.ids).flatten(0, 1), batch.targets.flatten())
    handle.remove()
    return loss.item()


@torch.no_grad()
def after_output(twin: Any, batch: Batch, layer: int, head: int) -> float:
    """The loss with a part of the output projection's result set to 0."""
    attention = twin.stack.blocks[layer].attention
    part = torch.arange(attention.heads * attention.head_width) // attention.head_width

    def zero(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return output * (part != head)

    handle = attention.output.register_forward_hook(zero)
    loss = F.cross_entropy(twin(batch.ids).flatten(0, 1), batch.targets.flatten())
    handle.remove()
    return loss.item()
