"""Training steps by torch's AdamW and clipping, and with one of the mistakes of a student."""

from __future__ import annotations

import copy
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.data.batches.batch import IGNORE
from qkv.training.optimizer import gradient_norm
from qkv.training.run_config import OptimizerConfig
from qkv.training.schedule import learning_rate

Part = tuple[Tensor, Tensor]
"""Ids and targets, both (B, T)."""
LIMITS = (0.1, 0.4, 0.2)
"""Of the norm at each step: AdamW would not notice a wrong limit that is always the same."""
Mistake = Literal[
    "kept gradients", "no clipping", "fixed limit", "highest rate", "next rate", "no update"
]


def mean_loss(model: nn.Module, parts: list[Part]) -> Tensor:
    """The mean loss over all targets, of the whole batch at once."""
    ids = torch.cat([part[0] for part in parts])
    targets = torch.cat([part[1] for part in parts])
    return F.cross_entropy(model(ids).flatten(0, 1), targets.flatten(), ignore_index=IGNORE)


def train_steps(
    start: nn.Module,
    batches: list[list[Part]],
    steps: int,
    mistake: Mistake | None = None,
    *,
    highest: float = 0.05,
    warmup: int = 3,
) -> nn.Module:
    """A copy of the model after one step for each batch, of so many steps in all."""
    model = copy.deepcopy(start)
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    others = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8)
    config = OptimizerConfig(schedule="cosine", warmup=warmup)

    for step, parts in enumerate(batches):
        if mistake != "kept gradients":
            optimizer.zero_grad()

        mean_loss(model, parts).backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        if mistake != "no clipping":
            rescale(model, 1.0 if mistake == "fixed limit" else LIMITS[step])

        number = step + 1 if mistake == "next rate" else step
        rate = learning_rate(config, number, steps, highest)
        for group in optimizer.param_groups:
            group["lr"] = highest if mistake == "highest rate" else rate

        if mistake != "no update":
            optimizer.step()

        # The student's clip leaves .grad as it was.
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient

    return model


def rescale(model: nn.Module, limit: float) -> None:
    """Replace the gradients by those clipped by the norm of all together."""
    factor = (limit / gradient_norm(model.parameters())).clamp(max=1.0)
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad = parameter.grad * factor


def flat_parameters(model: nn.Module) -> Tensor:
    """All parameters of a model as one vector."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
