"""What a prediction owes to each token that was read: gradient times input, to set beside
attention.

Attention says where a head looked, not what came of it. The gradient of a logit by a token's
vector, times that vector, says how much of the logit hangs on it; of a linear model this is exactly
the token's share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkv.generation.generate import without_dropout
from qkv.insight.inspect.logit_lens import predicts_tokens
from qkv.insight.inspect.model_input import Reading, hidden_of, ids_of
from qkv.models import RNN, TaskModel
from qkv.models.heads import pooled
from qkv.models.registry import Model, backbone_of
from qkv.nn.hooks import add_hook

TOKENS = 2**11
"""So many tokens are read at once, with all that the way back needs."""


class Contributions(NamedTuple):
    """Gradient times input, with its sign; a row for each place that is explained."""

    text: Float[Tensor, "N T"]
    source: Float[Tensor, "N S"] | None = None
    """Of a translator."""


def attribution(
    model: Model,
    reading: Reading,
    places: Sequence[int] | None = None,
    *,
    of: Literal["text", "source"] | None = None,
) -> Float[Tensor, "N S"]:
    """|gradient x input|, each row divided by its sum: row t is why the likeliest token at place t
    is the likeliest.

    Every place is explained unless some are given. Columns are the tokens of the text; of a
    translator those of the source, unless `of` asks for the target's own. A fine-tuned model has
    one answer (of a tagger, one at each place), and each row explains that.
    """
    found = contributions(model, reading, places)
    chosen = found.text if of == "text" or (of is None and found.source is None) else found.source
    if chosen is None:
        raise ValueError("of: there is no source, for this model reads one text; expected text")

    size = chosen.abs()

    return size / size.sum(-1, keepdim=True).clamp(min=torch.finfo(size.dtype).tiny)


def contributions(
    model: Model, reading: Reading, places: Sequence[int] | None = None
) -> Contributions:
    """How the logit of each place's likeliest token hangs on each vector that the embedding made."""
    if not predicts_tokens(model) and not isinstance(model, TaskModel):
        raise ValueError(
            "attribution: this BERT is an encoder only: it says no word that could be explained"
        )

    T = len(reading.text.ids)
    asked = list(range(T)) if places is None else list(places)

    for place in asked:
        if not 0 <= place < T:
            raise ValueError(f"places: expected 0 to {T - 1}, not {place}")

    given = ids_of(model, reading)
    rows = max(1, TOKENS // sum(ids.shape[1] for name, ids in given.items() if name != "segments"))
    found: list[list[Tensor]] = []

    with (
        without_dropout(model),
        torch.backends.cudnn.flags(enabled=False),
    ):  # whose RNN knows no way back in evaluation
        for first in range(0, len(asked), rows):
            found.append(explained(model, given, torch.tensor(asked[first : first + rows])))

    joined = [torch.cat(parts).detach().float().cpu() for parts in zip(*found, strict=True)]

    return Contributions(joined[-1], joined[0] if len(joined) > 1 else None)


def explained(
    model: Model, given: dict[str, Tensor], places: Int[Tensor, "N"]
) -> list[Float[Tensor, "N _"]]:
    """As many copies of the text as places, each asked about its own: no copy has a say in
    another's gradient.
    """
    backbone: Any = backbone_of(model)
    copies = {name: ids.expand(len(places), -1) for name, ids in given.items()}

    with torch.enable_grad(), leaves(backbone) as vectors:
        hidden = hidden_of(model, copies)  # (N, T, E)
        scores = scores_at(model, hidden, places.to(hidden.device))  # (N, V)
        likeliest = scores.argmax(-1, keepdim=True).detach()
        gradients = torch.autograd.grad(scores.gather(1, likeliest).sum(), vectors)

    return [
        (gradient * vector).sum(-1) for gradient, vector in zip(gradients, vectors, strict=True)
    ]


def scores_at(
    model: Model, hidden: Float[Tensor, "N T E"], places: Int[Tensor, "N"]
) -> Float[Tensor, "N V"]:
    """What could be said at each copy's place: words, or what the head of a fine-tuned model knows."""
    if not isinstance(model, TaskModel):
        return backbone_of(model).logits(pooled(hidden, "last", places, None))

    head, T = model.config.head, hidden.shape[1]
    if head.task == "tag":
        return model.scores(hidden, places.unsqueeze(1), None, 1)[:, 0]

    asked = places.new_full((len(places), 1), T - 1 if head.pooling == "last" else 0)

    return model.scores(hidden, asked, None, 1).flatten(1)


@contextmanager
def leaves(backbone: Any) -> Iterator[list[Tensor]]:
    """What the embedding makes of each side, in the order in which they are read: the source first."""
    found: list[Tensor] = []

    def keep(value: Tensor, *_: Any) -> Tensor:
        found.append(value.detach().requires_grad_())
        return found[-1]

    with ExitStack() as listening:
        if isinstance(backbone, RNN):
            for part in (backbone.source_embedding, backbone.embedding):
                listening.callback(
                    part.register_forward_hook(lambda module, given, value: keep(value)).remove
                )
        else:
            listening.enter_context(add_hook(backbone, "*embedding.output", keep))

        yield found
