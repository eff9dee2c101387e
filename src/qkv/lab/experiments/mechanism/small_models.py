"""Small models of the experiments on the mechanism, and the tasks that they learn."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from qkv.data.embedded.synthetic_batches import reverse_batch
from qkv.lab.experiment import Cell
from qkv.lab.fit import accuracy, fit
from qkv.models import Model, Transformer, TransformerConfig
from qkv.nn.hooks import add_hook

REVERSE_VOCABULARY = 20
REVERSE_ROWS = 32
WORDS = ["the", "is", "behind", "who", "big", "saw", "dog", "cat"]
NOUNS = torch.arange(6, 18)
"""The ids of nouns: dog, cat and ten more."""
Surgery = Callable[[Any], AbstractContextManager[None]]


def softmax_derivative(score: Callable[..., Tensor], dimension: int, seed: int) -> float:
    """Mean p (1 - p) of random queries over 16 random keys, whose numbers have variance 1."""
    random = torch.Generator().manual_seed(seed)
    query = torch.randn(64, dimension, generator=random)
    key = torch.randn(16, dimension, generator=random)
    weights = score(query, key).softmax(-1)  # (64, 16)
    return float((weights * (1 - weights)).mean())


def learn_reversal(
    cell: Cell, head_width: int, rate: float, surgery: Surgery
) -> tuple[float, float]:
    """Train a Transformer with one head to reverse random tokens.

    Args:
        cell: The seed, the device and the sizes: width, length and steps.
        head_width: Numbers in a head, d.
        rate: The highest learning rate.
        surgery: What is changed in the model, as a context.

    Returns:
        The accuracy in new sequences, and the norm of the first gradient of W_q and W_k.
    """
    size = cell.size
    torch.manual_seed(cell.seed)
    config = TransformerConfig(
        vocabulary=REVERSE_VOCABULARY,
        width=size.width,
        depth=1,
        heads=1,
        head_width=head_width,
        hidden=2 * size.width,
        norm_placement="before",
        dropout=0.0,
    )
    model = Transformer(config).to(cell.device)
    sizes = (size.length, REVERSE_VOCABULARY)
    test = reverse_batch(cell.seed, 0, 256, *sizes, split="test").to(cell.device)

    with surgery(model):
        logits = model(test.source, test.ids)  # (B, T, V)
        cross_entropy(logits.flatten(0, 1), test.targets.flatten()).backward()
        first: Any = model.encoder.blocks[0]
        rows = first.attention.qkv.weight.grad[: 2 * head_width]  # W_q and W_k
        gradient = float(rows.norm())
        model.zero_grad()

        fit(
            model,
            lambda step: reverse_batch(cell.seed, step, REVERSE_ROWS, *sizes),
            size.steps,
            rate=rate,
            seed=cell.seed,
        )
        with torch.no_grad():
            return accuracy(model(test.source, test.ids), test.targets), gradient


# Sentences of words as ids


def ids_of(sentence: str) -> Int[Tensor, "1 T"]:
    """The ids of a sentence."""
    return torch.tensor([[WORDS.index(word) for word in sentence.split()]])


def behind(pairs: Int[Tensor, "B 2"]) -> Int[Tensor, "B 7"]:
    """The ids of "the NOUN is behind the NOUN who"; the answer is the first noun."""
    ids = ids_of("the dog is behind the cat who").repeat(len(pairs), 1)
    ids[:, [1, 5]] = pairs
    return ids


class BehindTask:
    """Who is behind whom? Pairs of nouns in both orders, some of them for the test only.

    Args:
        seed: Seed of the batches and of the split.
    """

    def __init__(self, seed: int) -> None:
        self.random = torch.Generator().manual_seed(seed)
        pairs = torch.combinations(NOUNS)
        pairs = pairs[torch.randperm(len(pairs), generator=self.random)]  # (66, 2)
        self.train = pairs[16:]
        self.test = torch.cat([pairs[:16], pairs[:16].flip(1)])  # (32, 2)

    def batch(self, step: int) -> Int[Tensor, "64 2"]:
        """Random pairs, each in both orders; the batches of a run are drawn one after the other."""
        drawn = self.train[torch.randint(len(self.train), (32,), generator=self.random)]
        return torch.cat([drawn, drawn.flip(1)])


def answer_logits(model: Model, pairs: Int[Tensor, "B 2"]) -> Float[Tensor, "B V"]:
    """The logits after "who", on the model's device."""
    device = next(model.parameters()).device
    return model(behind(pairs).to(device))[:, -1]


def answer_error(
    logits: Float[Tensor, "B V"], pairs: Int[Tensor, "B 2"], squared: bool = False
) -> Float[Tensor, ""]:
    """The cross-entropy of the answers, or the squared error of their probabilities."""
    answers = pairs[:, 0].to(logits.device)
    if not squared:
        return cross_entropy(logits, answers)

    right = one_hot(answers, logits.shape[-1])  # (B, V)
    return (logits.softmax(-1) - right).square().sum(-1).mean()


def shuffled_vectors(
    model: Model, seed: int, device: torch.device
) -> tuple[Float[Tensor, "1 T E"], Float[Tensor, "1 T E"]]:
    """The vectors of shuffled tokens, and the vectors of the same tokens, shuffled afterwards."""
    ids = behind(torch.tensor([[6, 7]])).to(device)
    order = torch.randperm(ids.shape[1], generator=torch.Generator().manual_seed(seed)).to(device)
    return model.hidden(ids[:, order]), model.hidden(ids)[:, order]


def weight_gap(model: Model, device: torch.device) -> float:
    """How much the weights of dog on the two words "big" differ, at most over all heads."""
    weights: list[Tensor] = []
    with torch.no_grad(), add_hook(model, "*weights", lambda value, name: weights.append(value)):
        model(ids_of("the big dog saw the big cat").to(device))

    dog = torch.cat(weights)[:, :, 2]  # (L, H, S)
    return float((dog[..., 1] - dog[..., 5]).abs().max())
