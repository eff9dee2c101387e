"""Which modules still compute what their class says. Fused kernels replace only these.

A fused kernel reads a module's parameters and never calls the module. A subclass, a method replaced
on an instance or on its class, and a forward hook would be skipped silently; where there is one,
the plain path is taken.
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
"""Classes of PyTorch that the models here consist of."""
PLAIN = (int, float, str, tuple, type(None))  # a bool is an int
SAME = "_qkv_same_computation"


def fused(kind: T) -> T:
    """Class decorator: a fused kernel may replace modules of this class while `unchanged`."""
    methods: dict[str, object] = {}
    for name, value in vars(kind).items():
        if isinstance(value, FunctionType):
            methods[name] = value

    METHODS[kind] = methods
    return kind


def same_computation(function: F) -> F:
    """Mark a replaced method that gives the same numbers, such as gradient checkpointing.

    In training, those of FP8 are the same within its precision.
    """
    setattr(function, SAME, True)
    return function


def unchanged(module: nn.Module | None, *kinds: type[nn.Module]) -> bool:
    """True for a module of exactly one of these classes, with its own methods and no hooks."""
    if module is None or type(module) not in kinds:
        return False
    if any(forward_hooks(module)) or overridden(module):
        return False

    current = vars(type(module))
    for name, method in METHODS.get(type(module), {}).items():
        if current.get(name) is not method:
            return False

    return True


def all_unchanged(model: nn.Module) -> bool:
    """True if every module of a model is `unchanged`, and a class of this package or of PyTorch."""
    for module in model.modules():
        if is_compiled(module):
            continue
        if not is_known_class(type(module)) or not unchanged(module, type(module)):
            return False

    return True


def is_known_class(kind: type[nn.Module]) -> bool:
    return kind in TORCH or kind.__module__.startswith("qkv.")


def forward_hooks(*modules: nn.Module) -> list[Mapping[int, Any]]:
    """PyTorch's dictionaries of forward hooks: of these modules and of all modules."""
    hooks: list[Mapping[int, Any]] = [
        every_module._global_forward_hooks,
        every_module._global_forward_pre_hooks,
    ]
    for module in modules:
        hooks += [module._forward_hooks, module._forward_pre_hooks]

    return hooks


def overridden(module: nn.Module) -> list[str]:
    """The methods that were replaced on this instance and may compute something else."""
    names = []
    for name, value in vars(module).items():
        if not callable(value) or not callable(getattr(type(module), name, None)):
            continue
        if not computes_the_same(module, name, value):
            names.append(name)

    return names


def computes_the_same(module: nn.Module, name: str, value: Any) -> bool:
    """True for the class's own method, compiled or marked with `same_computation` or neither."""
    # What torch.compile(module.forward) wraps.
    value = getattr(value, "_torchdynamo_orig_callable", value)
    if isinstance(value, partial) and not hasattr(value, SAME):
        value = value.func

    return hasattr(value, SAME) or getattr(value, "__func__", None) is getattr(type(module), name)


def is_compiled(module: nn.Module) -> bool:
    """True for the wrapper that torch.compile puts around a module."""
    return "_orig_mod" in module._modules


def settings(module: nn.Module) -> dict[str, Any]:
    """The plain values among a module's public attributes, such as an epsilon."""
    values: dict[str, Any] = {}
    for name, value in vars(module).items():
        if name[0] == "_" or name == "training":
            continue
        if isinstance(value, PLAIN) or is_dataclass(value):
            values[name] = value

    return values


def snapshot(module: nn.Module) -> tuple[object, ...]:
    """The class and the settings of a module, to be compared with later ones."""
    values: list[object] = [type(module)]
    for name, value in settings(module).items():
        values += (name, repr(value) if is_dataclass(value) else value)

    return tuple(values)
