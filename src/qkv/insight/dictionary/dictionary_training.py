"""Train a sparse autoencoder on the vectors of one layer, and measure it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from qkv.insight.dictionary.sparse_autoencoder import (
    DictionaryConfig,
    SparseAutoencoder,
    Sparsity,
)

BATCH = 256
CHUNK = 4096
"""Vectors that are encoded together."""
HELD_OUT = 10
"""Every tenth vector is not trained on, but measured."""


class DictionaryMeasures(NamedTuple):
    """How well an autoencoder does on vectors that it was not trained on."""

    variance_explained: float
    """1 for a perfect reconstruction, 0 for the mean vector."""
    active: float
    """The mean number of active features of a vector."""
    dead: float
    """The share of features that no vector at all activates."""
    losses: tuple[float, ...]
    """The loss of each step."""


class TrainedDictionary(NamedTuple):
    """A sparse autoencoder with its measures."""

    autoencoder: SparseAutoencoder
    measures: DictionaryMeasures


def train_dictionary(
    vectors: Float[Tensor, "N E"],
    *,
    layer: int = 0,
    features: int | None = None,
    sparsity: Sparsity = "top-k",
    active: int = 16,
    penalty: float = 0.1,
    steps: int = 1000,
    learning_rate: float = 1e-3,
    seed: int = 0,
    advance: Callable[[int, int], object] = lambda *_: None,
) -> TrainedDictionary:
    """Train a sparse autoencoder; the same seed gives the same weights.

    Args:
        vectors: Activations, one row a token.
        layer: The layer they come from, which is saved with the weights.
        features: The number of features; default 8 times the width.
        sparsity: "top-k" keeps the largest activities, "relu" penalises their sum.
        active: With top-k, the number that stay.
        penalty: With relu, the factor of the sum of activities in the loss.
        steps: Steps of Adam with 256 vectors each.
        learning_rate: The step size, which falls to 0 in the last fifth.
        seed: For the initial weights and the order of the vectors.
        advance: Called with the steps that are done, and with that of all.

    Returns:
        The autoencoder, and its measures on every tenth vector, which it was not trained on.

    Raises:
        ValueError: If there are too few vectors, or a number is out of range.

    Example:
        >>> import torch
        >>> from qkv import insight
        >>> trained = insight.train_dictionary(torch.randn(50, 4), features=8, active=2, steps=3)
        >>> trained.autoencoder.encode(torch.randn(4)).shape, trained.measures.active <= 2
        (torch.Size([8]), True)
    """
    N, E = vectors.shape
    features = features or 8 * E
    check_numbers(N, features, active, penalty, steps)

    # The first weights, and the scale of the vectors
    generator = torch.Generator().manual_seed(seed)
    config = DictionaryConfig(E, features, sparsity, min(active, features), layer)
    autoencoder = SparseAutoencoder(config, generator)
    held_out = torch.arange(N) % HELD_OUT == HELD_OUT - 1
    training = vectors[~held_out].float()
    centred = training - training.mean(0)
    scale = centred.square().sum(1).mean().sqrt().clamp(min=1e-8)
    with torch.no_grad():
        autoencoder.scale.copy_(scale)
        autoencoder.bias.copy_(training.mean(0) / scale)

    # Steps
    optimiser = torch.optim.Adam(autoencoder.parameters(), lr=learning_rate)
    losses = []
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = learning_rate * min(1.0, 5 * (1 - step / steps))

        rows = torch.randint(len(training), (BATCH,), generator=generator)
        loss = dictionary_loss(autoencoder, training[rows], penalty)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        autoencoder.normalise()
        losses.append(float(loss.detach()))
        advance(step + 1, steps)

    autoencoder.eval()
    return TrainedDictionary(autoencoder, measure(autoencoder, vectors, held_out, tuple(losses)))


def dictionary_loss(
    autoencoder: SparseAutoencoder, x: Float[Tensor, "B E"], penalty: float
) -> Float[Tensor, ""]:
    """The squared error in units of the scale, and with relu the sum of the activities."""
    activity = autoencoder.encode(x)
    error = (autoencoder.decode(activity) - x) / autoencoder.scale
    loss = error.square().sum(-1).mean()
    if autoencoder.config.sparsity == "relu":
        loss = loss + penalty * activity.sum(-1).mean()

    return loss


@torch.no_grad()
def measure(
    autoencoder: SparseAutoencoder,
    vectors: Float[Tensor, "N E"],
    held_out: Bool[Tensor, "N"],
    losses: tuple[float, ...] = (),
) -> DictionaryMeasures:
    """Variance explained and active features on the vectors held out; dead features on all."""
    ever = torch.zeros(autoencoder.config.features, dtype=torch.bool)
    for chunk in vectors.float().split(CHUNK):
        ever |= (autoencoder.encode(chunk) > 0).any(0)

    error = 0.0
    count = 0
    chosen = vectors[held_out].float()
    for chunk in chosen.split(CHUNK):
        activity = autoencoder.encode(chunk)
        error += float((autoencoder.decode(activity) - chunk).double().square().sum())
        count += int((activity > 0).sum())

    spread = float((chosen - chosen.mean(0)).double().square().sum())
    return DictionaryMeasures(
        1 - error / max(spread, 1e-12),
        count / len(chosen),
        float((~ever).double().mean()),
        losses,
    )


def check_numbers(N: int, features: int, active: int, penalty: float, steps: int) -> None:
    """Raise if a number is out of range."""
    if N < 2 * HELD_OUT:
        raise ValueError(f"data: expected {2 * HELD_OUT} tokens or more, not {N}")
    if not penalty >= 0:
        raise ValueError(f"penalty: expected 0 or more, not {penalty}")
    for name, value in (("features", features), ("active", active), ("steps", steps)):
        if value < 1:
            raise ValueError(f"{name}: expected 1 or more, not {value}")
