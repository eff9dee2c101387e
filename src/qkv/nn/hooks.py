"""Named points inside a model where a listener may look at a value or change it.

A part that has points of interest owns `HookPoints` and sends each value through: `query =
self.taps("query", query)`. Nobody listening costs nothing, also under torch.compile, which sees no
listener and compiles none; a listener that comes or goes later makes it compile again. A point's
name is its place in the model.

    with record(model, "stack.blocks.*.attention.weights") as seen:
        model(ids)
    seen["stack.blocks.3.attention.weights"]  # (B, H, T, S)

    with listen(model, "stack.blocks.0.attention.heads", lambda value, name: value * 0):  # the
        first layer's heads off model(ids)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from functools import partial

from torch import Tensor, nn

Hook = Callable[
    [Tensor], Tensor | None
]  # gets a value; returns what to use instead, or None to leave it


class HookPoints:
    """The named points of one part. No nn.Module: a call of one takes longer than to see that
    nobody listens.
    """

    def __init__(self, *names: str) -> None:
        self.names = names
        self.listeners: dict[str, tuple[Hook, ...]] = {}

    def __call__(self, name: str, value: Tensor) -> Tensor:
        if not self.listeners:
            return value

        for listener in self.listeners.get(name, ()):
            replaced = listener(value)
            if replaced is not None and replaced.shape != value.shape:
                raise ValueError(
                    f"{name}: a listener returned {tuple(replaced.shape)}, expected {tuple(value.shape)}"
                )

            value = value if replaced is None else replaced

        return value

    def heard(self, name: str) -> Callable[[Tensor], Tensor] | None:
        """The point as a function if someone listens there, else None: for values that exist only
        on request.
        """
        return partial(self, name) if name in self.listeners else None


def hook_points(model: nn.Module) -> dict[str, tuple[HookPoints, str]]:
    """Every named point of a model, in the order of its parts."""
    return {
        (f"{path}.{name}" if path else name): (hooks, name)
        for path, part in model.named_modules()
        if (hooks := hook_points_of(part)) is not None
        for name in hooks.names
    }


def hook_points_of(part: nn.Module) -> HookPoints | None:
    """Its own, and not those that what torch.compile returns passes on."""
    return part.__dict__.get("taps")


def has_hooks(model: nn.Module) -> bool:
    """To any point of any part."""
    return any(
        hooks is not None and hooks.listeners for hooks in map(hook_points_of, model.modules())
    )


@contextmanager
def add_hook(
    model: nn.Module, pattern: str, listener: Callable[[Tensor, str], Tensor | None]
) -> Iterator[None]:
    """While the context is open, call `listener(value, name)` at every point whose name matches the
    pattern.
    """
    known = hook_points(model)
    matching = [name for name in known if fnmatchcase(name, pattern)]
    if not matching:
        kinds = dict.fromkeys(re.sub(r"\.\d+\.", ".*.", name) for name in known)
        raise ValueError(
            f"no point of this model matches {pattern!r}; its points are: {', '.join(kinds)}"
        )

    mine = [(*known[full], partial(call, listener, full)) for full in matching]

    for hooks, name, own in mine:
        hooks.listeners[name] = (*hooks.listeners.get(name, ()), own)

    try:
        yield
    finally:
        for hooks, name, own in mine:  # whatever others did in the meantime, only what is ours goes
            left = tuple(other for other in hooks.listeners[name] if other is not own)
            if left:
                hooks.listeners[name] = left
            else:
                del hooks.listeners[name]


def call(
    listener: Callable[[Tensor, str], Tensor | None], name: str, value: Tensor
) -> Tensor | None:
    return listener(value, name)


class CapturedValues(dict[str, Tensor]):
    """The last value at each point; `every` has all of them, for a model that passes a point once a
    word.
    """

    def __init__(self) -> None:
        super().__init__()
        self.every: dict[str, list[Tensor]] = {}

    def store(self, value: Tensor, name: str) -> None:
        self[name] = value
        self.every.setdefault(name, []).append(value)


@contextmanager
def capture(model: nn.Module, *patterns: str) -> Iterator[CapturedValues]:
    """Collect the values at the matching points, with their gradients' history."""
    seen = CapturedValues()
    with ExitStack() as listening:
        for pattern in patterns:
            listening.enter_context(add_hook(model, pattern, seen.store))

        yield seen
