"""Check that a model is what its config describes: a saved folder holds only config and weights."""

from __future__ import annotations

from dataclasses import asdict, is_dataclass
from typing import Any

from torch import nn

from qkv.models.model import Model, uncompiled
from qkv.models.registry import build
from qkv.models.without_numbers import without_numbers
from qkv.nn.linear.frozen_matrix import FrozenMatrix
from qkv.nn.linear.int8 import Int8Embedding
from qkv.nn.lora import adapted
from qkv.nn.unchanged import is_compiled, overridden, settings

ADAPTERS = "adapters"
"""The adapters of a Linear; the code that saves decides what to do with them."""
TRAINING_ONLY = ("dropout", "p", "inplace", ADAPTERS)
"""Settings that do not change a model in evaluation mode, or are checked elsewhere."""
WAY_OUT = (
    "config.json cannot describe it, so the saved model would be another one. "
    "Save model.state_dict() with torch.save and rebuild the model with your own code, "
    "or use what the config can describe"
)


def check_consistent(model: Model) -> None:
    """Raise a ValueError that names the first module that differs from `build(model.config)`.

    Compared are the classes of all modules, methods replaced on an instance, the names and shapes
    of parameters and buffers, and settings such as an activation. Hooks, adapters, int8 weights and
    compiled parts may differ.
    """
    model = uncompiled(model)
    with without_numbers():
        expected = build(model.config)

    compare("", model, expected)


def refuse_adapters(model: Model) -> None:
    for _ in adapted(model):
        raise ValueError(
            "model: it has adapters; merge_adapters(model) makes them part of it, "
            "write_adapter(model) saves them alone"
        )


def compare(path: str, actual: nn.Module, expected: nn.Module) -> None:
    """Compare a module and everything below it."""
    actual = unwrapped(actual)
    if isinstance(actual, Int8Embedding):
        return
    if type(actual) is not type(expected):
        raise ValueError(
            f"model: {path or 'it'} is a {class_name(actual)}, not a {class_name(expected)}; "
            f"{WAY_OUT}"
        )
    if methods := overridden(actual):
        raise ValueError(
            f"model: {dotted(path, methods[0])} was replaced on this instance; {WAY_OUT}"
        )

    compare_tensors(path, actual, expected)
    compare_settings(path, actual, expected)
    compare_children(path, actual, expected)


def compare_children(path: str, actual: nn.Module, expected: nn.Module) -> None:
    actual_children = children_of(actual)
    expected_children = children_of(expected)

    for name, child in actual_children.items():
        if name not in expected_children and not may_be_added(name, child):
            raise ValueError(
                f"model: {dotted(path, name)}, a {class_name(child)}, was added; {WAY_OUT}"
            )

    for name, child in expected_children.items():
        if name not in actual_children:
            raise ValueError(
                f"model: {dotted(path, name)}, a {class_name(child)}, is missing; {WAY_OUT}"
            )

        compare(dotted(path, name), actual_children[name], child)


def compare_tensors(path: str, actual: nn.Module, expected: nn.Module) -> None:
    if any(isinstance(child, FrozenMatrix) for child in actual.children()):
        return

    actual_shapes = shapes(actual)
    expected_shapes = shapes(expected)
    for name in sorted({*actual_shapes, *expected_shapes}):
        shape = actual_shapes.get(name)
        expected_shape = expected_shapes.get(name)
        if shape == expected_shape:
            continue

        if expected_shape is None:
            problem = "was added"
        elif shape is None:
            problem = "is missing"
        else:
            problem = f"is of shape {shape}, not {expected_shape}"

        raise ValueError(f"model: the tensor {dotted(path, name)} {problem}; {WAY_OUT}")


def shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a module's own parameters and buffers."""
    tensors = [
        *module.named_parameters(recurse=False, remove_duplicate=False),
        *module.named_buffers(recurse=False, remove_duplicate=False),
    ]
    return {name: tuple(tensor.shape) for name, tensor in tensors}


def compare_settings(path: str, actual: nn.Module, expected: nn.Module) -> None:
    actual_settings = settings(actual)
    for name, expected_value in settings(expected).items():
        if name in TRAINING_ONLY or name not in actual_settings:
            continue

        value = actual_settings[name]
        if without_dropout(value) != without_dropout(expected_value):
            raise ValueError(
                f"model: {dotted(path, name)} is {value!r}, "
                f"not {expected_value!r} as in the config; {WAY_OUT}"
            )


def without_dropout(value: Any) -> Any:
    """Return a config as a dict without its dropout fields; other values as they are."""
    if not is_dataclass(value) or isinstance(value, type):
        return value

    return {name: field for name, field in asdict(value).items() if "dropout" not in name}


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the module inside the wrapper of torch.compile."""
    if is_compiled(module):
        return module._modules["_orig_mod"] or module

    return module


def children_of(module: nn.Module) -> dict[str, nn.Module]:
    """Return the children by name; a child with two names is listed twice."""
    return {name: child for name, child in module._modules.items() if child is not None}


def may_be_added(name: str, child: nn.Module) -> bool:
    return name == ADAPTERS or isinstance(child, FrozenMatrix)


def class_name(module: nn.Module) -> str:
    return type(unwrapped(module)).__name__


def dotted(path: str, name: str) -> str:
    if not path:
        return name

    return f"{path}.{name}"
