"""Record what attention layers do in one forward pass: from their queries to their output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from qkv.insight.inspect.capture import visible
from qkv.insight.inspect.hook_checks import capture_required
from qkv.insight.walk.head_equation import Projected
from qkv.models.model import Model
from qkv.models.sites import AttentionSite, attention_sites
from qkv.nn.hooks import CapturedValues, add_hook, hook_points

PROJECTIONS = ("query", "key", "value")


class AttentionRecord(NamedTuple):
    """What one attention layer did with one text."""

    projected: Projected
    scores: Float[Tensor, "H T S"] | None
    """After the mask; None for a student's own GPT, which has no such hook point."""
    weights: Float[Tensor, "H T S"]
    output: Float[Tensor, "H T X"]
    """Of each head, before the output projection; the context vector of an RNN."""
    before: Float[Tensor, "T E"] | None
    """The residual stream before this attention; None for an RNN."""


Records = dict[tuple[str, int], AttentionRecord]
"""By kind of attention and layer."""


class AttentionRecorder:
    """Collects the values at the hook points of one attention layer."""

    def __init__(self, model: Model, site: AttentionSite, layer: int) -> None:
        self.model = model
        self.site = site
        self.layer = layer
        self.captured = CapturedValues()
        self.residual: list[Tensor] = []

    @property
    def points(self) -> dict[str, str]:
        """The hook points that must be reached, by their short names."""
        site = self.site
        names = [*PROJECTIONS, "weights", "heads" if site.point else "context"]
        if site.hook_point(self.layer, "scores") in hook_points(self.model):
            names.append("scores")

        return {name: site.hook_point(self.layer, name) for name in names}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the forward pass that runs while the context is open."""
        with ExitStack() as hooks:
            self.captured = hooks.enter_context(capture_required(self.model, self.points.values()))
            hooks.enter_context(seeing_residual(self.model, self.site, self.layer, self.residual))
            yield

    def record(self) -> AttentionRecord:
        """The record after the forward pass."""
        values = {}
        for name, point in self.points.items():
            values[name] = self.of_text(name, point)

        scores = values.get("scores")
        output = values["heads" if self.site.point else "context"]
        before = self.residual[-1][0] if self.residual else None
        projected = Projected(*(values[name] for name in PROJECTIONS))

        return AttentionRecord(projected, scores, values["weights"], output, before)

    def of_text(self, name: str, point: str) -> Tensor:
        """The value at a hook point for the one text, (heads, T or S, ...)."""
        if self.site.point:
            return self.captured[point][0]
        if name in ("key", "value"):
            return self.captured[point]  # (1, S, E)

        # An RNN attends once for each target token; its vectors have no dimension of heads.
        steps = self.captured.every[point]
        if name in ("scores", "weights"):
            return torch.cat(steps, dim=2)[0]  # (1, T, S)

        return torch.cat(steps, dim=1)  # (1, T, E)


@contextmanager
def seeing_residual(
    model: Model, site: AttentionSite, layer: int, seen: list[Tensor]
) -> Iterator[None]:
    """Append the residual stream before an attention to `seen`, where the model has one."""
    if not site.point:
        yield
        return

    path = site.point.format(layer).rpartition(".")[0]
    before = f"{path}.before"
    if site.kind != "cross" and before in hook_points(model):
        with add_hook(model, before, lambda value, name: seen.append(value)):
            yield
        return

    # Cross-attention follows self-attention inside a block, where there is no hook point.
    block: Any = model.get_submodule(path)
    reader = block.cross_attention_residual if site.kind == "cross" else block
    handle = reader.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    try:
        yield
    finally:
        handle.remove()


def record_attention(
    model: Model, wanted: Iterable[tuple[AttentionSite, int]], run: Callable[[], Any]
) -> Records:
    """Run a forward pass, and record attention layers.

    Args:
        model: The model.
        wanted: The kind of attention and the layer of each.
        run: The forward pass over one text.

    Raises:
        ValueError: If an attention of a user's own has no such hook points, or does not use them.
    """
    recorders = {}
    for site, layer in wanted:
        recorders[site.kind, layer] = AttentionRecorder(model, site, layer)

    with ExitStack() as hooks:
        for recorder in recorders.values():
            hooks.enter_context(recorder.recording())

        run()

    return {name: recorder.record() for name, recorder in recorders.items()}


def seen_keys(
    model: Model,
    site: AttentionSite,
    scores: Float[Tensor, "T S"] | None,
    weights: Float[Tensor, "T S"],
) -> Bool[Tensor, "T S"]:
    """Which keys each query of a head may see: by its scores, or else by the model's mask."""
    if scores is not None:
        return ~scores.isneginf()

    T, S = weights.shape
    allowed = visible(model, site.kind, torch.arange(S - T, S), S)
    return allowed.to(weights.device)


def site_named(model: Model, kind: str | None) -> AttentionSite:
    """The attention site of this kind; by default cross-attention, or the only one.

    Raises:
        ValueError: If the model has no attention, or none of this kind.
    """
    sites = {site.kind: site for site in attention_sites(model)}
    if kind is None:
        return sites.get("cross", next(iter(sites.values())))
    if kind not in sites:
        raise ValueError(f"kind: this model has {', '.join(sites)}, not {kind}")

    return sites[kind]
