"""Whether a student's file replaced functions that the checks rely on.

`torch.softmax = mine` would make the library agree with every mistake. The functions of torch, of
the built-ins and of all imported modules of qkv are remembered before the file is imported, and
compared afterwards.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import torch

WATCHED = (
    "builtins",
    "math",
    "torch",
    "torch.autograd",
    "torch.linalg",
    "torch.nn",
    "torch.nn.functional",
    "torch.nn.init",
    "torch.optim",
)
CLASSES = (torch.Tensor, torch.nn.Module, torch.nn.Linear, torch.nn.Embedding, torch.nn.Parameter)
TORCH = str(Path(torch.__file__).parent) + os.sep
SETTINGS: dict[str, Callable[[], object]] = {
    "torch.set_default_dtype": torch.get_default_dtype,
    "torch.set_grad_enabled": torch.is_grad_enabled,
    "torch.use_deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
}
"""Functions that change all later results, and the state they change."""


class KnownFunctions:
    """The functions as they are now; `replaced` names those that have changed since."""

    def __init__(self) -> None:
        self.functions = {}
        self.names = {}
        self.code = {}
        for owner, name, value in all_functions():
            self.functions[id(owner), name] = value
            self.names[id(owner), name] = f"{full_name(owner)}.{name}"
            if isinstance(value, FunctionType):
                self.code[id(value)] = body(value)

        self.settings = {name: read() for name, read in SETTINGS.items()}

    def replaced(self) -> list[str]:
        """Names such as torch.softmax of what was replaced, changed or added to a class."""
        names = []
        present = set()
        for owner, name, value in all_functions():
            present.add((id(owner), name))
            known = self.functions.get((id(owner), name))
            if known is None:
                if owner in CLASSES:  # a method that hides one of its base class
                    names.append(f"{full_name(owner)}.{name}")
            elif known is not value:
                if not is_wrapper_of_torch(value, known):
                    names.append(f"{full_name(owner)}.{name}")
            elif self.code_changed(value):
                names.append(f"{value.__module__}.{value.__qualname__}")

        gone = set(self.functions) - present
        for key in gone:
            names.append(self.names[key])

        return sorted(set(names))

    def code_changed(self, value: Any) -> bool:
        """Whether the body of a function, or a default of it, was exchanged."""
        return isinstance(value, FunctionType) and self.code.get(id(value)) != body(value)

    def changed_settings(self) -> list[str]:
        """The functions that must have been called, because torch's state is another."""
        return [name for name, read in SETTINGS.items() if read() != self.settings[name]]


def all_functions() -> Iterator[tuple[Any, str, Any]]:
    """Module or class, name and value of all watched functions, and of the course's constants."""
    for module_name, module in list(sys.modules.items()):
        ours = module_name == "qkv" or module_name.startswith("qkv.")
        if not ours and module_name not in WATCHED:
            continue

        for name, value in list(vars(module).items()):
            constant = module_name.startswith("qkv.learn") and name.isupper()
            if not callable(value) and not constant:
                continue

            yield module, name, value
            if ours and isinstance(value, type) and value.__module__ == module_name:
                yield from methods(value)

    for class_ in CLASSES:
        yield from methods(class_)


def is_wrapper_of_torch(value: Any, known: Any) -> bool:
    """Whether torch itself has wrapped a function, as its compiler does when it is imported."""
    code = getattr(value, "__code__", None)
    inner = (getattr(value, name, None) for name in ("__wrapped__", "_torchdynamo_orig_callable"))
    return code is not None and code.co_filename.startswith(TORCH) and known in inner


def body(function: FunctionType) -> tuple[Any, ...]:
    """What decides the results of a function: its code and its defaults."""
    return function.__code__, function.__defaults__, str(function.__kwdefaults__)


def methods(class_: type) -> Iterator[tuple[Any, str, Any]]:
    """The functions that a class defines itself."""
    for name, value in list(vars(class_).items()):
        if callable(value) or isinstance(value, (property, staticmethod, classmethod)):
            yield class_, name, value


def full_name(owner: Any) -> str:
    """The name of a module or class, as one writes it."""
    if not isinstance(owner, type):
        return str(owner.__name__)
    if owner is torch.Tensor:
        return "torch.Tensor"

    return f"{owner.__module__}.{owner.__qualname__}"


def replaced_sentence(known: KnownFunctions, file: str) -> str:
    """What to tell the student, or nothing."""
    settings = known.changed_settings()
    if settings:
        return f"{file} calls {settings[0]}, which changes all later results; leave it out"

    names = known.replaced()
    if names:
        listed = ", ".join(names[:3]) + (" and others" if len(names) > 3 else "")
        return (
            f"{file} replaces {listed}, which the checks rely on; give your function a name of "
            "its own in your file"
        )

    return ""
