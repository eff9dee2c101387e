"""Lazy imports: packages import the modules of their public names at first use."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
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


def attach(package: str, submodules: Sequence[str] = ()) -> None:
    """Make the names that a package imports for type checkers importable, each at first use.

    The names are read from the source of the package: those imported below `if TYPE_CHECKING:`.

    Args:
        package: The name of the package, which is being imported.
        submodules: Submodules that are attributes of the package without an import statement.

    Example:
        In `qkv/__init__.py`:

            if TYPE_CHECKING:
                from qkv.artifact import load, save
            else:
                attach(__name__, submodules=("models", "nn"))
    """
    lazy = sys.modules[package]
    source = lazy.__loader__.get_source(package)  # type: ignore[union-attr]
    modules = {}
    for module, name in type_checking_imports(ast.parse(source)):
        modules[name] = module

    lazy.__dict__.update(__lazy_names__=modules, __lazy_submodules__=tuple(submodules))
    lazy.__class__ = LazyPackage


def type_checking_imports(tree: ast.Module) -> Iterator[tuple[str | None, str]]:
    """The module and the name of each `from module import name` below `if TYPE_CHECKING:`."""
    for node in tree.body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for statement in node.body:
                assert isinstance(statement, ast.ImportFrom)
                for alias in statement.names:
                    yield statement.module, alias.name
