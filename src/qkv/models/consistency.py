"""Whether a model is what its config describes: a saved folder holds the config and the weights,
and nothing else.
"""

from __future__ import annotations

from dataclasses import asdict, is_dataclass
from typing import Any

import torch
from torch import nn

from qkv.models.registry import Model, build, uncompiled
from qkv.nn.linear.int8 import Int8Embedding, Int8Matrix
from qkv.nn.lora import adapted
from qkv.nn.unchanged import is_compiled, overridden, settings

ADAPTERS = "adapters"  # of a Linear; whoever saves decides what becomes of them
TRAINING_ONLY = ("dropout", "p", "inplace", ADAPTERS)
"""Settings that change nothing in a model that is used, or are looked at elsewhere."""
WAY_OUT = (
    "config.json cannot describe it, so the saved model would be another one. Save model.state_dict() with torch.save "
    "and rebuild the model with your own code, or use what the config can describe"
)


def check_consistent(model: Model) -> None:
    """Raise a ValueError that names the first module that differs from what `build(model.config)`
    makes.

    Compared are the classes of all modules, methods replaced on an instance, the names and shapes
    of parameters and buffers, and settings such as an activation. Hooks, adapters, int8 weights and
    compiled parts are no difference.
    """
    model = uncompiled(model)
    with torch.device("meta"):
        expected = build(model.config)

    compare("", model, expected)


def refuse_adapters(model: Model) -> None:
    if any(True for _ in adapted(model)):
        raise ValueError(
            "model: it has adapters; merge(model) makes them part of it, write_adapter(model) saves them alone"
        )


def compare(path: str, found: nn.Module, expected: nn.Module) -> None:
    found = inside(found)
    if isinstance(found, Int8Embedding):
        return
    if type(found) is not type(expected):
        raise ValueError(
            f"model: {path or 'it'} is a {name_of(found)}, not a {name_of(expected)}; {WAY_OUT}"
        )
    if methods := overridden(found):
        raise ValueError(
            f"model: {dotted(path, methods[0])} was replaced on this instance; {WAY_OUT}"
        )

    compare_tensors(path, found, expected)
    compare_settings(path, found, expected)
    theirs = parts(expected)
    mine = {name: part for name, part in parts(found).items() if not skipped(name, part)}

    for name in mine.keys() - theirs.keys():
        raise ValueError(
            f"model: {dotted(path, name)}, a {name_of(mine[name])}, was added; {WAY_OUT}"
        )

    for name, part in theirs.items():
        if name not in mine:
            raise ValueError(
                f"model: {dotted(path, name)}, a {name_of(part)}, is missing; {WAY_OUT}"
            )

        compare(dotted(path, name), mine[name], part)


def compare_tensors(path: str, found: nn.Module, expected: nn.Module) -> None:
    if any(isinstance(part, Int8Matrix) for part in found.children()):
        return

    mine, theirs = shapes(found), shapes(expected)
    for name in sorted({*mine, *theirs}):
        shape, wanted = mine.get(name), theirs.get(name)
        if wanted is None:
            raise ValueError(f"model: the tensor {dotted(path, name)} was added; {WAY_OUT}")

        if shape != wanted:
            kind = "missing" if shape is None else f"of shape {shape}, not {wanted}"
            raise ValueError(f"model: the tensor {dotted(path, name)} is {kind}; {WAY_OUT}")


def shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    tensors = [
        *module.named_parameters(recurse=False, remove_duplicate=False),
        *module.named_buffers(recurse=False, remove_duplicate=False),
    ]
    return {name: tuple(tensor.shape) for name, tensor in tensors}


def compare_settings(path: str, found: nn.Module, expected: nn.Module) -> None:
    mine = settings(found)
    for name, value in settings(expected).items():
        if (
            name not in TRAINING_ONLY
            and name in mine
            and comparable(mine[name]) != comparable(value)
        ):
            raise ValueError(
                f"model: {dotted(path, name)} is {mine[name]!r}, not {value!r} as in the config; {WAY_OUT}"
            )


def comparable(value: Any) -> Any:
    """A config without its dropout."""
    if not is_dataclass(value) or isinstance(value, type):
        return value

    return {name: each for name, each in asdict(value).items() if "dropout" not in name}


def inside(module: nn.Module) -> nn.Module:
    """The module in what torch.compile wraps around it."""
    return module._modules["_orig_mod"] or module if is_compiled(module) else module


def parts(module: nn.Module) -> dict[str, nn.Module]:
    """Its children, also those that it has under two names."""
    return {name: part for name, part in module._modules.items() if part is not None}


def skipped(name: str, part: nn.Module) -> bool:
    return name == ADAPTERS or isinstance(part, Int8Matrix)


def name_of(module: nn.Module) -> str:
    return type(inside(module)).__name__


def dotted(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
