"""Packages that belong to an extra: `require` imports one, or names the command to install it."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple


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
