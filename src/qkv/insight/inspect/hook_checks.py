"""Hook points that must be there and must be reached, for models whose attention somebody wrote or
replaced.

`listen` alone hears nothing where a module never sends its value through its taps; every number is
then 0 or missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

from torch import Tensor, nn

from qkv.nn.hooks import CapturedValues, add_hook, hook_points


@contextmanager
def require_hook(
    model: nn.Module,
    point: str,
    listener: Callable[[Tensor, str], Tensor | None],
    *,
    heads: int | None = None,
) -> Iterator[None]:
    """Listen at one hook point. A ValueError if the model has no such point, if no value passes it
    while the context is open, or if a value is not (B, heads, T, S or D)."""
    module, _, name = point.rpartition(".")
    kind = type(model.get_submodule(module)).__name__
    whose = f"{module} ({kind})" if module else kind
    if point not in hook_points(model):
        raise ValueError(
            f'{whose} has no hook point "{name}", so its {name} cannot be read or changed; give the module '
            f'self.taps = HookPoints("{name}", ...) of qkv.nn.hooks, and in its forward write '
            f'{name} = self.hooks("{name}", {name})'
        )

    reached = False

    def hear(value: Tensor, name: str) -> Tensor | None:
        nonlocal reached
        if heads is not None and (value.dim() != 4 or value.shape[1] != heads):
            short = name.rpartition(".")[2]
            raise ValueError(
                f"{whose}: expected {short} of {heads} heads as the config says, (B, {heads}, T, ...), "
                f"not {tuple(value.shape)}"
            )

        reached = True
        return listener(value, name)

    with add_hook(model, point, hear):
        yield

    if not reached:
        raise ValueError(
            f'{whose} never sent its {name} through the hook point "{name}", so they cannot be read or changed; '
            f'in its forward write {name} = self.hooks("{name}", {name})'
        )


@contextmanager
def capture_required(model: nn.Module, names: Iterable[str]) -> Iterator[CapturedValues]:
    """The values at these hook points, each of which must be there and must be reached."""
    seen = CapturedValues()
    with ExitStack() as hooks:
        for name in names:
            hooks.enter_context(require_hook(model, name, seen.store))

        yield seen
