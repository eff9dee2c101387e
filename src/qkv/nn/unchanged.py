"""Which modules still compute what their class says. Fused kernels replace only these.

A fused kernel reads a module's parameters and never calls the module. So a subclass, a method
replaced on an instance or on its class, and a forward hook would be skipped without a word; where
there is one, the plain path is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from functools import partial
from types import FunctionType
from typing import Any, TypeVar

from torch import nn
from torch.nn.modules import module as every_module

T = TypeVar("T", bound=type[nn.Module])
F = TypeVar("F", bound=Callable[..., Any])

METHODS: dict[type[nn.Module], dict[str, object]] = {}
"""The methods of classes that fused kernels replace, as they were defined."""
TORCH = (nn.Dropout, nn.Embedding, nn.ModuleList)
"""Classes of PyTorch that the models here are made of."""
SAME = "_qkv_same_computation"


def fused(kind: T) -> T:
    """Class decorator: a fused kernel may replace modules of this class, as long as they are
    `unchanged`.
    """
    METHODS[kind] = {
        name: value for name, value in vars(kind).items() if isinstance(value, FunctionType)
    }
    return kind


def same_computation(function: F) -> F:
    """Marks what replaces a method on an instance and gives the same numbers, such as gradient
    checkpointing.
    """
    setattr(function, SAME, True)
    return function


def unchanged(module: nn.Module | None, *kinds: type[nn.Module]) -> bool:
    """True for a module of exactly one of these classes that runs the class's own methods and has
    no forward hooks.
    """
    if (
        module is None
        or type(module) not in kinds
        or any(forward_hooks(module))
        or overridden(module)
    ):
        return False

    now = vars(type(module))
    return all(now.get(name) is method for name, method in METHODS.get(type(module), {}).items())


def all_unchanged(model: nn.Module) -> bool:
    """True if every module of a model is one of ours, or of PyTorch's that ours use, and
    `unchanged`.
    """
    parts = (part for part in model.modules() if not is_compiled(part))
    return all(ours(type(part)) and unchanged(part, type(part)) for part in parts)


def ours(kind: type[nn.Module]) -> bool:
    return kind in TORCH or kind.__module__.startswith("qkv.")


def forward_hooks(*modules: nn.Module) -> list[Mapping[int, Any]]:
    """Where PyTorch keeps the forward hooks and pre-hooks of these modules and those of all
    modules; mostly empty.
    """
    mine = [
        hooks for module in modules for hooks in (module._forward_hooks, module._forward_pre_hooks)
    ]
    return [every_module._global_forward_hooks, every_module._global_forward_pre_hooks, *mine]


def overridden(module: nn.Module) -> list[str]:
    """The methods that were replaced on this very instance by something that may compute something
    else.
    """
    kind = type(module)
    return [
        name
        for name, value in vars(module).items()
        if callable(value)
        and callable(getattr(kind, name, None))
        and not computes_the_same(module, name, value)
    ]


def computes_the_same(module: nn.Module, name: str, value: Any) -> bool:
    """The class's own method, perhaps compiled or marked with `same_computation`."""
    value = getattr(
        value, "_torchdynamo_orig_callable", value
    )  # what torch.compile(module.forward) wraps
    value = value if not isinstance(value, partial) or hasattr(value, SAME) else value.func
    return hasattr(value, SAME) or getattr(value, "__func__", None) is getattr(type(module), name)


def is_compiled(module: nn.Module) -> bool:
    """True for the wrapper that torch.compile puts around a module, which is inside it as
    `_orig_mod`.
    """
    return "_orig_mod" in module._modules


def settings(module: nn.Module) -> dict[str, Any]:
    """What a module knows besides its weights: the plain values among its public attributes, such
    as an epsilon.
    """
    plain = (bool, int, float, str, tuple, type(None))
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_")
        and name != "training"
        and (isinstance(value, plain) or is_dataclass(value))
    }
