"""Tiny models of `transformers` whose every number matters, and the way there and back."""

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

B, T = 3, 11


def randomised(model: nn.Module) -> Any:
    """Biases and norms too: what begins as 0 or 1 would hide a mistake."""
    with torch.no_grad():
        for name, tensor in model.state_dict(keep_vars=True).items():
            if "embed_positions" in name:
                continue  # sinusoids, not learned
            nn.init.normal_(tensor, mean=1.0 if is_gain(name) else 0.0, std=0.25)
    return model.eval()


def is_gain(name: str) -> bool:
    a_norm = "norm" in name.lower() or ".ln_" in name
    return name.endswith(".gain") or (a_norm and name.endswith(".weight"))


def saved(model: Any, path: Path, **choices: Any) -> Path:
    model.save_pretrained(path, **choices)
    return path


def loaded(kind: Any, path: Path, **choices: Any) -> Any:
    """Their model from a folder of ours, which must hold exactly its tensors."""
    model, report = kind.from_pretrained(path, output_loading_info=True, **choices)
    for complaint in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not report[complaint], f"{complaint}: {report[complaint]}"
    return model.eval()


def ids(vocabulary: int, *shape: int) -> Tensor:
    return torch.randint(vocabulary, shape or (B, T))


def padding(side: str = "right") -> Tensor:
    """False for padding: rows of T, T - 3 and T - 7 words."""
    padding_mask = torch.arange(T) < torch.tensor([[T], [T - 3], [T - 7]])
    return padding_mask if side == "right" else padding_mask.flip(1)


def furthest(ours: Tensor, theirs: Tensor, padding_mask: Tensor | None = None) -> float:
    assert ours.shape == theirs.shape
    assert theirs.abs().max() > 0.1, "numbers this small would hide a mistake"
    apart = (ours - theirs).abs().detach()
    return float((apart if padding_mask is None else apart[padding_mask]).max())


def same_weights(ours: Model, others: Model) -> bool:
    mine, yours = ours.state_dict(), others.state_dict()
    return mine.keys() == yours.keys() and all(
        torch.equal(mine[name], yours[name]) for name in mine
    )


def edit_config(path: Path, drop: tuple[str, ...] = (), **changes: Any) -> None:
    values = json.loads((path / "config.json").read_text()) | changes
    (path / "config.json").write_text(
        json.dumps({key: value for key, value in values.items() if key not in drop})
    )


def tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a folder, from one file or from shards."""
    return {
        name: tensor
        for file in sorted(path.glob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }


def same_files(one: Path, other: Path, but: Set[str] = frozenset()) -> bool:
    first, second = tensors(one), tensors(other)
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
