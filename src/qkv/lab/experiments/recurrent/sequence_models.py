"""What the experiments of this folder share: models by the names that figures show, and effects."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from qkv.data.batches.batch import Batch
from qkv.data.embedded.synthetic_batches import Split, back_batch
from qkv.insight.inspect.attribution import embedding_leaves
from qkv.lab.experiment import Cell
from qkv.lab.fit import accuracy, fit
from qkv.lab.surgery import free_running
from qkv.models import (
    RNN,
    GPTConfig,
    Model,
    RNNConfig,
    RNNLMConfig,
    Transformer,
    TransformerConfig,
)
from qkv.models.registry import build
from qkv.training.objective import Objective

PRODUCTS = ("mm.", "addmm", "bmm", "linear", "scaled_dot_product")
"""Parts of the names of matrix products."""
CELLS = {"RNN": "rnn", "LSTM": "lstm", "GRU": "gru"}


def language_model(name: str, **sizes: Any) -> GPTConfig | RNNLMConfig:
    """The config of a model that reads from left to right.

    Args:
        name: RNN, LSTM or GRU; everything else is a GPT.
        sizes: Fields of the config; those that one kind does not have are left out for it.

    Returns:
        The config.
    """
    config = RNNLMConfig if name in CELLS else GPTConfig
    known = {}
    for key, value in sizes.items():
        if key in config.__dataclass_fields__:
            known[key] = value

    if name in CELLS:
        known["cell"] = CELLS[name]

    return config(**known)


def difference(measure: str, more: str, *less: str) -> Callable[[Callable[..., float]], float]:
    """The effect of a check: a measure of one arm, minus the largest of the others, if any.

    Args:
        measure: The measure.
        more: The arm that has more of it, if the claim is true.
        less: The arms that have less.

    Returns:
        The effect, as `Check` calls it.
    """
    return lambda value: (
        value(more, measure) - max((value(arm, measure) for arm in less), default=0.0)
    )


def copier(width: int, vocabulary: int, attention: str) -> Model:
    """A model with an encoder and a decoder.

    Args:
        width: Its width.
        vocabulary: Number of ids.
        attention: none or additive for a GRU; "only" for a Transformer.

    Returns:
        The model.
    """
    if attention != "only":
        config = RNNConfig(
            vocabulary=vocabulary,
            width=width,
            attention=attention,  # type: ignore[arg-type]
            dropout=0.0,
        )
        return RNN(config)

    return Transformer(
        TransformerConfig(
            vocabulary=vocabulary,
            width=width,
            depth=2,
            heads=4,
            norm_placement="before",
            dropout=0.0,
        )
    )


@torch.no_grad()
def copied(model: Model, batch: Batch) -> float:
    """The fraction of tokens that are right where the model reads its own predictions."""
    batch = free_running(model, batch)
    logits = model(batch.source, batch.ids)  # (B, T, V)
    return accuracy(logits[:, :-1], batch.targets[:, :-1])  # without the end token


def learn_back(cell: Cell, config: GPTConfig | RNNLMConfig, distance: int) -> float:
    """Train a model to say the token so far back; the fraction of right answers afterwards.

    Args:
        cell: The seed, the device, and the settings steps and rate.
        config: The model, with its vocabulary and its context.
        distance: How far back the answer is.

    Returns:
        The fraction of right answers in new sequences.
    """
    torch.manual_seed(cell.seed)
    model = build(config).to(cell.device)

    def batch(step: int, split: Split = "train") -> Batch:
        rows = (16, config.context, config.vocabulary)
        return back_batch(cell.seed, step, *rows, distance=distance, split=split)

    fit(model, batch, cell.size.steps, rate=cell.size.rate)
    right = 0.0
    for step in range(4):
        test = batch(step, "test").to(cell.device)
        with torch.no_grad():
            right += accuracy(model(test.ids), test.targets) / 4

    return right


class Chains(TorchDispatchMode):
    """For each tensor, the longest chain of matrix products that led to it."""

    def __init__(self) -> None:
        super().__init__()
        self.lengths: dict[int, int] = {}
        self.kept: list[Tensor] = []
        """All tensors, since memory that is used again would inherit a chain."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        before = [self.length(tensor) for tensor in tree_leaves((args, kwargs))]
        step = int(any(name in str(function) for name in PRODUCTS))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.kept.append(tensor)
                address = tensor.untyped_storage().data_ptr()
                self.lengths[address] = max([self.length(tensor), *(n + step for n in before)])

        return result

    def length(self, value: object) -> int:
        """The chain up to a tensor; 0 for everything else."""
        if not isinstance(value, Tensor):
            return 0

        return self.lengths.get(value.untyped_storage().data_ptr(), 0)


def longest_chain(model: nn.Module, ids: Tensor) -> int:
    """The matrix products of a forward pass that have to wait for each other: sequential steps.

    Args:
        model: A model, on the CPU.
        ids: Token ids, (B, T).

    Returns:
        The length of the longest chain of products, each of which reads another's result.
    """
    # In float32 oneDNN's LSTM is one operation, in which the steps cannot be seen
    copied = copy.deepcopy(model).double()
    with torch.no_grad(), Chains() as chains:
        logits = copied(ids)

    return chains.length(logits)


def block_gradients(model: Model, batch: Batch) -> dict[int, float]:
    """Decades of the gradient of each block's or recurrent layer's weights, counted from 1.

    Args:
        model: A GPT, or a recurrent language model.
        batch: A batch to take the loss of.

    Returns:
        The logarithm to base 10 of the gradient's norm, between 1e-30 and 1e30; the norm of a
        gradient that is not a number counts as 1e30.
    """
    loss = Objective(model)(batch.to(next(model.parameters()).device))
    (loss / batch.count).backward()
    squares: dict[int, float] = {}
    for name, weight in model.named_parameters():
        number = re.search(r"(?:blocks|cells)\.(\d+)\.|_l(\d+)$", name)
        if number is not None and weight.grad is not None:
            block = 1 + int(number[1] or number[2])
            squares[block] = squares.get(block, 0.0) + float(weight.grad.square().sum())

    model.zero_grad()
    return {block: decades(square**0.5) for block, square in squares.items()}


def decades(norm: float) -> float:
    """The logarithm to base 10, of at least 1e-30 and at most 1e30, which NaN counts as."""
    return math.log10(max(1e-30, min(1e30, norm)))


def gradients_back(model: Model, batch: Batch) -> Tensor:
    """Mean norm of the gradient at each token, from the last position back; (T,)."""
    model.train()  # cuDNN's RNNs have gradients only in training mode
    with embedding_leaves(model) as embeddings:
        logits = model(batch.ids)[:, -1]  # (B, V)

    loss = cross_entropy(logits, batch.targets[:, -1], reduction="sum")
    norms = torch.autograd.grad(loss, embeddings)[0].norm(dim=-1).mean(0).flip(0)
    return norms.nan_to_num(1e30).clamp(1e-30, 1e30)


def by_distance(norms: Tensor) -> dict[int, float]:
    """Decades at a few distances."""
    distances = sorted({0, 1, 2, 4, 8, 16, 32, len(norms) // 2, len(norms) - 1})
    near = [distance for distance in distances if distance < len(norms)]
    return {distance: decades(float(norms[distance])) for distance in near}
