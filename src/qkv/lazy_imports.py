"""Lazy imports: packages import the modules of their public names at first use."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any


class LazyPackage(ModuleType):
    """A package that imports public names and submodules when they are first used."""

    def __getattr__(self, name: str) -> Any:
        module = self.__dict__["__lazy_names__"].get(name)
        if module is not None:
            self.__dict__[name] = getattr(import_module(module), name)
            return self.__dict__[name]

        if name in self.__dict__["__lazy_submodules__"]:
            return import_module(f"{self.__name__}.{name}")

        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, but keep a public function that has the name of a submodule.

        The import system sets a submodule as an attribute of its package.
        """
        if isinstance(value, ModuleType) and name in self.__dict__["__lazy_names__"]:
            return

        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        names = set(super().__dir__())
        names.update(self.__dict__["__lazy_names__"])
        names.update(self.__dict__["__lazy_submodules__"])
        return sorted(names)


def attach(
    package: str, names: Mapping[str, Sequence[str]], submodules: Sequence[str] = ()
) -> None:
    """Give a package lazily imported names and submodules.

    Args:
        package: The name of the package, which is being imported.
        names: For each module, the public names that it defines.
        submodules: Submodules that are attributes of the package without an import statement.

    Example:
        In `qkv/__init__.py`:

            attach(__name__, {"qkv.artifact": ("load", "save")}, submodules=("models", "nn"))
    """
    modules = {}
    for module, defined in names.items():
        modules.update(dict.fromkeys(defined, module))

    lazy = sys.modules[package]
    lazy.__dict__.update(__lazy_names__=modules, __lazy_submodules__=tuple(submodules))
    lazy.__class__ = LazyPackage
