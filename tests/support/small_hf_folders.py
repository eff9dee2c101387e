"""Small models of every family that `transformers` has a format for, and ways to damage them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from qkv.models import BERT, GPT, BERTConfig, GPTConfig, Model, Transformer, TransformerConfig

SMALL: dict[str, Any] = {"vocabulary": 13, "context": 8, "width": 8, "depth": 1, "heads": 2}
LLAMA: dict[str, Any] = {"position": "rotary", "norm": "rms", "activation": "swiglu", "kv_heads": 1}


def small(family: str, **choices: Any) -> Model:
    """Return a model of width 8 that `transformers` could load."""
    if family == "gpt2":
        return GPT(GPTConfig(**(SMALL | choices)))

    if family == "llama":
        return GPT(GPTConfig(**(SMALL | LLAMA | choices)))

    if family == "bert":
        return BERT(BERTConfig(**(SMALL | choices)))

    return Transformer(TransformerConfig(**(SMALL | choices)))


def refused(message: str, kind: type[Exception] = ValueError) -> Any:
    """Expect an error with this message; ... stands for any text."""
    return pytest.raises(kind, match=re.escape(message).replace(r"\.\.\.", ".*"))


def edit(folder: Path, **changes: Any) -> None:
    values = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(values))


def edit_tensors(folder: Path, drop: str = "", **changes: torch.Tensor) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file) | changes
    save_file({name: tensor for name, tensor in tensors.items() if name != drop}, file)


def outcome(read: Callable[[Path], Model], path: Path) -> Model | str:
    """Return the model, or the message of the ValueError; any other error fails the test."""
    try:
        return read(path)
    except ValueError as error:
        return str(error)
