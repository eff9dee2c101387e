"""Single layers by the names that figures show, and what they cost: operations, bytes and time."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from qkv.data.batches.batch import Batch
from qkv.lab.experiments.kept_memory import kept_bytes
from qkv.nn.attention import attend
from qkv.nn.attention.multi_head import MultiHeadAttention
from qkv.nn.recurrent import Recurrent
from qkv.training.objective import Objective
from qkv.training.setup.cost import synchronize

ATTENTION = "attention"
PROJECTED = "attention with projections"
RNN = "RNN"


def layer(arm: str, width: int, device: torch.device) -> Callable[[Tensor], Tensor]:
    """The layer of an arm, all of it eager."""
    if arm == ATTENTION:
        return lambda x: attend(x, x, x, need_weights=True)[0]
    if arm == PROJECTED:
        projected = MultiHeadAttention(width, heads=1).to(device)
        return lambda x: projected(x, need_weights=True)[0]

    recurrent = Recurrent("rnn", width, width, 1).to(device)
    return lambda x: recurrent(x)[0]


def operations(arm: str, length: int, width: int) -> float:
    """Multiply-adds of all matrix products."""
    run = layer(arm, width, torch.device("cpu"))
    with FlopCounterMode(display=False) as counter:
        run(torch.zeros(1, length, width))

    return counter.get_total_flops() / 2


def off_theory(value: Callable[..., float]) -> float:
    """How far the growth of the operations is from n^2 d (attention) and n d^2 (RNN).

    Args:
        value: Gives what an arm measured, such as its "doublings with length".

    Returns:
        The largest of the four errors.
    """
    theory = {(ATTENTION, "length"): 2, (ATTENTION, "width"): 1, (RNN, "length"): 1}
    theory[RNN, "width"] = 2
    errors = [value(arm, f"doublings with {axis}") - n for (arm, axis), n in theory.items()]
    return max(errors, key=abs)


def bytes_kept(layer: Callable[[Tensor], Tensor], length: int, width: int) -> float:
    """MiB that a layer keeps for the backward pass, without its input and its weights.

    Args:
        layer: A function of vectors (B, T, E).
        length: Number of vectors.
        width: Their width.

    Returns:
        The MiB of one sequence; memory that two tensors share counts once.
    """
    x = torch.zeros(1, length, width, requires_grad=True)
    return kept_bytes(lambda: layer(x), is_given) / 2**20


def is_given(tensor: Tensor) -> bool:
    """Whether a tensor, or what it is a view of, was not computed: an input or a weight."""
    whole = tensor if tensor._base is None else tensor._base
    return whole.is_leaf


def seconds(run: Callable[..., object], *inputs: Any, repeats: int = 3) -> float:
    """The median time of a call, after one to warm up.

    Args:
        run: What to call.
        inputs: Its arguments; the first one's device is waited for.
        repeats: How often the time is taken.

    Returns:
        The seconds.
    """
    times = []
    for _ in range(repeats + 1):
        synchronize(inputs[0].device)
        start = perf_counter()
        run(*inputs)
        synchronize(inputs[0].device)
        times.append(perf_counter() - start)

    return statistics.median(times[1:])


def training_speed(objective: Objective, batch: Batch) -> float:
    """Tokens a second, forward and backward."""
    batch = batch.to(next(objective.parameters()).device)
    return batch.ids.numel() / seconds(lambda ids: objective(batch).backward(), batch.ids)


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Compute with a number of CPU threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
