"""Linear probes (optionally with one hidden layer) on the activations of a frozen model.

The probes of several layers, seeds and target sets train together as one batched matrix product,
but independently: each has its own weights, its own order of the data and its own early stopping.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from qkv.insight.probing.activations import Activations, ignore
from qkv.nn.config import check_at_least_one, documented

POOL = 16384
"""Largest number of vectors that are shuffled together, taken from random blocks."""
NUMBERS = 1 << 27
"""Largest number of values in a pool over all layers (half a gigabyte)."""
VECTORS_PER_CHUNK = 512
"""Vectors that are predicted together."""
UNKNOWN = -1
"""Class number of a label that does not occur in the training part; no probe can predict it."""


@documented
@dataclass(frozen=True, kw_only=True)
class ProbeTraining:
    """Training of probes: AdamW on standardised vectors, with a learning rate that falls to 0."""

    hidden: int = 0
    """Width of the hidden layer; 0 for a linear probe."""
    batch: int = 256
    """Vectors in a step; at most a thirty-second of all vectors, but at least 16."""
    rate: float = 2e-3
    """Initial learning rate."""
    weight_decay: float = 0.01
    """Weight decay of AdamW."""
    epochs: int | None = None
    """Passes over the vectors; by default as many as give 4,000 steps, from 4 to 60."""
    patience: int = 4
    """Epochs without a better validation loss after which a probe stops."""

    def __post_init__(self) -> None:
        check_at_least_one(self, "batch", "epochs", "patience")
        if self.hidden < 0:
            raise ValueError(
                f"hidden: expected 0 for a linear probe or the width of a layer, not {self.hidden}"
            )

    def batch_of(self, vectors: int) -> int:
        """The batch size for a number of vectors."""
        return min(self.batch, max(16, vectors // 32))

    def epochs_of(self, vectors: int) -> int:
        """The number of epochs for a number of vectors."""
        return self.epochs or min(60, max(4, math.ceil(4000 * self.batch_of(vectors) / vectors)))


class Probes(nn.Module):
    """L layers x S seeds x K target sets of probes, each with C classes (or one number)."""

    def __init__(
        self,
        layers: int,
        seeds: Sequence[int],
        targets: int,
        width: int,
        outputs: int,
        hidden: int = 0,
    ) -> None:
        super().__init__()
        self.targets = targets
        S = len(seeds)
        K = targets
        first = torch.empty(S, K, width, hidden or outputs)
        second = torch.empty(S, K, hidden, outputs)

        # The initial weights of a seed do not depend on the other probes.
        for number, seed in enumerate(seeds):
            generator = torch.Generator().manual_seed(seed)
            for k in range(K):
                first[number, k].uniform_(-1, 1, generator=generator).mul_(width**-0.5)
                second[number, k].uniform_(-1, 1, generator=generator).mul_(max(1, hidden) ** -0.5)

        first = first.transpose(1, 2).flatten(2)  # (S, E, K H)
        self.first = nn.Parameter(first.repeat(layers, 1, 1, 1))
        self.first_bias = nn.Parameter(torch.zeros(layers, S, 1, first.shape[-1]))
        self.second: nn.Parameter | None = None
        self.second_bias: nn.Parameter | None = None
        if hidden:
            self.second = nn.Parameter(second.repeat(layers, 1, 1, 1, 1))
            self.second_bias = nn.Parameter(torch.zeros(layers, S, K, 1, outputs))

    def forward(self, x: Float[Tensor, "L #S b E"]) -> Float[Tensor, "L S K b C"]:
        y = x @ self.first + self.first_bias  # (L, S, b, K H), all target sets side by side
        y = y.unflatten(-1, (self.targets, -1)).transpose(2, 3)  # (L, S, K, b, H)
        if self.second is None or self.second_bias is None:
            return y

        return y.relu() @ self.second + self.second_bias  # (L, S, K, b, C)


@dataclass(frozen=True, eq=False)
class FittedProbe:
    """Trained probes with the standardisation of their inputs and targets."""

    layers: tuple[str, ...]
    probes: Probes
    mean: Float[Tensor, "L 1 E"]
    deviation: Float[Tensor, "L 1 E"]
    offset: float
    """The number that an output of 0 stands for."""
    scale: float
    """The difference that an output of 1 makes."""
    classes: int
    """The number of classes; 0 if the target is a number."""

    def standardise(self, vectors: Float[Tensor, "L n E"]) -> Float[Tensor, "L n E"]:
        """Vectors with mean 0 and standard deviation 1 in each dimension."""
        return (vectors - self.mean) / self.deviation

    @torch.no_grad()
    def predict(self, vectors: Float[Tensor, "L n E"]) -> Float[Tensor, "L S K n"]:
        """The likeliest class, or the number."""
        parts = []
        for chunk in self.standardise(vectors).split(VECTORS_PER_CHUNK, dim=1):
            outputs = self.probes(chunk.unsqueeze(1))
            if self.classes:
                parts.append(outputs.argmax(-1).float())
            else:
                parts.append(self.offset + self.scale * outputs.squeeze(-1))

        return torch.cat(parts, dim=-1)


# Training


def fit(
    training: Activations,
    validation: Activations,
    targets: Sequence[tuple[np.ndarray, np.ndarray]],
    classes: int,
    *,
    layers: Sequence[str] | None = None,
    seeds: Sequence[int] = (0,),
    learning: ProbeTraining = ProbeTraining(),  # noqa: B008 - it is frozen
    advance: Callable[[float], object] = ignore,
) -> FittedProbe:
    """Train a probe for each layer, seed and target set.

    Args:
        training: The activations to train on.
        validation: The activations for early stopping.
        targets: Target sets, each for the training and the validation vectors.
        classes: The number of classes; 0 if the targets are numbers.
        layers: The layers; default all.
        seeds: A probe is trained for each seed.
        learning: Hyperparameters.
        advance: Called with the share of the work that was done since the last call.
    """
    layers = tuple(layers or training.layers)
    mean, deviation = moments(training, layers)
    offset, scale = units_of(targets[0][0], classes)
    probes = Probes(
        len(layers), seeds, len(targets), mean.shape[-1], classes or 1, learning.hidden
    ).to(mean.device)
    fitted = FittedProbe(layers, probes, mean, deviation, offset, scale, classes)
    training_targets, validation_targets = (
        torch.stack([in_units(values, fitted) for values in part]).to(mean.device)
        for part in zip(*targets, strict=True)
    )  # (K, n) each

    trainer = ProbeTrainer(fitted, training, training_targets, seeds, learning, advance)
    best = BestWeights(probes, learning.patience)
    for epoch in range(trainer.epochs):
        trainer.run_epoch(epoch)
        if not best.update(validation_loss(validation, validation_targets, fitted)):
            break

    advance(1 - trainer.done / trainer.total)  # what early stopping has saved
    best.restore()

    return fitted


@dataclass(eq=False)
class ProbeTrainer:
    """The optimiser of all probes, and the progress of their training."""

    fitted: FittedProbe
    training: Activations
    targets: Tensor  # (K, n)
    seeds: Sequence[int]
    learning: ProbeTraining
    advance: Callable[[float], object]
    done: int = 0

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.AdamW(
            self.fitted.probes.parameters(), weight_decay=self.learning.weight_decay
        )
        count = self.targets.shape[1]
        self.epochs = self.learning.epochs_of(count)
        self.batch = self.learning.batch_of(count)
        self.total = self.epochs * count

    def run_epoch(self, epoch: int) -> None:
        """Train on all vectors once, pool by pool."""
        for pool in pools(self.training, epoch, self.fitted.mean.shape[-1]):
            x, index = read_blocks(self.training, pool, self.fitted)  # (L, n, E), (n,)
            order = orders(self.seeds, epoch, pool[0], len(index)).to(x.device)  # (S, n)
            for chosen in order.split(self.batch, dim=1):  # (S, b)
                targets = self.targets[:, index[chosen]].transpose(0, 1)  # (S, K, b)
                self.step(x[:, chosen], targets)
                self.done += chosen.shape[1]

            self.advance(len(index) / self.total)

    def step(self, x: Float[Tensor, "L S b E"], targets: Tensor) -> None:
        """One optimiser step; the loss of each probe is independent of the others."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning.rate * (1 - self.done / self.total)

        loss = losses(self.fitted.probes(x), targets, self.fitted.classes)  # (L, S, K, b)
        self.optimizer.zero_grad(set_to_none=True)
        loss.mean(-1).sum().backward()
        self.optimizer.step()


def losses(
    outputs: Float[Tensor, "L S K b C"],
    targets: Int[Tensor, "S K b"] | Float[Tensor, "S K b"],
    classes: int,
) -> Float[Tensor, "L S K b"]:
    """The cross-entropy of each prediction, or the squared error of a number."""
    shape = outputs.shape[:-1]
    targets = targets.expand(shape)
    if not classes:
        return (outputs.squeeze(-1) - targets).square()

    # A class that is unknown from training has no loss.
    entropy = functional.cross_entropy(
        outputs.flatten(0, -2), targets.flatten(), reduction="none", ignore_index=UNKNOWN
    )
    return entropy.view(shape)


def units_of(targets: np.ndarray, classes: int) -> tuple[float, float]:
    """Offset and scale that standardise numeric targets."""
    if classes:
        return 0.0, 1.0

    numbers = targets.astype(np.float64)
    return float(numbers.mean()), float(numbers.std()) or 1.0


def in_units(targets: np.ndarray, fitted: FittedProbe) -> Tensor:
    """Targets as the loss expects them: class numbers, or standardised numbers."""
    if fitted.classes:
        return torch.from_numpy(targets.astype(np.int64))

    return torch.from_numpy(((targets - fitted.offset) / fitted.scale).astype(np.float32))


@torch.no_grad()
def validation_loss(
    validation: Activations, targets: Tensor, fitted: FittedProbe
) -> Float[Tensor, "L S K"]:
    """The mean loss of each probe."""
    total: Tensor = torch.zeros(())
    for block in range(len(validation.blocks)):
        x, index = read_blocks(validation, [block], fitted)
        chunks = zip(
            x.split(VECTORS_PER_CHUNK, dim=1),
            targets[:, index].split(VECTORS_PER_CHUNK, dim=1),
            strict=True,
        )
        for vectors, chunk_targets in chunks:
            outputs = fitted.probes(vectors.unsqueeze(1))  # (L, S, K, b, C)
            expanded = chunk_targets.expand(outputs.shape[1], -1, -1)  # (S, K, b)
            total = total + losses(outputs, expanded, fitted.classes).sum(-1).cpu()  # (L, S, K)

    return total / targets.shape[1]


class BestWeights:
    """Early stopping: the weights of each probe at its lowest validation loss."""

    def __init__(self, probes: Probes, patience: int) -> None:
        self.probes = probes
        self.patience = patience
        self.weights = [parameter.detach().clone() for parameter in probes.parameters()]
        self.loss = torch.tensor(math.inf)  # (L, S, K) from the first update on
        self.stale = torch.tensor(0)

    def update(self, loss: Float[Tensor, "L S K"]) -> bool:
        """Keep the weights of probes that improved; return whether any probe still trains.

        A probe that has stopped keeps its weights, whatever the others do.
        """

        better = (loss < self.loss) & (self.stale < self.patience)  # (L, S, K)
        self.loss = torch.where(better, loss, self.loss)
        self.stale = torch.where(better, 0, self.stale + 1)

        for stored, parameter in zip(self.weights, self.probes.parameters(), strict=True):
            if parameter.dim() == 4:  # (L, S, n, K H): target sets side by side
                repeats = parameter.shape[-1] // better.shape[-1]
                chosen = better.repeat_interleave(repeats, dim=-1).unsqueeze(2)
            else:  # (L, S, K, n, C)
                chosen = better[..., None, None]

            stored.copy_(torch.where(chosen.to(parameter.device), parameter.detach(), stored))

        return bool((self.stale < self.patience).any())

    @torch.no_grad()
    def restore(self) -> None:
        """Set each probe to its best weights."""
        for stored, parameter in zip(self.weights, self.probes.parameters(), strict=True):
            parameter.copy_(stored)


# Vectors


def moments(
    source: Activations, layers: Sequence[str]
) -> tuple[Float[Tensor, "L 1 E"], Float[Tensor, "L 1 E"]]:
    """Mean and standard deviation of each dimension; a constant dimension gets deviation 1."""
    total = torch.zeros(())
    squares = torch.zeros(())
    count = 0

    for block in range(len(source.blocks)):
        x = source.read(block, layers)
        device = x.device
        count += x.shape[1]
        if device.type != "mps":  # which has no float64
            x = x.double()

        total = total + x.sum(1, keepdim=True).cpu()
        squares = squares + x.square().sum(1, keepdim=True).cpu()

    mean = total / count  # (L, 1, E)
    variance = (squares / count - mean.square()).clamp(min=0)
    deviation = torch.where(variance > 1e-14 * mean.square(), variance.sqrt(), 1.0)

    return mean.float().to(device), deviation.float().to(device)


def pools(source: Activations, epoch: int, width: int) -> Iterator[list[int]]:
    """All blocks in the order of the epoch, in groups that fit into a pool.

    The groups are the same whether layers are read one by one or all together.
    """
    order = np.random.default_rng((0, epoch)).permutation(len(source.blocks)).tolist()
    size = max(1, max(len(source.span(block)) for block in order))
    blocks = max(1, min(POOL, NUMBERS // (len(source.layers) * width)) // size)

    for first in range(0, len(order), blocks):
        yield order[first : first + blocks]


def read_blocks(
    source: Activations, blocks: Sequence[int], fitted: FittedProbe
) -> tuple[Tensor, Int[Tensor, "n"]]:
    """The standardised vectors of some blocks (L, n, E), and their indices among all vectors."""
    vectors = []
    indices = []
    for block in blocks:
        vectors.append(fitted.standardise(source.read(block, fitted.layers)))
        indices.append(torch.tensor(source.span(block)))

    x = torch.cat(vectors, dim=1)
    return x, torch.cat(indices).to(x.device)


def orders(seeds: Sequence[int], epoch: int, pool: int, count: int) -> Int[Tensor, "S n"]:
    """For each seed a random order of the vectors of a pool."""
    drawn = [np.random.default_rng((seed, epoch, pool)).permutation(count) for seed in seeds]
    return torch.from_numpy(np.stack(drawn))
