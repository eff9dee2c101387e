"""Where a model attends: its attention sites, their stacks and their masks."""

from __future__ import annotations

from typing import Any, NamedTuple

from qkv.models.model import Model, backbone_of
from qkv.nn.attention.mask import Mask


class AttentionSite(NamedTuple):
    """One kind of attention in all layers of a stack."""

    kind: str
    """self, or in an encoder-decoder encoder, decoder or cross."""
    stack: str
    """Name of the stack in the model; empty for an RNN, which attends once per target token."""
    point: str
    """Name of the attention module with {} for the layer: stack.blocks.{}.attention"""
    depth: int
    heads: int

    def hook_point(self, layer: int, name: str) -> str:
        """The name of a hook point, such as stack.blocks.3.attention.weights"""
        if not self.point:
            return name

        return f"{self.point.format(layer)}.{name}"


def attention_sites(model: Model) -> list[AttentionSite]:
    """The attention sites of a model, in the order of its modules.

    Raises:
        ValueError: If the model has no attention.
    """
    if not model.stacks:
        if not attends(model):
            raise ValueError("attention: this RNN has none, so no token attends to any other")

        return [AttentionSite("cross", "", "", 1, 1)]

    heads = backbone_of(model).config.heads
    sites = []
    for name, stack in model.stacks.items():
        kind = name if model.has_source else "self"
        depth = len(stack.blocks)
        point = f"{name}.blocks.{{}}"
        sites.append(AttentionSite(kind, name, f"{point}.attention", depth, heads))
        if getattr(stack, "cross", False):  # a user's own stack knows nothing of it
            sites.append(AttentionSite("cross", name, f"{point}.cross_attention", depth, heads))

    return sites


def attends(model: Model) -> bool:
    """Whether the model attends at all: an RNN may not."""
    if model.stacks:
        return True

    return getattr(backbone_of(model).config, "attention", "none") != "none"


def stack_with(model: Model, kind: str) -> Any:
    """The stack of blocks with this kind of attention: self, encoder, decoder or cross."""
    if not model.stacks:
        raise ValueError("model: an RNN has one attention and no layers of heads; expected another")
    if kind == "encoder":
        return model.stacks["encoder"]

    return list(model.stacks.values())[-1]


def output_stack(model: Model) -> tuple[str, Any] | None:
    """The stack that leads to the output, with its name in the model; None for an RNN."""
    if not model.stacks:
        return None

    return list(model.stacks.items())[-1]


def input_stack(model: Model) -> tuple[str, Any] | None:
    """The stack that reads the text or the source, with its name; None for an RNN."""
    if not model.stacks:
        return None

    return next(iter(model.stacks.items()))


def first_residual(model: Model) -> str:
    """The hook point of the residual stream before the first block that leads to the output."""
    named_stack = output_stack(model)
    if named_stack is None:
        raise ValueError("layers: an RNN has no residual stream")

    return f"{named_stack[0]}.blocks.0.before"


def mask_of(model: Model, kind: str) -> Mask | None:
    """The mask of the model's self-attention without padding: of kind self, encoder or decoder."""
    if not model.stacks:
        raise ValueError("model: an RNN has no self-attention; expected another model")

    backbone = backbone_of(model)
    if not backbone.has_source:
        return backbone.mask(None, None)

    return backbone.mask(causal=kind == "decoder")


def predicts_tokens(model: Model) -> bool:
    """Whether the model, or the backbone of a task model, has an output layer for tokens."""
    return backbone_of(model).predicts is not None
