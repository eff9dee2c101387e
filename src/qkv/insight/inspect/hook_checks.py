"""Hooks that must exist and must be reached, for models with custom or replaced attention.

`qkv.nn.hooks.add_hook` alone captures nothing if a module never sends its value through its hook
point; every statistic would then be 0 or missing without an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from torch import Tensor, nn

from qkv.models.sites import AttentionSite
from qkv.nn.hooks import CapturedValues, add_hook, hook_points


@contextmanager
def require_hook(
    model: nn.Module,
    point: str,
    hook: Callable[[Tensor, str], Tensor | None],
    *,
    heads: int | None = None,
) -> Iterator[None]:
    """Add a hook at one hook point, and check that it is called.

    Args:
        model: The model.
        point: The name of the hook point, such as stack.blocks.3.attention.weights.
        hook: Called with the value and the name of the point; may return a replacement.
        heads: If given, the value must be (B, heads, T, S or D).

    Raises:
        ValueError: If the model has no such hook point, if no value passes it while the context is
            open, or if a value has the wrong shape.
    """
    module, _, name = point.rpartition(".")
    owner = type(model.get_submodule(module)).__name__
    if module:
        owner = f"{module} ({owner})"

    if point not in hook_points(model):
        raise ValueError(
            f'{owner} has no hook point "{name}", so its {name} cannot be read or changed; give '
            f'the module self.hooks = HookPoints("{name}", ...) of qkv.nn.hooks, and in its '
            f'forward write {name} = self.hooks("{name}", {name})'
        )

    reached = False

    def checked(value: Tensor, name: str) -> Tensor | None:
        nonlocal reached
        if heads is not None and (value.dim() != 4 or value.shape[1] != heads):
            short = name.rpartition(".")[2]
            raise ValueError(
                f"{owner}: expected {short} of {heads} heads as the config says, "
                f"(B, {heads}, T, ...), not {tuple(value.shape)}"
            )

        reached = True
        return hook(value, name)

    with add_hook(model, point, checked):
        yield

    if not reached:
        raise ValueError(
            f'{owner} never sent its {name} through the hook point "{name}", so they cannot be '
            f'read or changed; in its forward or attend write {name} = self.hooks("{name}", {name})'
        )


@contextmanager
def hook_layers(
    model: nn.Module,
    site: AttentionSite,
    name: str,
    hook: Callable[..., Tensor | None],
    layers: Iterable[int] | None = None,
) -> Iterator[None]:
    """Require a hook in each layer of a site, by default in all; it also gets `layer`."""
    with ExitStack() as hooks:
        for layer in range(site.depth) if layers is None else layers:
            point = site.hook_point(layer, name)
            of_layer = partial(hook, layer=layer)
            hooks.enter_context(require_hook(model, point, of_layer, heads=site.heads))

        yield


@contextmanager
def capture_required(model: nn.Module, names: Iterable[str]) -> Iterator[CapturedValues]:
    """Capture the values at these hook points; each must exist and must be reached."""
    captured = CapturedValues()
    with ExitStack() as hooks:
        for name in names:
            hooks.enter_context(require_hook(model, name, captured.store))

        yield captured
