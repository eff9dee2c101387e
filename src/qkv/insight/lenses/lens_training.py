"""Train a tuned lens on texts: each layer's prediction is brought close to the model's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from qkv.generation.generate import without_dropout
from qkv.insight.dictionary.token_rows import token_rows
from qkv.insight.inspect.logit_lens import residuals
from qkv.insight.lenses.tuned_lens import TunedLens, last_norm, lens_logits
from qkv.models.model import Model, backbone_of
from qkv.text.tokenizer import Tokenizer

POSITIONS = 32
"""Positions of a step; each needs the logits of all layers."""
HELD_OUT = 8
"""Every eighth text is not trained on, but measured."""


class TrainedLens(NamedTuple):
    """A tuned lens, and how far each layer's prediction is from the model's."""

    lens: TunedLens
    logit_lens: Float[Tensor, "L"]
    """The mean KL divergence in nats of the logit lens: the embedding first, then each layer but
    the last."""
    tuned: Float[Tensor, "L"]
    """The same for the tuned lens, on the same texts, which it was not trained on."""


def train_lens(
    model: Model,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    steps: int = 250,
    positions: int = POSITIONS,
    learning_rate: float = 1e-3,
    seed: int = 0,
    advance: Callable[[int, int], object] = lambda *_: None,
) -> TrainedLens:
    """Train a translator for each layer; the model stays as it is.

    Args:
        model: A GPT, or a BERT that predicts tokens.
        tokenizer: Its tokenizer.
        texts: Texts like those that will be read; every eighth is held out, if there are as many.
        steps: Steps of Adam, each with some positions of one text.
        positions: The number of these positions.
        learning_rate: The step size, which falls to 0.
        seed: For the order of texts and positions; the same seed gives the same lens.
        advance: Called with the steps that are done, and with that of all.

    Returns:
        The lens, with the divergence of each layer before and after training.

    Raises:
        ValueError: If the model has no lens, there is no text, or a number is below 1.

    Example:
        >>> from qkv import insight, models, text
        >>> tokenizer = text.train("words", ["the cat sat on the mat"], 20)
        >>> model = models.GPT(models.GPTConfig(vocabulary=20, width=8, heads=2, depth=1))
        >>> trained = insight.train_lens(model, tokenizer, ["the cat sat on the mat"], steps=2)
        >>> trained.lens.matrix.shape, trained.tuned.shape
        (torch.Size([1, 8, 8]), torch.Size([1]))
    """
    for name, value in (("steps", steps), ("positions", positions)):
        if value < 1:
            raise ValueError(f"{name}: expected 1 or more, not {value}")

    lens = TunedLens.of(model)
    rows = token_rows(model, tokenizer, texts)
    held_out = rows[HELD_OUT - 1 :: HELD_OUT] or rows
    training = [row for number, row in enumerate(rows) if number % HELD_OUT != HELD_OUT - 1]
    generator = torch.Generator().manual_seed(seed)
    device = next(model.parameters()).device
    lens.to(device)
    optimiser = torch.optim.Adam(lens.parameters(), lr=learning_rate)

    with without_dropout(model), frozen(model):
        before = divergences(model, lens, held_out)
        for step in range(steps):
            for group in optimiser.param_groups:
                group["lr"] = learning_rate * (1 - step / steps)

            row = training[int(torch.randint(len(training), (), generator=generator))]
            chosen = torch.randperm(len(row), generator=generator)[:positions]
            optimiser.zero_grad()
            *layers, last = layer_vectors(model, row, chosen)
            own = own_prediction(model, last)
            for layer, vectors in enumerate(layers):
                layer_divergence(model, lens, vectors, layer, own).mean().backward()

            optimiser.step()
            advance(step + 1, steps)

        after = divergences(model, lens, held_out)

    return TrainedLens(lens.cpu(), before, after)


@contextmanager
def frozen(model: Model) -> Iterator[None]:
    """No gradients of the model's own weights are computed while the context is open."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)

    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)


@torch.no_grad()
def layer_vectors(
    model: Model, row: Sequence[int], positions: Tensor | None = None
) -> list[Float[Tensor, "T E"]]:
    """The residual stream of a text before the first block and after each."""
    device = next(model.parameters()).device
    with residuals(model) as captured:
        backbone_of(model).hidden(torch.tensor([list(row)], device=device))

    if positions is None:
        return [value[0] for value in captured.values()]

    return [value[0, positions.to(value.device)] for value in captured.values()]


@torch.no_grad()
def own_prediction(model: Model, last: Float[Tensor, "T E"]) -> Float[Tensor, "T V"]:
    """The log-probabilities of the model itself, from the residual stream after its last layer."""
    return backbone_of(model).logits(last_norm(model, last)).log_softmax(-1)


def layer_divergence(
    model: Model,
    lens: TunedLens,
    vectors: Float[Tensor, "T E"],
    layer: int,
    own: Float[Tensor, "T V"],
) -> Float[Tensor, "T"]:
    """KL(model's own prediction || prediction of a layer through the lens) at each position."""
    found = lens_logits(model, lens, vectors, layer).log_softmax(-1)
    return F.kl_div(found, own, log_target=True, reduction="none").sum(-1)


@torch.no_grad()
def divergences(model: Model, lens: TunedLens, rows: Sequence[Sequence[int]]) -> Float[Tensor, "L"]:
    """The mean divergence of each layer over all positions of some texts."""
    totals = torch.zeros(len(lens.matrix))
    count = 0
    for row in rows:
        *layers, last = layer_vectors(model, row)
        own = own_prediction(model, last)
        for layer, vectors in enumerate(layers):
            totals[layer] += float(layer_divergence(model, lens, vectors, layer, own).sum())

        count += len(row)

    return totals / count
