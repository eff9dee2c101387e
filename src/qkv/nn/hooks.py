"""Hook points: named places in a model whose values a function can read or replace.

A module with hook points owns a `HookPoints` and passes each value through it:
`query = self.hooks("query", query)`. A point without hooks costs one dictionary check, also under
torch.compile, which traces no hook; adding or removing one later makes it compile again. A point's
name is its path in the model:

    with capture(model, "stack.blocks.*.attention.weights") as captured:
        model(ids)
    captured["stack.blocks.3.attention.weights"]  # (B, H, T, S)

    with add_hook(model, "stack.blocks.0.attention.heads", lambda value, name: value * 0):
        model(ids)  # with the heads of the first layer switched off

Wherever a name or a pattern is given, the names of TransformerLens are accepted as well:

    module           point     alias        value
    block            before    resid_pre    (B, T, E)     residual stream before attention
    block            between   resid_mid    (B, T, E)     residual stream before the feed-forward
    block            after     resid_post   (B, T, E)     residual stream after the block
    attention        query     q            (B, H, T, D)
    attention        key       k            (B, K, S, D)
    attention        value     v            (B, K, S, D)
    attention        scores    attn_scores  (B, H, T, S)  before the softmax
    attention        weights   pattern      (B, H, T, S)  after the softmax
    attention        heads     z            (B, H, T, D)  before the output projection
    feed_forward     hidden    mlp_post     (B, T, F)     after the activation
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from functools import partial
from typing import NamedTuple

from torch import Tensor, nn

TRANSFORMER_LENS = {
    "before": "resid_pre",
    "between": "resid_mid",
    "after": "resid_post",
    "query": "q",
    "key": "k",
    "value": "v",
    "scores": "attn_scores",
    "weights": "pattern",
    "heads": "z",
    "hidden": "mlp_post",
}
"""The alias of each hook point of a Transformer block."""

PointHook = Callable[[Tensor], Tensor | None]
Hook = Callable[[Tensor, str], Tensor | None]
"""Takes a value and the point's name; returns a replacement, or None to leave the value."""


class HookPoints:
    """The hook points of one module.

    Deliberately not an nn.Module: a module call costs more than checking an empty dictionary.

    Args:
        *names: The points' names; the full name of each begins with the module's path.
        aliases: Further names of points, by their own: `TRANSFORMER_LENS`, or none.

    Example:
        >>> import torch
        >>> class Double(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.hooks = HookPoints("output")
        ...
        ...     def forward(self, x):
        ...         return self.hooks("output", 2 * x)
        >>> model = Double()
        >>> with add_hook(model, "output", lambda value, name: value + 1):
        ...     model(torch.tensor([1.0, 2.0]))
        tensor([3., 5.])
    """

    def __init__(self, *names: str, aliases: Mapping[str, str] | None = None) -> None:
        self.names = names
        self.aliases = aliases or {}
        self.callbacks: dict[str, tuple[PointHook, ...]] = {}

    def __call__(self, name: str, value: Tensor) -> Tensor:
        """The value after the hooks of this point."""
        if not self.callbacks:
            return value

        for hook in self.callbacks.get(name, ()):
            replacement = hook(value)
            if replacement is None:
                continue
            if replacement.shape != value.shape:
                raise ValueError(
                    f"{name}: a hook returned shape {tuple(replacement.shape)}, "
                    f"expected {tuple(value.shape)}"
                )

            value = replacement

        return value

    def callback(self, name: str) -> Callable[[Tensor], Tensor] | None:
        """This point as a function, or None when it has no hooks: for values made on demand."""
        return partial(self, name) if name in self.callbacks else None


class Point(NamedTuple):
    """Where a hook point is: its module's `HookPoints` and its name among them."""

    hooks: HookPoints
    name: str


def hook_points(model: nn.Module) -> dict[str, Point]:
    """All hook points of a model by their full names, in the order of its modules.

    Args:
        model: Any module; names begin at it.

    Returns:
        The `HookPoints` that owns each point, and the point's name there.

    Example:
        >>> from qkv.nn import FeedForward
        >>> list(hook_points(FeedForward(8, 32)))
        ['hidden']
    """
    points: dict[str, Point] = {}
    for path, module in model.named_modules():
        hooks = hook_points_of(module)
        if hooks is None:
            continue

        for name in hooks.names:
            points[joined(path, name)] = Point(hooks, name)

    return points


def joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def hook_points_of(part: nn.Module) -> HookPoints | None:
    """The module's own hook points, not those that a torch.compile wrapper forwards."""
    return part.__dict__.get("hooks")


def has_hooks(model: nn.Module) -> bool:
    """True if any point of any module in the model has a hook."""
    for module in model.modules():
        hooks = hook_points_of(module)
        if hooks is not None and hooks.callbacks:
            return True

    return False


def alias_of(name: str, point: Point) -> str | None:
    """The full name of a point with its alias in place of its own name."""
    alias = point.hooks.aliases.get(point.name)
    if alias is None:
        return None

    return name.removesuffix(point.name) + alias


def matching_points(model: nn.Module, pattern: str) -> dict[str, Point]:
    """The hook points whose full name, or alias, matches a pattern such as `*.pattern`.

    Raises:
        ValueError: If there is none; the message lists all points with their aliases.
    """
    points = hook_points(model)
    matches: dict[str, Point] = {}
    for name, point in points.items():
        alias = alias_of(name, point)
        if fnmatchcase(name, pattern) or (alias is not None and fnmatchcase(alias, pattern)):
            matches[name] = point

    if not matches:
        raise ValueError(
            f"no hook point of this model matches {pattern!r}; its points are: {listing(points)}"
        )

    return matches


def listing(points: Mapping[str, Point]) -> str:
    """The names of all points, layers written as *, each with its alias in brackets."""
    entries: dict[str, None] = {}
    for name, point in points.items():
        entry = re.sub(r"\.\d+\.", ".*.", name)
        alias = point.hooks.aliases.get(point.name)
        if alias is not None:
            entry += f" ({alias})"

        entries[entry] = None

    return ", ".join(entries)


@contextmanager
def add_hook(model: nn.Module, pattern: str, hook: Hook) -> Iterator[None]:
    """Call a function at every hook point that matches, while the context is open.

    Args:
        model: The model, or any part of it.
        pattern: A point's name or alias, or a pattern: `stack.blocks.*.attention.pattern`.
        hook: Called as `hook(value, name)` with the point's own name; returns a
            replacement of the same shape, or None to leave the value.

    Returns:
        A context manager that removes the hook at its end.

    Raises:
        ValueError: If no point matches.

    Example:
        >>> import torch
        >>> from qkv.nn import FeedForward
        >>> model = FeedForward(8, 32)
        >>> with add_hook(model, "mlp_post", lambda value, name: print(name, *value.shape)):
        ...     _ = model(torch.zeros(1, 3, 8))
        hidden 1 3 32
    """
    added = []
    for full_name, point in matching_points(model, pattern).items():
        added.append((point, partial(call_hook, hook, full_name)))

    for point, point_hook in added:
        callbacks = point.hooks.callbacks
        callbacks[point.name] = (*callbacks.get(point.name, ()), point_hook)

    try:
        yield
    finally:
        for point, point_hook in added:
            remove_hook(point, point_hook)


def call_hook(hook: Hook, name: str, value: Tensor) -> Tensor | None:
    return hook(value, name)


def remove_hook(point: Point, hook: PointHook) -> None:
    """Remove this very hook, and leave those that were added before or since."""
    callbacks = point.hooks.callbacks
    remaining = tuple(other for other in callbacks[point.name] if other is not hook)
    if remaining:
        callbacks[point.name] = remaining
    else:
        del callbacks[point.name]


class CapturedValues(dict[str, Tensor]):
    """The last value at each point, by its own name; aliases are understood as well.

    `every` holds all values of a point: a recurrent decoder passes its points once per token.
    """

    def __init__(self) -> None:
        super().__init__()
        self.every: dict[str, list[Tensor]] = {}

    def __missing__(self, name: str) -> Tensor:
        path, _, alias = name.rpartition(".")
        for own_name, other in TRANSFORMER_LENS.items():
            full_name = joined(path, own_name)
            if other == alias and full_name in self:
                return self[full_name]

        raise KeyError(name)

    def store(self, value: Tensor, name: str) -> None:
        """A hook that keeps the value."""
        self[name] = value
        self.every.setdefault(name, []).append(value)


@contextmanager
def capture(model: nn.Module, *patterns: str) -> Iterator[CapturedValues]:
    """Collect the values at all matching hook points, with their gradient history.

    Args:
        model: The model, or any part of it.
        *patterns: Names, aliases or patterns, as for `add_hook`.

    Returns:
        A context manager that gives a dictionary from the points' names to their last values.

    Raises:
        ValueError: If a pattern matches no point.

    Example:
        >>> import torch
        >>> from qkv.nn import MultiHeadAttention
        >>> attention = MultiHeadAttention(8, 2)
        >>> with capture(attention, "pattern") as captured:
        ...     _ = attention(torch.zeros(1, 3, 8))
        >>> captured["weights"].shape
        torch.Size([1, 2, 3, 3])
    """
    captured = CapturedValues()
    with ExitStack() as hooks:
        for pattern in patterns:
            hooks.enter_context(add_hook(model, pattern, captured.store))

        yield captured
