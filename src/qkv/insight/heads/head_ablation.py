"""Which heads matter: each is put out in turn, by zeros or by its mean, and the loss is measured
again.

Heads of one layer are put out in the rows of one batch, a head in each copy of it; and what lies
below that layer is not computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from qkv.bootstrap import ratio_intervals
from qkv.data.batches.batch import IGNORE, Batch
from qkv.generation.generate import without_dropout
from qkv.insight.inspect.upper_layers import copies_per_pass as at_once, repeated, stack_with, starting_at
from qkv.insight.inspect.capture import AttentionSite, attention_sites
from qkv.insight.inspect.hook_checks import require_hook
from qkv.insight.inspect.logit_lens import predicts_tokens
from qkv.models import BERT, GPT, TaskModel
from qkv.models.heads import pooled
from qkv.models.registry import Model, backbone_of
from qkv.models.task_model import apart
from qkv.nn.hooks import CapturedValues, capture
from qkv.nn.linear.linear import linear
from qkv.training.finetune.task_objective import TaskObjective, TaskScorer
from qkv.training.objective import FeatureExtractor

How = Literal["zero", "mean"]
PLACES = 512  # whose logits are made at once


class Head(NamedTuple):
    """What putting out one head does."""

    kind: str
    """self, or of a translator encoder, decoder, cross."""
    layer: int
    head: int
    change: float
    """Of the loss; above 0 the model misses the head."""
    low: float
    high: float
    """Between these the change lies 95 times in 100, the texts being only a sample; NaN of very few
    texts.
    """


@dataclass(frozen=True, eq=False)
class Importance:
    how: How
    measure: str
    """What the change is of: loss, in nats; or distance, of an encoder that says nothing."""
    unchanged: float
    """With all heads; the distance is then 0."""
    texts: int
    asked: int
    """Words, answers or texts that the loss is the mean of."""
    change: dict[str, Float[np.ndarray, "L H"]]
    """By kind of attention, layer and head."""
    low: dict[str, Float[np.ndarray, "L H"]]
    high: dict[str, Float[np.ndarray, "L H"]]

    def ranked(self) -> list[Head]:
        """The head that is missed most comes first."""
        found = []
        for kind, changes in self.change.items():
            for (layer, head), each in np.ndenumerate(changes):
                low, high = (float(end[kind][layer, head]) for end in (self.low, self.high))
                found.append(Head(kind, layer, head, float(each), low, high))

        return sorted(found, key=lambda each: -each.change)


def ablate(
    model: Model,
    batches: Sequence[Batch],
    how: How = "zero",
    progress: Callable[[int, int], None] | None = None,
    *,
    seed: int = 0,
) -> Importance:
    """The change of the loss when a head's output is zeros, or its mean over the data, for every
    head.

    The loss is the model's own: of the next or the masked word, or of a fine-tuned model's answers.
    An encoder that says nothing has none: of it the change is 1 - cosine between the mean of its
    words' vectors and what it was. Intervals are paired, and the seed draws for them alone.
    """
    if how not in ("zero", "mean"):
        raise ValueError(f"how: expected zero or mean, not {how!r}")
    if not batches:
        raise ValueError("batches: expected one or more, not none")

    target_positions = attention_sites(model)
    stack_with(model, target_positions[0].kind)  # says now that there are no heads
    device = next(model.parameters()).device
    counts: list[float] = []
    before: list[Float[Tensor, "B"]] = []
    changes: dict[str, list[Float[Tensor, "B L H"]]] = {
        place.kind: [] for place in target_positions
    }
    done, total = 0, len(batches) * sum(place.depth for place in target_positions)

    with torch.no_grad(), without_dropout(model):
        means = means_of(model, batches) if how == "mean" else {}
        for on_host in batches:
            batch = on_host.to(device)
            with capture(backbone_of(model), "*blocks.*.before") as seen:
                unchanged = said(model, batch)

            own = (
                losses(unchanged, unchanged).cpu().double()
            )  # (B,); not on the device, which may know nothing finer
            before.append(own)
            counts += asked_in(model, on_host).tolist()
            for place in target_positions:
                by_layer = []
                for layer in range(place.depth):
                    instead = means.get((place.kind, layer))
                    found = without_each(
                        model, batch, place, layer, instead, seen, unchanged
                    )  # (B, H)
                    by_layer.append(found.cpu().double() - own.unsqueeze(1))
                    done += 1
                    if progress is not None:
                        progress(done, total)

                changes[place.kind].append(torch.stack(by_layer, dim=1))  # (B, L, H)

    asked = np.array(counts)  # (n,)
    if not asked.sum():
        raise ValueError("batches: nothing is asked in them")

    mean, low, high = {}, {}, {}

    for place in target_positions:
        each = torch.cat(changes[place.kind]).flatten(1).numpy()  # (n, L * H)
        ends = ratio_intervals(each, asked[:, None], seed=seed)
        shape = (place.depth, place.heads)
        mean[place.kind] = (each.sum(0) / asked.sum()).reshape(shape)
        low[place.kind], high[place.kind] = (end.reshape(shape) for end in ends)

    measure = "loss" if predicts_tokens(model) or isinstance(model, TaskModel) else "distance"
    loss = float(torch.cat(before).sum()) / float(asked.sum())

    return Importance(how, measure, loss, len(asked), int(asked.sum()), mean, low, high)


def without_each(
    model: Model,
    batch: Batch,
    place: AttentionSite,
    layer: int,
    instead: Float[Tensor, "H D"] | None,
    seen: CapturedValues,
    unchanged: Tensor,
) -> Float[Tensor, "B H"]:
    """The loss of each row without each head of a layer: as many copies of the batch as heads, as
    memory allows.
    """
    tokens = max(batch.ids.numel(), 0 if batch.source is None else batch.source.numel())
    most = at_once(tokens, batch.ids.device)
    found: list[Tensor] = []

    for first in range(0, place.heads, most):
        heads = range(first, min(first + most, place.heads))
        copies = batch.map(partial(repeated, times=len(heads)))
        listener = partial(put_out, heads=heads, instead=instead)
        with require_hook(model, place.hook_point(layer, "heads"), listener, heads=place.heads):
            if skips(model):
                with starting_at(model, place.kind, layer, seen, len(heads)):
                    each = said(model, copies)
            else:
                each = said(model, copies)

        right = repeated(unchanged, len(heads))
        found.append(losses(each, right).unflatten(0, (len(heads), -1)))  # (heads, B)

    return torch.cat(found).T


def skips(model: Model) -> bool:
    """Transformer-XL reads in segments, each with a stream of its own: nothing is left out there."""
    backbone = backbone_of(model)
    return not (isinstance(backbone, GPT) and backbone.config.memory)


def put_out(
    value: Float[Tensor, "R H T D"],
    name: str,
    *,
    heads: range,
    instead: Float[Tensor, "H D"] | None,
) -> Float[Tensor, "R H T D"]:
    """In each copy of the batch another head."""
    copies = value.clone().unflatten(0, (len(heads), -1))  # (heads, B, H, T, D)
    for copy, head in zip(copies, heads, strict=True):
        copy[:, head] = 0 if instead is None else instead[head]

    return copies.flatten(0, 1)


def means_of(model: Model, batches: Sequence[Batch]) -> dict[tuple[str, int], Float[Tensor, "H D"]]:
    """What each head says on average, over all words of the data; padding is no word."""
    sums: dict[tuple[str, int], Tensor] = {}
    words: dict[tuple[str, int], Tensor] = {}

    def add(
        value: Float[Tensor, "R H T D"],
        name: str,
        key: tuple[str, int],
        padding_mask: Bool[Tensor, "R T"] | None,
    ) -> None:
        kept = (
            value.new_ones(value.shape[0], value.shape[2])
            if padding_mask is None
            else padding_mask.to(value)
        )
        sums[key] = sums.get(key, 0) + torch.einsum("rhtd,rt->hd", value, kept)
        words[key] = words.get(key, 0) + kept.sum()

    for on_host in batches:
        batch = on_host.to(next(model.parameters()).device)
        with ExitStack() as listening:
            for place in attention_sites(model):
                padding_mask = (
                    batch.source_padding_mask if place.kind == "encoder" else batch.padding_mask
                )
                padding_mask = (
                    None if padding_mask is None else apart(padding_mask, batch.group)
                )  # (R, T)
                for layer in range(place.depth):
                    hear = partial(add, key=(place.kind, layer), padding_mask=padding_mask)
                    point = place.hook_point(layer, "heads")
                    listening.enter_context(require_hook(model, point, hear, heads=place.heads))

            said(model, batch)

    return {key: total / words[key] for key, total in sums.items()}


# What is measured


def said(model: Model, batch: Batch) -> Float[Tensor, "B"] | Float[Tensor, "B E"]:
    """The sum of each row's losses; of an encoder that says nothing, the vector of each row."""
    if isinstance(model, TaskModel):
        objective = TaskObjective(model)
        scores, _ = TaskScorer(model)(batch)
        rows = [
            objective.answer_loss(scores[row : row + 1], batch.part(row, row + 1))
            for row in range(batch.rows)
        ]
        return torch.stack(rows)

    backbone = backbone_of(model)
    if isinstance(backbone, BERT) and not predicts_tokens(model):
        hidden = backbone.hidden(
            batch.ids, padding_mask=batch.padding_mask, segments=batch.segments
        )  # (B, T, E)
        return pooled(hidden, "mean", batch.ids[:, 0], batch.padding_mask)

    features = FeatureExtractor(model)(batch)  # (B, N, E)
    finer = torch.promote_types(features.dtype, torch.float32)
    rows = []

    for row, targets in zip(features, batch.targets, strict=True):
        asked = targets != IGNORE  # (N,)
        parts = zip(row[asked].split(PLACES), targets[asked].split(PLACES), strict=True)
        each = [
            F.cross_entropy(linear(x, *backbone.output_layer).to(finer), words, reduction="sum")
            for x, words in parts
        ]
        rows.append(torch.stack(each).sum() if each else row.new_zeros(()))

    return torch.stack(rows)


def losses(found: Tensor, unchanged: Tensor) -> Float[Tensor, "B"]:
    return found if found.dim() == 1 else 1 - F.cosine_similarity(found, unchanged, dim=-1)


def asked_in(model: Model, batch: Batch) -> Float[Tensor, "B"]:
    """What each row's loss is a sum over."""
    if predicts_tokens(model) or isinstance(model, TaskModel):
        return (batch.targets != IGNORE).sum(1).double()

    return torch.ones(batch.rows, dtype=torch.float64)
