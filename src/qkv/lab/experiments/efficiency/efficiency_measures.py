"""What the efficiency experiments share: a GPT that reads Python code, and counts of bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from statistics import median
from time import perf_counter
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.data.batches.batch import Batch
from qkv.lab.experiment import Cell, Check
from qkv.lab.experiments.kept_memory import kept_bytes, storage_of
from qkv.lab.fit import Fitted, fit_text
from qkv.models import GPTConfig, TransformerConfig
from qkv.models.model import Model
from qkv.nn.attention import Mask, attend
from qkv.training.objective import Objective
from qkv.training.optimizer import Optimizers
from qkv.training.run_config import DataConfig, OptimizerConfig
from qkv.training.setup.cost import synchronize
from qkv.training.setup.training_task import TrainingTask, assemble
from qkv.training.step import gradients_of
from qkv.training.systems.distributed import World

ITSELF = "each token only itself"
"""The arm without a view of other tokens."""


def fit_python(cell: Cell, **choices: Any) -> Fitted:
    """Train a GPT of the cell's size on Python code, character by character.

    Args:
        cell: Its size has context, width, depth, steps, batch_tokens, validation_batches and rate.
        choices: Fields of `GPTConfig`; there are 4 heads unless given.
    """
    size = cell.size
    choices = {"heads": 4, **choices}
    config = GPTConfig(context=size.context, width=size.width, depth=size.depth, **choices)

    return fit_text(
        config,
        "python",
        size.steps,
        seed=cell.seed,
        device=cell.device,
        batch_tokens=size.batch_tokens,
        validation_batches=size.validation_batches,
        rate=size.rate,
    )


@lru_cache(maxsize=1)
def turkish_task(batch_tokens: int, seed: int) -> TrainingTask:
    """The grammar's English and Turkish, word by word; the arms of a seed share it.

    Its config has the vocabulary of the data; its sizes are the defaults.
    """
    data = DataConfig(data=("turkish",), tokenizer="words")
    return assemble(TransformerConfig(context=64), data, batch_tokens=batch_tokens, seed=seed)


@torch.no_grad()
def cache_bytes_per_token(model: Model) -> float:
    """What the KV cache grows by for each token."""
    tokens = torch.zeros(1, 4, dtype=torch.long, device=next(model.parameters()).device)
    state = model.start()
    model.decode(tokens, state)
    total = 0
    for layer in state.buffers:
        for stored in state.read(layer):  # keys and values, (B, K, S, D)
            total += stored.numel() * stored.element_size()

    return total / tokens.shape[1]


def kept_without_parameters(objective: nn.Module, batch: Any) -> int:
    """Bytes that the loss of a batch keeps for the backward pass, without the parameters."""
    parameters = {storage_of(parameter) for parameter in objective.parameters()}
    return kept_bytes(lambda: objective(batch), lambda tensor: storage_of(tensor) in parameters)


@torch.no_grad()
def last_segment_losses(
    model: Model, tokens: Int[Tensor, "N"], segments: int
) -> Float[Tensor, "B T"]:
    """The loss of each token of the last segment of texts, each of as many segments as given.

    Args:
        model: A language model; what its memory holds of the segments before, it may use.
        tokens: The texts one after another, and one token more.
        segments: Segments of a text, each as long as the model's context.
    """
    tokens = tokens.to(next(model.parameters()).device)
    context = model.config.context
    ids = tokens[:-1].view(-1, segments * context)  # (B, segments * T)
    targets = tokens[1:].view(-1, segments * context)[:, -context:]  # (B, T)

    state = model.start()
    for segment in ids.split(context, dim=1):
        if model.uses_kv_cache:  # it has no memory
            state = model.start()

        logits = model.logits(model.decoder_hidden(segment, state=state))  # (B, T, V)

    return F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")


def timed_steps(
    objective: Objective,
    batch: Callable[[int], Batch],
    steps: int,
    device: torch.device,
    parts: int = 1,
) -> tuple[list[float], list[float]]:
    """Train, with gradients from `parts` micro-batches; the loss and the seconds of each step."""
    optimizers = Optimizers(objective, OptimizerConfig())
    optimizers.set_rate(1e-3, 1e-3)
    zero = torch.zeros((), device=device)
    losses = []
    seconds = []
    for step in range(steps):
        start = perf_counter()
        loss, _ = gradients_of(objective, batch(step), World(device), parts=parts)
        optimizers.step(zero, zero + 1)
        optimizers.zero_gradients()
        losses.append(loss.item())
        seconds.append(perf_counter() - start)

    return losses, seconds


def attention_seconds(mask: Mask, length: int, device: torch.device, turns: int) -> float:
    """Median time of attention with 4 heads of width 32, forward and backward, after one turn."""
    seconds = []
    for _ in range(turns + 1):
        query, key, value = torch.randn(3, 1, 4, length, 32, device=device).requires_grad_()
        synchronize(device)
        start = perf_counter()
        attend(query, key, value, mask=mask)[0].sum().backward()
        synchronize(device)
        seconds.append(perf_counter() - start)

    return median(seconds[1:])


def growth_exponent(by_length: Mapping[int, float]) -> float:
    """The slope between the two longest lengths on logarithmic axes: 2 is quadratic, 1 linear."""
    (short, low), (long, high) = list(by_length.items())[-2:]
    return math.log(high / low) / math.log(long / short)


def hardly_worse(arm: str, reference: str, margin: float) -> Check:
    """The check that the loss of an arm is at most `margin` above that of a reference."""
    return Check(
        f"The loss of {arm} is at most {margin:g} nats above that of {reference}",
        lambda value: value(arm, "loss") - value(reference, "loss"),
        relevant=margin,
        expects="not worse",
    )


def attention_is_used(reference: str) -> Check:
    """The control of `hardly_worse`: where attention is of no use, no pattern can do harm."""
    return Check(
        f"Attention matters at all: {ITSELF} has a higher loss than {reference}",
        lambda value: value(ITSELF, "loss") - value(reference, "loss"),
        relevant=0.1,
    )


def faster(arm: str) -> Check:
    """The check that an arm takes less time than dense attention."""
    return Check(
        f"The {arm} pattern takes less time at the longest length (log2 of the ratio)",
        lambda value: math.log2(value("dense", "longest") / value(arm, "longest")),
        relevant=0.5,
    )


def saves(arm: str, reference: str, measure: str) -> Check:
    """The exact check that an arm needs fewer bytes, or pairs, than a reference."""
    return Check(
        f"Saved by {arm}, as a share of what {reference} needs",
        lambda value: 1 - value(arm, measure) / value(reference, measure),
        relevant=0.1,
        exact=True,
    )
