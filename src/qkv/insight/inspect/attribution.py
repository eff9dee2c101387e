"""Attribution by gradient x input: how much each input token contributes to a prediction.

Attention shows where a head reads from, not what it does with it. The gradient of a logit with
respect to a token's embedding, times that embedding, is the token's contribution to the logit; for
a linear model it is exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkv.generation.generate import without_dropout
from qkv.insight.inspect.logit_lens import makes_predictions
from qkv.insight.inspect.model_input import Reading, ids_of
from qkv.models.configs import HeadConfig
from qkv.models.heads import pooled
from qkv.models.model import Model, backbone_of

TOKENS = 2**11
"""Tokens of one forward and backward pass."""


class Contributions(NamedTuple):
    """Signed gradient x input; a row for each explained position."""

    text: Float[Tensor, "N T"]
    source: Float[Tensor, "N S"] | None = None
    """For a translator, the contributions of the source tokens."""


def attribution(
    model: Model,
    reading: Reading,
    positions: Sequence[int] | None = None,
    *,
    of: Literal["text", "source"] | None = None,
) -> Float[Tensor, "N S"]:
    """|gradient x input| for the likeliest token at each position, each row divided by its sum.

    A task model has one answer (a tagger one at each position), and each row explains that answer.

    Args:
        model: The model.
        reading: The text, from `read`.
        positions: The positions to explain; default all.
        of: The columns: the tokens of the "text", or for a translator (its default) the "source".

    Returns:
        Row n holds the share of each input token in the prediction at position n; it sums to 1.

    Raises:
        ValueError: If a position does not exist, the model has no source, or predicts nothing.

    Example:
        >>> from qkv import insight, models, text
        >>> tokenizer = text.train("words", ["the cat sat on the mat"], 20)
        >>> model = models.GPT(models.GPTConfig(vocabulary=20, width=8, heads=2, depth=1))
        >>> insight.attribution(model, insight.read(model, tokenizer, "the cat sat")).shape
        torch.Size([3, 3])
    """
    contribution = contributions(model, reading, positions)
    signed = contribution.source
    if of == "text" or (of is None and signed is None):
        signed = contribution.text
    if signed is None:
        raise ValueError("of: there is no source, for this model reads one text; expected text")

    size = signed.abs()
    return size / size.sum(-1, keepdim=True).clamp(min=torch.finfo(size.dtype).tiny)


def contributions(
    model: Model, reading: Reading, positions: Sequence[int] | None = None
) -> Contributions:
    """Contribution of each input embedding to the logit of the likeliest token at each position."""
    if not makes_predictions(model):
        raise ValueError(
            "attribution: this BERT is an encoder only: it makes no prediction to explain"
        )

    T = len(reading.text.ids)
    if positions is None:
        positions = range(T)

    for position in positions:
        if not 0 <= position < T:
            raise ValueError(f"positions: expected 0 to {T - 1}, not {position}")

    arguments = ids_of(model, reading)
    tokens_per_row = sum(ids.shape[1] for name, ids in arguments.items() if name != "segments")
    rows = max(1, TOKENS // tokens_per_row)
    chunks: list[list[Tensor]] = []

    # cuDNN has no backward pass for an RNN in evaluation mode.
    with without_dropout(model), torch.backends.cudnn.flags(enabled=False):
        for first in range(0, len(positions), rows):
            chunk = torch.tensor(list(positions[first : first + rows]))
            chunks.append(gradient_times_input(model, arguments, chunk))

    joined = [torch.cat(parts).detach().float().cpu() for parts in zip(*chunks, strict=True)]
    if len(joined) == 1:
        return Contributions(joined[0])

    return Contributions(joined[-1], joined[0])


def gradient_times_input(
    model: Model, arguments: dict[str, Tensor], positions: Int[Tensor, "N"]
) -> list[Float[Tensor, "N _"]]:
    """Gradient x input for several positions, one copy of the text for each.

    The copies are rows of a batch, so that their gradients do not mix.
    """
    backbone = backbone_of(model)
    copies = {name: ids.expand(len(positions), -1) for name, ids in arguments.items()}

    with torch.enable_grad(), embedding_leaves(backbone) as embeddings:
        hidden = backbone.hidden(**copies)  # (N, T, E)
        scores = scores_at(model, hidden, positions.to(hidden.device))  # (N, V)
        likeliest = scores.argmax(-1, keepdim=True).detach()
        gradients = torch.autograd.grad(scores.gather(1, likeliest).sum(), embeddings)

    products = []
    for gradient, embedding in zip(gradients, embeddings, strict=True):
        products.append((gradient * embedding).sum(-1))

    return products


def scores_at(
    model: Any, hidden: Float[Tensor, "N T E"], positions: Int[Tensor, "N"]
) -> Float[Tensor, "N V"]:
    """The logits at one position of each row, or the scores of a task model's head."""
    if model.task is None:
        return model.logits(pooled(hidden, "last", positions, None))
    if model.task.task != "tag":
        positions = torch.full_like(positions, answer_positions(model.task, hidden.shape[1])[0])

    return model.scores(hidden, positions.unsqueeze(1), None, 1).flatten(1)


def answer_positions(head: HeadConfig, tokens: int) -> range:
    """The positions whose vectors a task head reads: all for tags, else the first or the last."""
    if head.task == "tag":
        return range(tokens)
    if head.pooling == "last":
        return range(tokens - 1, tokens)

    return range(1)


@contextmanager
def embedding_leaves(backbone: Any) -> Iterator[list[Tensor]]:
    """Collect the embeddings of each side as leaves of the graph; the source comes first."""
    embeddings: list[Tensor] = []

    def as_leaf(module: Any, inputs: Any, value: Tensor) -> Tensor:
        embeddings.append(value.detach().requires_grad_())
        return embeddings[-1]

    with ExitStack() as hooks:
        for module in (getattr(backbone, "source_embedding", None), backbone.embedding):
            if module is not None:
                hooks.callback(module.register_forward_hook(as_leaf).remove)

        yield embeddings
