"""A probe: one matrix, or two with a ReLU between them, that reads an answer off a layer of a
frozen model.

All probes of a kind learn together: those of several layers, seeds and sets of answers are one
product of matrices. Each is alone all the same. It has its own weights, its own order of the data
and its own best moment.
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

from qkv.insight.probing.activations import Activations
from qkv.nn.config import check_at_least_one, documented

POOL = 16384
"""Vectors that are mixed with each other, from blocks of all places: so many are in memory, of all
layers together at most NUMBERS numbers, half a gigabyte."""
NUMBERS = 1 << 27
AT_ONCE = 512
"""Vectors that are answered together."""
UNKNOWN = -1
"""The number of a class that is not among those to train on: no probe can say it."""


@documented
@dataclass(frozen=True, kw_only=True)
class Learning:
    """How probes learn: AdamW on standardised vectors, the rate going down to 0."""

    hidden: int = 0
    """Width of the hidden layer; 0 for none, a linear probe."""
    batch: int = 256
    """Vectors of a step; of few vectors fewer, a thirty-second of all, but 16 at least."""
    rate: float = 2e-3
    """The first learning rate."""
    weight_decay: float = 0.01
    """A step: this times the rate."""
    epochs: int | None = None
    """Times through the vectors; unless given, as many as make 4,000 steps, at least 4 and at most
    60.
    """
    patience: int = 4
    """Epochs without a better validation loss after which a probe learns no more."""

    def __post_init__(self) -> None:
        check_at_least_one(self, "batch", "epochs", "patience")
        if self.hidden < 0:
            raise ValueError(
                f"hidden: expected 0 for a linear probe or the width of a layer, not {self.hidden}"
            )

    def batch_of(self, vectors: int) -> int:
        return min(self.batch, max(16, vectors // 32))

    def epochs_of(self, vectors: int) -> int:
        return self.epochs or min(60, max(4, math.ceil(4000 * self.batch_of(vectors) / vectors)))


class Probes(nn.Module):
    """L layers x S seeds x K sets of answers, C classes (or one number) each."""

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
        S, K, self.targets = len(seeds), targets, targets
        first, second = (
            torch.empty(S, K, width, hidden or outputs),
            torch.empty(S, K, hidden, outputs),
        )

        for number, seed in enumerate(
            seeds
        ):  # a seed's weights are the same whoever learns beside it
            generator = torch.Generator().manual_seed(seed)
            for k in range(K):
                first[number, k].uniform_(-1, 1, generator=generator).mul_(width**-0.5)
                second[number, k].uniform_(-1, 1, generator=generator).mul_(max(1, hidden) ** -0.5)

        first = first.transpose(1, 2).flatten(2)  # (S, E, K H)
        self.first = nn.Parameter(first.repeat(layers, 1, 1, 1))
        self.first_bias = nn.Parameter(torch.zeros(layers, S, 1, first.shape[-1]))
        self.second = nn.Parameter(second.repeat(layers, 1, 1, 1, 1)) if hidden else None
        self.second_bias = nn.Parameter(torch.zeros(layers, S, K, 1, outputs)) if hidden else None

    def forward(self, x: Float[Tensor, "L #S b E"]) -> Float[Tensor, "L S K b C"]:
        y = x @ self.first + self.first_bias  # (L, S, b, K H), all sets of answers side by side
        y = y.unflatten(-1, (self.targets, -1)).transpose(2, 3)  # (L, S, K, b, H)
        if self.second is None or self.second_bias is None:
            return y

        return y.relu() @ self.second + self.second_bias  # (L, S, K, b, C)


@dataclass(frozen=True, eq=False)
class Fitted:
    """Probes that have learned, and what they take vectors and numbers for."""

    layers: tuple[str, ...]
    probes: Probes
    mean: Float[Tensor, "L 1 E"]
    deviation: Float[Tensor, "L 1 E"]
    offset: float
    scale: float
    """Of numbers: what 0 and 1 stand for."""
    classes: int
    """0 where the answer is a number."""

    def standard(self, vectors: Float[Tensor, "L n E"]) -> Float[Tensor, "L n E"]:
        return (vectors - self.mean) / self.deviation

    @torch.no_grad()
    def answers(self, vectors: Float[Tensor, "L n E"]) -> Float[Tensor, "L S K n"]:
        """The likeliest class, or the number."""
        found = [
            self.probes(part.unsqueeze(1)) for part in self.standard(vectors).split(AT_ONCE, dim=1)
        ]
        if self.classes:
            return torch.cat([each.argmax(-1).float() for each in found], dim=-1)

        return torch.cat([self.offset + self.scale * each.squeeze(-1) for each in found], dim=-1)


def fit(
    training: Activations,
    validation: Activations,
    targets: Sequence[tuple[np.ndarray, np.ndarray]],
    classes: int,
    *,
    layers: Sequence[str] | None = None,
    seeds: Sequence[int] = (0,),
    learning: Learning = Learning(),  # noqa: B008 - it is frozen
    advance: Callable[[float], object] | None = None,
) -> Fitted:
    """Teach probes to give the answers of each layer's vectors. `targets` are sets of answers, each
    for the vectors to train and to validate on; `classes` is 0 for numbers. `advance` hears which
    part of the work was done."""
    layers = tuple(layers or training.layers)
    mean, deviation = moments(training, layers)
    numbers = targets[0][0].astype(np.float64)
    offset, scale = (0.0, 1.0) if classes else (float(numbers.mean()), float(numbers.std()) or 1.0)
    probes = Probes(
        len(layers), seeds, len(targets), mean.shape[-1], classes or 1, learning.hidden
    ).to(mean.device)
    fitted = Fitted(layers, probes, mean, deviation, offset, scale, classes)
    ready = [[in_units(each, fitted) for each in part] for part in zip(*targets, strict=True)]
    to_train, to_validate = (torch.stack(part).to(mean.device) for part in ready)  # (K, n) each

    optimizer = torch.optim.AdamW(
        probes.parameters(), lr=learning.rate, weight_decay=learning.weight_decay
    )
    count = to_train.shape[1]
    epochs, batch = learning.epochs_of(count), learning.batch_of(count)
    best = Best(probes, learning.patience)
    done, total = 0, epochs * count

    for epoch in range(epochs):
        for pool in pools(training, epoch, mean.shape[-1]):
            x, where = read(training, pool, fitted)  # (L, n, E), (n,)
            order = orders(seeds, epoch, pool[0], len(where)).to(x.device)  # (S, n)
            for chosen in order.split(batch, dim=1):  # (S, b)
                for group in optimizer.param_groups:
                    group["lr"] = learning.rate * (1 - done / total)

                answers = to_train[:, where[chosen]].transpose(0, 1)  # (S, K, b)
                loss = (
                    losses(probes(x[:, chosen]), answers, classes).mean(-1).sum()
                )  # (L, S, K, b): each for itself
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                done += chosen.shape[1]

            if advance is not None:
                advance(len(where) / total)

        if not best.hear(validated(validation, to_validate, fitted)):
            break

    if advance is not None:
        advance(1 - done / total)

    best.put_back()

    return fitted


def losses(
    said: Float[Tensor, "L S K b C"],
    answers: Int[Tensor, "S K b"] | Float[Tensor, "S K b"],
    classes: int,
) -> Float[Tensor, "L S K b"]:
    """Of each answer: its surprise, or the square of how far the number is off."""
    shape = said.shape[:-1]
    answers = answers.expand(shape)
    if not classes:
        return (said.squeeze(-1) - answers).square()

    said, answers = said.flatten(0, -2), answers.flatten()

    # A class that nobody taught is no class of the probe's.
    return functional.cross_entropy(said, answers, reduction="none", ignore_index=UNKNOWN).view(
        shape
    )


def in_units(answers: np.ndarray, fitted: Fitted) -> Tensor:
    if fitted.classes:
        return torch.from_numpy(answers.astype(np.int64))

    return torch.from_numpy(((answers - fitted.offset) / fitted.scale).astype(np.float32))


@torch.no_grad()
def validated(validation: Activations, answers: Tensor, fitted: Fitted) -> Float[Tensor, "L S K"]:
    """The mean loss of each probe."""
    total: Tensor = torch.zeros(())
    for block in range(len(validation.blocks)):
        x, where = read(validation, [block], fitted)
        for some, own in zip(
            x.split(AT_ONCE, dim=1), answers[:, where].split(AT_ONCE, dim=1), strict=True
        ):
            said = fitted.probes(some.unsqueeze(1))  # (L, S, K, b, C)
            own = own.expand(said.shape[1], -1, -1)  # (S, K, b)
            total = total + losses(said, own, fitted.classes).sum(-1).cpu()  # (L, S, K)

    return total / answers.shape[1]


class Best:
    """The weights of each probe at its best moment."""

    def __init__(self, probes: Probes, patience: int) -> None:
        self.probes, self.patience = probes, patience
        self.weights = [parameter.detach().clone() for parameter in probes.parameters()]
        self.loss: Tensor | None = None
        self.stale: Tensor | None = None

    def hear(self, loss: Float[Tensor, "L S K"]) -> bool:
        """Whether any probe still learns. One that was stopped stays as it was, whatever the others
        do.
        """
        if self.loss is None or self.stale is None:
            self.loss, self.stale = torch.full_like(loss, math.inf), torch.zeros_like(loss)

        better = (loss < self.loss) & (self.stale < self.patience)  # (L, S, K)
        self.loss = torch.where(better, loss, self.loss)
        self.stale = torch.where(better, 0, self.stale + 1)

        for kept, own in zip(self.weights, self.probes.parameters(), strict=True):
            if (
                own.dim() == 4
            ):  # (L, S, n, K H): the sets of answers lie side by side in the last dimension
                chosen = better.repeat_interleave(
                    own.shape[-1] // better.shape[-1], dim=-1
                ).unsqueeze(2)
            else:  # (L, S, K, n, C)
                chosen = better[..., None, None]

            kept.copy_(torch.where(chosen.to(own.device), own.detach(), kept))

        return bool((self.stale < self.patience).any())

    @torch.no_grad()
    def put_back(self) -> None:
        for kept, own in zip(self.weights, self.probes.parameters(), strict=True):
            own.copy_(kept)


# The vectors


def moments(
    source: Activations, layers: Sequence[str]
) -> tuple[Float[Tensor, "L 1 E"], Float[Tensor, "L 1 E"]]:
    """Mean and standard deviation of each number of a vector; where it never changes, 1."""
    total, squares, count = torch.zeros(()), torch.zeros(()), 0
    device = torch.device("cpu")

    for block in range(len(source.blocks)):
        x = source.read(block, layers)
        device, count = x.device, count + x.shape[1]
        if device.type != "mps":  # Apple's GPUs know nothing finer than float32
            x = x.double()

        total, squares = (
            total + x.sum(1, keepdim=True).cpu(),
            squares + x.square().sum(1, keepdim=True).cpu(),
        )

    mean = total / count  # (L, 1, E)
    variance = (squares / count - mean.square()).clamp(min=0)
    deviation = torch.where(variance > 1e-14 * mean.square(), variance.sqrt(), 1.0)

    return mean.float().to(device), deviation.float().to(device)


def pools(source: Activations, epoch: int, width: int) -> Iterator[list[int]]:
    """All blocks in the epoch's order, as many at a time as fit in a pool; the same whether layers
    come one by one or all together."""
    order = np.random.default_rng((0, epoch)).permutation(len(source.blocks)).tolist()
    size = max(1, max(len_of(source, block) for block in order))
    at_once = max(1, min(POOL, NUMBERS // (len(source.layers) * width)) // size)

    return (order[first : first + at_once] for first in range(0, len(order), at_once))


def read(
    source: Activations, blocks: Sequence[int], fitted: Fitted
) -> tuple[Tensor, Int[Tensor, "n"]]:
    """The standardised vectors of some blocks (L, n, E), and which of all vectors they are."""
    x = torch.cat([fitted.standard(source.read(block, fitted.layers)) for block in blocks], dim=1)
    where = [
        torch.arange(begin_of(source, block), begin_of(source, block) + len_of(source, block))
        for block in blocks
    ]
    return x, torch.cat(where).to(x.device)


def begin_of(source: Activations, block: int) -> int:
    return source.texts.begin(source.blocks[block].start)


def len_of(source: Activations, block: int) -> int:
    return int(source.texts.ends[source.blocks[block].stop - 1]) - begin_of(source, block)


def orders(seeds: Sequence[int], epoch: int, pool: int, count: int) -> Int[Tensor, "S n"]:
    """Each seed visits a pool in an order of its own."""
    drawn = [np.random.default_rng((seed, epoch, pool)).permutation(count) for seed in seeds]
    return torch.from_numpy(np.stack(drawn))
