"""Packages whose public names are imported at first use, so that importing one of their modules
stays cheap.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any


class LazyPackage(ModuleType):
    """A package that finds each public name in the module that defines it, and its submodules by
    name.
    """

    def __getattr__(self, name: str) -> Any:
        if home := self.__dict__["__homes__"].get(name):
            self.__dict__[name] = getattr(import_module(home), name)
            return self.__dict__[name]

        if name in self.__dict__["__submodules__"]:
            return import_module(f"{self.__name__}.{name}")

        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        """Keep a public function visible: the import system binds a submodule of the same name over
        it.
        """
        if not (isinstance(value, ModuleType) and name in self.__dict__["__homes__"]):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted(
            {*super().__dir__(), *self.__dict__["__homes__"], *self.__dict__["__submodules__"]}
        )


def attach(
    package: str, names: Mapping[str, Sequence[str]], submodules: Sequence[str] = ()
) -> None:
    """Give a package public names, listed by the module that defines each, and submodules to import
    when asked for.
    """
    module = sys.modules[package]
    homes = {name: home for home, defined in names.items() for name in defined}
    module.__dict__.update(__homes__=homes, __submodules__=tuple(submodules))
    module.__class__ = LazyPackage
