"""A model on disk: one folder with its config, its weights and, if given, its tokenizer. Nothing executes on load."""

from __future__ import annotations

from pathlib import Path

from qkv.models.build import Model, from_json, to_json, uncompiled, with_weights
from qkv.models.foreign import folder, read_folder, read_gguf


def save(model: Model, path: Path | str, *, tokenizer: Path | str | None = None) -> None:
    """config.json and model.safetensors, and a copy of tokenizer.json if given, into an empty folder."""
    tokenizer = None if tokenizer is None else Path(tokenizer)
    model = uncompiled(model)
    folder.write(Path(path), to_json(model.config), model.state_dict(), tokenizer=tokenizer)


def load(path: Path | str) -> Model:
    """A model from a folder of ours, a folder of `transformers`, or a GGUF file; ready for use (dropout off)."""
    path = Path(path)
    if path.suffix.lower() == ".gguf":
        return read_gguf(path)
    values = folder.open_config(path)
    if "family" not in values:
        return read_folder(path)
    try:
        config = from_json(values)
    except ValueError as error:
        raise ValueError(f"{path / folder.CONFIG}: {error}") from error
    weights = folder.open_weights(path)
    return with_weights(config, {name: weights[name].clone() for name in weights}, weights.origin).eval()
