"""What one head changes in a prediction: the logit lens before it, and after it alone was added."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from qkv.generation.fill import Guess
from qkv.insight.inspect.logit_lens import POSITIONS_PER_CHUNK, top_guesses
from qkv.insight.inspect.model_input import readable_token
from qkv.models.model import Model, backbone_of
from qkv.models.sites import AttentionSite, output_stack, predicts_tokens
from qkv.text.tokenizer import Tokenizer

TOP = 5


class ProbabilityChange(NamedTuple):
    """The probability of one token before and after a change."""

    text: str
    id: int
    before: float
    after: float


class HeadLens(NamedTuple):
    """The likeliest tokens at each position before and after one head, and what changed most."""

    before: list[list[Guess]]
    after: list[list[Guess]]
    changed: list[list[ProbabilityChange]]


class LensOfHead:
    """The logit lens around the heads of one attention layer.

    The final norm and the output layer read the residual stream x, and then x plus what one head
    writes. Where a block norms after its addition, that norm is applied to both, so that nothing
    but the head differs.
    """

    def __init__(
        self, model: Model, tokenizer: Tokenizer, site: AttentionSite, layer: int, x: Tensor
    ) -> None:
        self.backbone = backbone_of(model)
        self.name = partial(readable_token, tokenizer)
        self.vocabulary = min(tokenizer.vocabulary, self.backbone.config.vocabulary)
        self.norms = [norm_after(model, site, layer), model.stacks[site.stack].norm]
        self.x = x  # (T, E)
        self.before = self.probability(x)

    def probability(self, x: Float[Tensor, "T E"]) -> Float[Tensor, "T V"]:
        for norm in self.norms:
            if norm is not None:
                x = norm(x)

        return self.backbone.logits(x).float().softmax(-1)[:, : self.vocabulary]

    def around(self, written: Float[Tensor, "H T E"]) -> list[HeadLens]:
        """The lens before and after each of some heads that write this."""
        before = top_guesses(self.before, TOP, self.name)
        lenses = []
        # Several heads at once, for each pass reads the whole output layer.
        for heads in written.split(max(1, POSITIONS_PER_CHUNK // len(self.x))):
            probability = self.probability((self.x + heads).flatten(0, 1))  # (h T, V)
            for after in probability.split(len(self.x)):
                changed = largest_changes(self.before, after, TOP, self.name)
                lenses.append(HeadLens(before, top_guesses(after, TOP, self.name), changed))

        return lenses


def has_lens(model: Model, site: AttentionSite) -> bool:
    """Whether the residual stream at this attention leads to a prediction of tokens."""
    named = output_stack(model)
    return predicts_tokens(model) and named is not None and named[0] == site.stack


def norm_after(model: Model, site: AttentionSite, layer: int) -> nn.Module | None:
    """The norm of a block that norms the sum of the residual stream and its attention."""
    if norm_placement(model) != "after":
        return None

    block: Any = model.stacks[site.stack].blocks[layer]
    if site.kind == "cross":
        return block.cross_attention_residual.norm

    return block.attention_residual.norm


def norm_placement(model: Model) -> str:
    """Whether the blocks norm before attention or after the addition."""
    return getattr(backbone_of(model).config, "norm_placement", "before")


def largest_changes(
    before: Float[Tensor, "N V"], after: Float[Tensor, "N V"], top: int, name: Any
) -> list[list[ProbabilityChange]]:
    """The tokens of each row whose probability changed most, the largest change first."""
    change = (after - before).abs()
    ids = change.topk(min(top, change.shape[1])).indices  # (N, top)
    columns = (ids, before.gather(1, ids), after.gather(1, ids))
    result = []
    for rows in zip(*map(Tensor.tolist, columns), strict=True):
        cells = zip(*rows, strict=True)
        result.append([ProbabilityChange(name(id), id, p, q) for id, p, q in cells])

    return result
