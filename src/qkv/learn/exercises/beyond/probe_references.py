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
        lr=rate,
        maximize=mistake == "uphill",
    )
    for _ in range(1 if mistake == "one step" else steps):
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
    "no bias": "fit_probe: the bias stays 0; it is trained, too",
}
"""What the student is told of a probe that was trained in a wrong way."""


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
