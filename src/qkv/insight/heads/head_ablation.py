"""Head ablation: switch off each head in turn, and measure the change in loss.

A head's output is replaced by zeros or by its mean over the data. The heads of a layer run as
copies of one batch, a head switched off in each copy, and the layers below are not computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from qkv.bootstrap import ratio_intervals
from qkv.data.batches.batch import IGNORE, Batch
from qkv.generation.generate import without_dropout
from qkv.insight.inspect.hook_checks import hook_layers, require_hook
from qkv.insight.inspect.logit_lens import makes_predictions
from qkv.insight.inspect.upper_layers import chunks_of, copies_per_pass, repeated, starting_at
from qkv.models.heads import pooled
from qkv.models.model import Model, backbone_of
from qkv.models.sites import AttentionSite, attention_sites, stack_with
from qkv.models.task_model import split_groups
from qkv.nn.hooks import CapturedValues, capture
from qkv.nn.linear.linear import linear
from qkv.training.finetune.task_objective import TaskObjective, TaskScorer
from qkv.training.objective import FeatureExtractor

AblationValue = Literal["zero", "mean"]
POSITIONS_PER_CHUNK = 512
"""Positions whose logits are computed together."""


class Head(NamedTuple):
    """The effect of switching off one head."""

    kind: str
    """self, or for a translator encoder, decoder or cross."""
    layer: int
    head: int
    change: float
    """Change in loss; above 0 the model needs the head."""
    low: float
    """Lower end of the 95% confidence interval over the texts; NaN for very few texts."""
    high: float
    """Upper end."""


@dataclass(frozen=True, eq=False)
class HeadImportance:
    """The effect of switching off each head of a model."""

    how: AblationValue
    measure: str
    """What changes: the loss in nats, or for an encoder without a loss the (cosine) distance."""
    unchanged: float
    """The measure with all heads; 0 for a distance."""
    texts: int
    targets: int
    """The number of tokens, answers or texts that the loss is averaged over."""
    change: dict[str, Float[np.ndarray, "L H"]]
    """Change by kind of attention, layer and head."""
    low: dict[str, Float[np.ndarray, "L H"]]
    high: dict[str, Float[np.ndarray, "L H"]]

    @property
    def summary(self) -> str:
        """How the changes were measured, for captions."""
        replacement = "zeros" if self.how == "zero" else "its mean over the texts"
        measure = "distance: 1 - cosine of a text's mean vector; the model has no loss"
        if self.measure == "loss":
            measure = f"loss: {self.unchanged:.4f} nats with all heads"

        return f"{measure}; a head's output is replaced by {replacement}; {self.texts:,} texts"

    def ranked(self) -> list[Head]:
        """All heads, the most important first."""
        heads = []
        for kind, changes in self.change.items():
            for (layer, head), change in np.ndenumerate(changes):
                low = float(self.low[kind][layer, head])
                high = float(self.high[kind][layer, head])
                heads.append(Head(kind, layer, head, float(change), low, high))

        return sorted(heads, key=lambda head: -head.change)


def ablate(
    model: Model,
    batches: Sequence[Batch],
    how: AblationValue = "zero",
    progress: Callable[[int, int], None] | None = None,
    *,
    seed: int = 0,
) -> HeadImportance:
    """Switch off each head of a model in turn, and measure the change in loss.

    The loss is the model's own: of the next or the masked token, or of a task model's answers. For
    an encoder without a loss the measure is 1 - cosine between the mean of its token vectors with
    and without the head.

    Args:
        model: The model.
        batches: The data, from `qkv.insight.heads.text_batches`.
        how: Replace a head's output by "zero", or by its "mean" over the data.
        progress: Called with the number of finished layers (over all batches) and of all.
        seed: The seed of the bootstrap for the confidence intervals, which are paired.

    Returns:
        The change for each head with its 95% confidence interval.

    Raises:
        ValueError: If `how` is unknown, the batches have no targets, or the model is an RNN.

    Example:
        >>> from qkv import insight, models, text
        >>> from qkv.insight.heads.text_batches import batches_from_texts
        >>> tokenizer = text.train("words", ["the cat sat on the mat"], 20)
        >>> model = models.GPT(models.GPTConfig(vocabulary=20, width=8, heads=2, depth=1))
        >>> batches = batches_from_texts(model, tokenizer, ["the cat sat", "on the mat"])
        >>> insight.ablate(model, batches).change["self"].shape
        (1, 2)
    """
    if how not in ("zero", "mean"):
        raise ValueError(f"how: expected zero or mean, not {how!r}")
    if not batches:
        raise ValueError("batches: expected one or more, not none")

    sites = attention_sites(model)
    stack_with(model, sites[0].kind)  # raises for an RNN, which has no heads

    with torch.no_grad(), without_dropout(model):
        run = AblationRun(model, sites, progress, len(batches))
        if how == "mean":
            run.means = mean_outputs(model, batches)

        for batch in batches:
            run.add_batch(batch)

    return run.result(how, seed)


class AblationRun:
    """Collects the losses of the rows with all heads and without each head."""

    def __init__(
        self,
        model: Model,
        sites: Sequence[AttentionSite],
        progress: Callable[[int, int], None] | None,
        batches: int,
    ) -> None:
        self.model = model
        self.sites = sites
        self.means: dict[tuple[str, int], Float[Tensor, "H D"]] = {}
        self.counts: list[float] = []
        self.losses: list[Float[Tensor, "B"]] = []
        self.changes: dict[str, list[Float[Tensor, "B L H"]]] = {site.kind: [] for site in sites}
        self.progress = progress
        self.done = 0
        self.total = batches * sum(site.depth for site in sites)

    def add_batch(self, on_host: Batch) -> None:
        """Measure one batch with all heads, then without each."""
        batch = on_host.to(next(self.model.parameters()).device)
        with capture(backbone_of(self.model), "*blocks.*.before") as captured:
            unchanged = row_outputs(self.model, batch)

        # In float64 on the host, since some devices lack it
        loss = row_losses(unchanged, unchanged).cpu().double()  # (B,)
        self.losses.append(loss)
        self.counts += target_counts(self.model, on_host).tolist()

        for site in self.sites:
            by_layer = []
            for layer in range(site.depth):
                mean = self.means.get((site.kind, layer))
                losses = losses_without_heads(
                    self.model, batch, site, layer, mean, captured, unchanged
                )  # (B, H)
                by_layer.append(losses.cpu().double() - loss.unsqueeze(1))
                self.done += 1
                if self.progress is not None:
                    self.progress(self.done, self.total)

            self.changes[site.kind].append(torch.stack(by_layer, dim=1))  # (B, L, H)

    def result(self, how: AblationValue, seed: int) -> HeadImportance:
        """Mean changes with their confidence intervals."""
        counts = np.array(self.counts)  # (n,)
        total = float(counts.sum())
        if not total:
            raise ValueError("batches: they have no targets")

        measure = "loss" if makes_predictions(self.model) else "distance"
        loss = float(torch.cat(self.losses).sum()) / total
        result = HeadImportance(how, measure, loss, len(counts), int(total), {}, {}, {})

        for site in self.sites:
            changes = torch.cat(self.changes[site.kind]).flatten(1).numpy()  # (n, L * H)
            low, high = ratio_intervals(changes, counts[:, None], seed=seed)
            shape = (site.depth, site.heads)
            result.change[site.kind] = (changes.sum(0) / total).reshape(shape)
            result.low[site.kind] = low.reshape(shape)
            result.high[site.kind] = high.reshape(shape)

        return result


def losses_without_heads(
    model: Model,
    batch: Batch,
    site: AttentionSite,
    layer: int,
    mean: Float[Tensor, "H D"] | None,
    captured: CapturedValues,
    unchanged: Tensor,
) -> Float[Tensor, "B H"]:
    """The loss of each row without each head of a layer.

    Several heads are switched off in one forward pass, each in its own copy of the batch.
    """
    tokens = batch.ids.numel()
    if batch.source is not None:
        tokens = max(tokens, batch.source.numel())

    copies_at_once = copies_per_pass(tokens, batch.ids.device)
    parts: list[Tensor] = []

    for heads in chunks_of(site.heads, copies_at_once):
        copies = batch.map(partial(repeated, times=len(heads)))
        hook = partial(switch_off, heads=heads, mean=mean)
        with ExitStack() as contexts:
            contexts.enter_context(
                require_hook(model, site.hook_point(layer, "heads"), hook, heads=site.heads)
            )
            if can_skip_lower_layers(model):
                contexts.enter_context(starting_at(model, site.kind, layer, captured, len(heads)))

            outputs = row_outputs(model, copies)

        losses = row_losses(outputs, repeated(unchanged, len(heads)))
        parts.append(losses.unflatten(0, (len(heads), -1)))  # (heads, B)

    return torch.cat(parts).T


def can_skip_lower_layers(model: Model) -> bool:
    """False for Transformer-XL: each of its segments has its own residual stream."""
    return not getattr(backbone_of(model).config, "memory", 0)


def switch_off(
    value: Float[Tensor, "R H T D"],
    name: str,
    *,
    heads: range,
    mean: Float[Tensor, "H D"] | None,
) -> Float[Tensor, "R H T D"]:
    """Hook: replace the output of a different head in each copy of the batch."""
    copies = value.clone().unflatten(0, (len(heads), -1))  # (heads, B, H, T, D)
    for copy, head in zip(copies, heads, strict=True):
        copy[:, head] = 0 if mean is None else mean[head]

    return copies.flatten(0, 1)


# Mean outputs of the heads


def mean_outputs(
    model: Model, batches: Sequence[Batch]
) -> dict[tuple[str, int], Float[Tensor, "H D"]]:
    """The mean output of each head over all tokens of the data, by kind and layer."""
    device = next(model.parameters()).device
    outputs: dict[tuple[str, int], Tensor] = {}
    tokens: dict[tuple[str, int], Tensor] = {}

    def add(
        value: Float[Tensor, "R H T D"], name: str, layer: int, kind: str, weight: Tensor
    ) -> None:
        """Hook: add the outputs of all tokens; the weight (R, T) of padding is 0."""
        key = (kind, layer)
        weight = weight.to(value).expand(value.shape[0], value.shape[2])
        outputs[key] = outputs.get(key, 0) + torch.einsum("rhtd,rt->hd", value, weight)
        tokens[key] = tokens.get(key, 0) + weight.sum()

    for on_host in batches:
        batch = on_host.to(device)
        with ExitStack() as hooks:
            for site in attention_sites(model):
                padding_mask = batch.padding_mask
                if site.kind == "encoder":
                    padding_mask = batch.source_padding_mask
                weight = torch.ones(1, 1)
                if padding_mask is not None:
                    weight = split_groups(padding_mask, batch.group)  # (R, T)

                hook = partial(add, kind=site.kind, weight=weight)
                hooks.enter_context(hook_layers(model, site, "heads", hook))

            row_outputs(model, batch)

    return {key: total / tokens[key] for key, total in outputs.items()}


# The measure


def row_outputs(model: Any, batch: Batch) -> Float[Tensor, "B"] | Float[Tensor, "B E"]:
    """The summed loss of each row; for an encoder without a loss the mean vector of each row."""
    if model.task is not None:
        objective = TaskObjective(model)
        scores, _ = TaskScorer(model)(batch)
        losses = []
        for row in range(batch.rows):
            losses.append(objective.answer_loss(scores[row : row + 1], batch.part(row, row + 1)))

        return torch.stack(losses)

    backbone = backbone_of(model)
    if backbone.predicts is None:
        hidden = backbone.hidden(
            batch.ids, padding_mask=batch.padding_mask, segments=batch.segments
        )  # (B, T, E)
        return pooled(hidden, "mean", batch.ids[:, 0], batch.padding_mask)

    features = FeatureExtractor(model)(batch)  # (B, N, E)
    return torch.stack(list(map(partial(token_loss, model), features, batch.targets)))


def token_loss(model: Model, features: Float[Tensor, "N E"], targets: Tensor) -> Float[Tensor, ""]:
    """The summed cross-entropy of one row, in at least float32."""
    output_layer = backbone_of(model).output_layer
    dtype = torch.promote_types(features.dtype, torch.float32)
    scored = targets != IGNORE  # (N,)
    chunks = zip(
        features[scored].split(POSITIONS_PER_CHUNK),
        targets[scored].split(POSITIONS_PER_CHUNK),
        strict=True,
    )

    loss = features.new_zeros((), dtype=dtype)
    for x, ids in chunks:
        loss += F.cross_entropy(linear(x, *output_layer).to(dtype), ids, reduction="sum")

    return loss


def row_losses(outputs: Tensor, unchanged: Tensor) -> Float[Tensor, "B"]:
    """The losses themselves, or 1 - cosine between vectors and those with all heads."""
    if outputs.dim() == 1:
        return outputs

    return 1 - F.cosine_similarity(outputs, unchanged, dim=-1)


def target_counts(model: Model, batch: Batch) -> Float[Tensor, "B"]:
    """The number of targets that each row's loss is summed over."""
    if makes_predictions(model):
        return (batch.targets != IGNORE).sum(1).double()

    return torch.ones(batch.rows, dtype=torch.float64)
