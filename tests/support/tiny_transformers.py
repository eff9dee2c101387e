"""Tiny models of `transformers` with random weights, and helpers to save, load and compare."""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from qkv.models import Model

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

B = 3
T = 11


def randomised(model: nn.Module) -> Any:
    """Randomise all weights: biases and norms of 0 and 1 would hide a mistake."""
    with torch.no_grad():
        for name, tensor in model.state_dict(keep_vars=True).items():
            if "embed_positions" in name:
                continue  # sinusoids, not learned

            nn.init.normal_(tensor, mean=float(is_gain(name)), std=0.25)

    return model.eval()


def is_gain(name: str) -> bool:
    a_norm = "norm" in name.lower() or ".ln_" in name
    return name.endswith(".gain") or (a_norm and name.endswith(".weight"))


def saved(model: Any, path: Path, **choices: Any) -> Path:
    model.save_pretrained(path, **choices)
    return path


def loaded(kind: Any, path: Path, **choices: Any) -> Any:
    """Load their model from our folder, which must hold exactly its tensors."""
    model, report = kind.from_pretrained(path, output_loading_info=True, **choices)
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not report[problem], f"{problem}: {report[problem]}"

    return model.eval()


def ids(vocabulary: int, *shape: int) -> Tensor:
    return torch.randint(vocabulary, shape or (B, T))


def padding(side: str = "right") -> Tensor:
    """Return a padding mask for rows of T, T - 3 and T - 7 tokens."""
    padding_mask = torch.arange(T) < torch.tensor([[T], [T - 3], [T - 7]])
    if side == "left":
        padding_mask = padding_mask.flip(1)

    return padding_mask


def furthest(ours: Tensor, theirs: Tensor, padding_mask: Tensor | None = None) -> float:
    """Return the largest absolute difference, at tokens only if there is a padding mask."""
    assert ours.shape == theirs.shape
    assert theirs.abs().max() > 0.1, "numbers this small would hide a mistake"
    difference = (ours - theirs).abs().detach()
    if padding_mask is not None:
        difference = difference[padding_mask]

    return float(difference.max())


def same_weights(ours: Model, others: Model) -> bool:
    mine = ours.state_dict()
    yours = others.state_dict()
    return mine.keys() == yours.keys() and all(
        torch.equal(mine[name], yours[name]) for name in mine
    )


def edit_config(path: Path, drop: tuple[str, ...] = (), **changes: Any) -> None:
    values = json.loads((path / "config.json").read_text()) | changes
    (path / "config.json").write_text(
        json.dumps({key: value for key, value in values.items() if key not in drop})
    )


def tensors(path: Path) -> dict[str, Tensor]:
    """Return all tensors of a folder, from one file or from shards."""
    return {
        name: tensor
        for file in sorted(path.glob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }


def same_files(one: Path, other: Path, but: Set[str] = frozenset()) -> bool:
    first = tensors(one)
    second = tensors(other)
    if first.keys() - but != second.keys():
        return False

    return all(
        first[name].dtype == second[name].dtype and torch.equal(first[name], second[name])
        for name in second
    )


def replace_tensors(path: Path, new: Mapping[str, Tensor]) -> None:
    save_file(
        {name: tensor.contiguous() for name, tensor in new.items()},
        path / "model.safetensors",
        {"format": "pt"},
    )
