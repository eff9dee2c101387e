"""Surgery: a model without one of its parts, for experiments that ask what the part is for.

Each function changes a model while its context is open, in training as in evaluation, and leaves
its weights alone. Contexts can be nested:

    with without_norm(model), without_residual(model):
        loss = Objective(model)(batch)

A saved model knows nothing of surgery: open the context again after loading it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from types import MethodType
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from qkv.data.batches.batch import Batch
from qkv.generation.generate import without_dropout
from qkv.models.model import Model, backbone_of
from qkv.models.sites import attends
from qkv.nn.attention import Mask
from qkv.nn.attention.multi_head import MultiHeadAttention
from qkv.nn.block import Residual
from qkv.nn.hooks import add_hook
from qkv.nn.norm import LayerNorm, RMSNorm

M = TypeVar("M", bound=nn.Module)


# Attention


@contextmanager
def unscaled(model: Model) -> Iterator[None]:
    """Compute scores without the division by sqrt(D): <q, k> in place of <q, k> / sqrt(D).

    Queries are multiplied by sqrt(D), so every kernel still computes the attention. Biases such as
    ALiBi's stay as they are; Transformer-XL's, a part of the scaled score, is multiplied, too.

    Args:
        model: Any model with heads; an RNN has the choice in its config (`attention="dot"`).

    Raises:
        ValueError: If the model has no multi-head attention.

    Example:
        >>> import torch
        >>> from qkv.models import GPT, GPTConfig
        >>> gpt = GPT(GPTConfig(vocabulary=10, context=8, width=8, depth=1, heads=2))
        >>> with unscaled(gpt):
        ...     logits = gpt(torch.tensor([[1, 2, 3]]))
    """
    with ExitStack() as hooks:
        for attention in parts(model, MultiHeadAttention):
            point = "query" if attention.relative is None else "scores"
            root = math.sqrt(attention.head_width)
            hooks.enter_context(add_hook(attention, point, partial(multiply, root)))

        yield


def multiply(factor: float, value: Tensor, name: str) -> Tensor:
    """A hook that multiplies a value."""
    return value * factor


@contextmanager
def proportional_weights(model: Model) -> Iterator[None]:
    """Make weights proportional to the scores, not to their exponentials: a_ij = s_ij / sum_j s_ij.

    Negative scores count as 0, and a query without a positive score gets zeros: what
    `attend(..., normalise="proportional")` does.

    Args:
        model: Any model that attends, an RNN with attention among them.

    Raises:
        ValueError: If the model has no attention.

    Example:
        >>> import torch
        >>> from qkv.models import RNN, RNNConfig
        >>> rnn = RNN(RNNConfig(vocabulary=10, width=8))
        >>> with proportional_weights(rnn):
        ...     logits = rnn(torch.tensor([[1, 2, 3]]), torch.tensor([[4, 5]]))
    """
    if not attends(model):
        raise ValueError("model: expected one with attention, and this RNN has none")

    with add_hook(model, "*scores", log_of_positive):
        yield


def log_of_positive(scores: Float[Tensor, "B H T S"], name: str) -> Float[Tensor, "B H T S"]:
    """A hook whose softmax is s / sum(s) of the positive scores; -inf for the others."""
    positive = scores > 0
    logs = scores.where(positive, 1).log()  # the log of 0 would have no gradient
    return logs.where(positive, -math.inf)


@contextmanager
def unmasked_training(model: Model) -> Iterator[None]:
    """Remove the causal mask, so that a decoder sees the tokens it has to predict.

    Padding, documents and sparsity stay masked. Token by token (`decode`) there are no later tokens
    to see, so a model trained like this generates with less than it had in training.

    Args:
        model: A GPT, or a Transformer, whose decoder loses its mask.

    Raises:
        ValueError: If the model has no causal mask.

    Example:
        >>> import torch
        >>> from qkv.models import GPT, GPTConfig
        >>> gpt = GPT(GPTConfig(vocabulary=10, context=8, width=8, depth=1, heads=2))
        >>> with unmasked_training(gpt):
        ...     logits = gpt(torch.tensor([[1, 2, 3]]))
    """
    backbone = backbone_of(model)
    if not backbone.stacks or not (backbone.is_causal or backbone.has_source):
        name = type(backbone).__name__
        raise ValueError(f"mask: expected a model with a causal mask, and a {name} has none")

    with replaced([backbone], "mask", mask_without_order):
        yield


def mask_without_order(
    model: Model, padding_mask: Any = None, documents: Any = None, *, causal: bool | None = None
) -> Mask | None:
    """In place of `Model.mask`: the same, never causal."""
    return type(model).mask(model, padding_mask, documents, causal=False)


# Blocks


@contextmanager
def without_residual(model: Model) -> Iterator[None]:
    """Remove the residual connections: sublayer(x) in place of x + sublayer(x); norms stay.

    Args:
        model: Any model with blocks.

    Raises:
        ValueError: If the model has none.

    Example:
        >>> import torch
        >>> from qkv.models import GPT, GPTConfig
        >>> gpt = GPT(GPTConfig(vocabulary=10, context=8, width=8, depth=1, heads=2))
        >>> with without_residual(gpt):
        ...     logits = gpt(torch.tensor([[1, 2, 3]]))
    """
    with replaced(parts(model, Residual), "forward", sublayer_alone):
        yield


def sublayer_alone(
    residual: Residual, x: Float[Tensor, "B T E"], sublayer: Callable[[Tensor], Tensor]
) -> Float[Tensor, "B T E"]:
    """In place of `Residual.forward`: the same without "x +"."""
    if residual.before:
        return residual.dropout(sublayer(residual.norm(x)))

    return residual.norm(residual.dropout(sublayer(x)))


@contextmanager
def without_norm(model: Model) -> Iterator[None]:
    """Remove every layer norm and RMS norm: vectors pass unchanged, gains get no gradient.

    Args:
        model: Any model with norms.

    Raises:
        ValueError: If the model has none.

    Example:
        >>> import torch
        >>> from qkv.models import GPT, GPTConfig
        >>> gpt = GPT(GPTConfig(vocabulary=10, context=8, width=8, depth=1, heads=2))
        >>> with without_norm(gpt):
        ...     logits = gpt(torch.tensor([[1, 2, 3]]))
    """
    with replaced(parts(model, LayerNorm, RMSNorm), "forward", identity):
        yield


def identity(norm: nn.Module, x: Float[Tensor, "*n E"]) -> Float[Tensor, "*n E"]:
    """In place of a norm's `forward`."""
    return x


# Teacher forcing


def free_running(
    model: Model, batch: Batch, *, share: float = 1.0, generator: torch.Generator | None = None
) -> Batch:
    """The batch with the model's own predictions as inputs, in place of the reference.

    The model decodes greedily, without dropout, from the first token of each row, so its loss for
    the returned batch is that of free-running: each input is its last prediction. Targets do not
    change. A prediction is a choice of a token, through which no gradient flows.

    Args:
        model: A model that generates.
        batch: A batch of pairs, or of texts without documents packed into a row.
        share: Probability that an input is the prediction and not the reference: 1 is
            free-running, 0 is teacher forcing.
        generator: Where the choice between both is drawn, on the CPU; needed between 0 and 1.

    Returns:
        The batch with other `ids`; the first token and padding stay.

    Raises:
        ValueError: If the model does not generate, rows hold several documents, the share is not a
            probability, or there is no generator to draw with.

    Example:
        >>> import torch
        >>> from qkv.models import RNN, RNNConfig
        >>> from qkv.training.objective import Objective
        >>> rnn = RNN(RNNConfig(vocabulary=10, width=8))
        >>> ids = torch.tensor([[1, 4, 5]])
        >>> batch = Batch(ids, targets=torch.tensor([[4, 5, 2]]), source=torch.tensor([[3, 4]]))
        >>> loss = Objective(rnn)(free_running(rnn, batch))
    """
    check_free_running(model, batch, share, generator)
    B, T = batch.ids.shape
    own = torch.ones(B, T, dtype=torch.bool)
    if generator is not None:
        own = torch.rand(B, T, generator=generator) < share

    own = own.to(batch.ids.device)
    own[:, :1] = False
    if batch.padding_mask is not None:
        own &= batch.padding_mask

    ids = batch.ids.clone()
    with torch.no_grad(), without_dropout(model):
        state = model.start(*source_of(batch))
        for position in range(T - 1):
            logits = model.decode(ids[:, position : position + 1], state)  # (B, 1, V)
            following = ids[:, position + 1]
            predicted = logits[:, -1].argmax(-1)
            ids[:, position + 1] = predicted.where(own[:, position + 1], following)

    return replace(batch, ids=ids)


def source_of(batch: Batch) -> tuple[Any, ...]:
    """The arguments of `start`: the source and its padding, or nothing without a source."""
    if batch.source is None:
        return ()

    return batch.source, batch.source_padding_mask


def check_free_running(
    model: Model, batch: Batch, share: float, generator: torch.Generator | None
) -> None:
    if model.predicts not in ("next", "target"):
        raise ValueError(f"model: expected one that generates, not a {type(model).__name__}")
    if batch.documents is not None or batch.target_positions is not None:
        raise ValueError("batch: expected one sequence a row, with a target at every position")
    if not 0 <= share <= 1:
        raise ValueError(f"share: expected a probability, not {share}")
    if share < 1 and generator is None:
        raise ValueError("generator: a share below 1 is drawn, so it needs a torch.Generator")


# How parts are replaced


def parts(model: nn.Module, *kinds: type[M]) -> list[M]:
    """All modules of these classes; raises ValueError if there is none."""
    found = []
    for module in model.modules():
        if isinstance(module, kinds):
            found.append(module)

    if not found:
        names = " or ".join(kind.__name__ for kind in kinds)
        raise ValueError(f"model: {type(model).__name__} has no {names} to change")

    return found


@contextmanager
def replaced(modules: Iterable[nn.Module], name: str, method: Callable[..., Any]) -> Iterator[None]:
    """Replace a method of these instances; fused kernels see it and step aside.

    The new method is bound, so that a deep copy of a model has its own.
    """
    before = []
    for module in modules:
        before.append((module, vars(module).get(name)))
        setattr(module, name, MethodType(method, module))

    try:
        yield
    finally:
        for module, old in before:
            delattr(module, name)
            if old is not None:
                setattr(module, name, old)
