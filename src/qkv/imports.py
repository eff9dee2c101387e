"""Imports at first use: public names of a package, and packages that an extra installs.

`require` imports a module of an optional package, or names the command that installs it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

# Public names


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


# Optional packages


class OptionalPackage(NamedTuple):
    """The extra of pyproject.toml that installs a package, and what the package is for."""

    extra: str
    purpose: str


PACKAGES = {
    "matplotlib": OptionalPackage("insight", "figures"),
    "sacrebleu": OptionalPackage("train", "BLEU and chrF of translations"),
    "fastapi": OptionalPackage("serve", "the HTTP server"),
    "uvicorn": OptionalPackage("serve", "the HTTP server"),
    "prometheus_client": OptionalPackage("serve", "metrics of the server"),
    "gguf": OptionalPackage("gguf", "models in GGUF files, such as smollm2"),
    "pyarrow": OptionalPackage("parquet", "data in .parquet files"),
    "datasets": OptionalPackage("hub", "data from the Hugging Face hub: --data hf:NAME"),
    "lm_eval": OptionalPackage("harness", "the lm-evaluation-harness"),
    "tensorboard": OptionalPackage("tensorboard", "curves in TensorBoard: --sinks tensorboard"),
    "wandb": OptionalPackage("wandb", "curves in Weights & Biases: --sinks wandb"),
}


def install_command(package: str) -> str:
    """The command that installs an optional package.

    >>> install_command("fastapi")
    'pip install "qkv[serve]"'
    """
    return f'pip install "qkv[{PACKAGES[package].extra}]"'


def require(module: str, what: str | None = None) -> Any:
    """Import a module of an optional package.

    Args:
        module: The module, such as `matplotlib` or `pyarrow.parquet`.
        what: What needs it, for the message (default: the purpose of the package).

    Returns:
        The module.

    Raises:
        ImportError: If the package is not installed; the message names the command to install it.

    Example:
        >>> require("pyarrow.parquet", "train.parquet").__name__
        'pyarrow.parquet'
    """
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != package:  # the package is installed, but one of its own is missing
            raise

    subject = what or PACKAGES[package].purpose
    raise ImportError(
        f"{subject}: the package {package} is not installed: {install_command(package)}",
        name=package,
    )
