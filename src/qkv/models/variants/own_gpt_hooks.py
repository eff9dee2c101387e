"""Hook points in a GPT that knows nothing of them, by PyTorch's hooks on its modules.

Her forward pass stays as she wrote it. The attention weights are seen because her attention sends
them through `self.weights`, an nn.Identity; heads, queries, keys and values at its linear layers.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn

from qkv.nn.hooks import TRANSFORMER_LENS, HookPoints

PROJECTIONS = ("query", "key", "value")


def attach_hook_points(gpt: Any, head_width: int) -> None:
    """Give her GPT the hook points of the package's, as far as its modules show the values.

    Args:
        gpt: Her GPT with its blocks.
        head_width: D, the width of a head.
    """
    gpt.hooks = HookPoints("output")
    gpt.norm.register_forward_hook(partial(see_output, gpt.hooks, "output"))

    for block in gpt.blocks:
        points = HookPoints("before", "after", aliases=TRANSFORMER_LENS)
        block.hooks = points
        block.register_forward_pre_hook(partial(see_input, points, "before"))
        block.register_forward_hook(partial(see_output, points, "after"))
        attach_to_attention(getattr(block, "attention", None), head_width)
        attach_to_feed_forward(getattr(block, "feed_forward", None))


def attach_to_attention(attention: Any, head_width: int) -> None:
    """The points query, key, value, weights and heads of an attention, where it has the modules."""
    if not isinstance(attention, nn.Module):
        return

    parts: Any = attention
    names = []
    points = HookPoints(aliases=TRANSFORMER_LENS)
    for name in PROJECTIONS:
        if isinstance(getattr(attention, name, None), nn.Linear):
            names.append(name)
            projection = getattr(attention, name)
            projection.register_forward_hook(partial(see_heads_of_output, points, name, head_width))

    if isinstance(getattr(attention, "weights", None), nn.Module):
        names.append("weights")
        parts.weights.register_forward_hook(partial(see_output, points, "weights"))

    if isinstance(getattr(attention, "output", None), nn.Linear):
        names.append("heads")
        parts.output.register_forward_pre_hook(
            partial(see_heads_of_input, points, "heads", head_width)
        )

    points.names = tuple(names)
    parts.hooks = points


def attach_to_feed_forward(feed_forward: Any) -> None:
    """The point hidden, what the second layer of a feed-forward reads."""
    if not isinstance(getattr(feed_forward, "down", None), nn.Module):
        return

    points = HookPoints("hidden", aliases=TRANSFORMER_LENS)
    feed_forward.hooks = points
    feed_forward.down.register_forward_pre_hook(partial(see_input, points, "hidden"))


# PyTorch's hooks: they return a replacement, or None where no hook point is in use.


def see_output(points: HookPoints, name: str, module: nn.Module, inputs: Any, output: Any) -> Any:
    return points(name, output) if points.callbacks else None


def see_input(points: HookPoints, name: str, module: nn.Module, inputs: Any) -> Any:
    if not points.callbacks:
        return None

    value, *others = inputs
    return (points(name, value), *others)


def see_heads_of_output(
    points: HookPoints, name: str, head_width: int, module: nn.Module, inputs: Any, output: Tensor
) -> Tensor | None:
    if not points.callbacks:
        return None

    return merged(points(name, by_head(output, head_width)))


def see_heads_of_input(
    points: HookPoints, name: str, head_width: int, module: nn.Module, inputs: Any
) -> tuple[Tensor] | None:
    if not points.callbacks:
        return None

    return (merged(points(name, by_head(inputs[0], head_width))),)


def by_head(x: Tensor, head_width: int) -> Tensor:
    """From (B, T, H D) to (B, H, T, D)."""
    return x.unflatten(-1, (-1, head_width)).transpose(1, 2)


def merged(heads: Tensor) -> Tensor:
    """From (B, H, T, D) to (B, T, H D)."""
    return heads.transpose(1, 2).flatten(2)
