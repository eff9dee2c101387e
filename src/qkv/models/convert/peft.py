"""Adapters as `peft` stores them: adapter_config.json, and A and B of every module in
adapter_model.safetensors.

What `peft` has no word for lies in the header of the weights, where it looks for nothing: the
config of our model, its head's labels among it, and a checksum of the weights that the adapter was
trained on.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from qkv import storage
from qkv.models import legacy
from qkv.models.consistency import check_consistent
from qkv.models.convert import hf_folder
from qkv.models.convert.config_fields import Fields
from qkv.models.convert.hf_folder import CHECKSUM, TENSORS, checksum
from qkv.models.convert.peft_modules import Names, endings, names_of, task_type
from qkv.models.convert.weight_rules import FLOATS, Weights
from qkv.models.registry import (
    Config,
    Model,
    backbone_of,
    build,
    from_json,
    to_json,
    uncompiled,
    weights_of,
    with_weights,
)
from qkv.models.task_model import TaskModel, TaskModelConfig
from qkv.nn import lora
from qkv.nn.linear.linear import Linear
from qkv.nn.lora import check_fresh

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
OUR_CONFIG, BASE = "qkv", CHECKSUM + "base"
NAME = re.compile(rf"{re.escape(PREFIX)}(.+)\.lora_([AB])(?:\.default)?\.weight")
HARMLESS = (
    "task_type", "modules_to_save", "fan_in_fan_out", "inference_mode", "peft_version", "auto_mapping", "revision",
    "exclude_modules", "layers_to_transform", "layers_pattern", "megatron_config", "megatron_core", "loftq_config",
    "eva_config", "qalora_group_size", "runtime_config", "ensure_weight_tying", "base_model_name_or_path",
)  # fmt: skip
"""Fields that say how an adapter was made or where it is from, and nothing of what it computes."""


class Pair(NamedTuple):
    """The adapter of one module of theirs."""

    A: Float[Tensor, "r E"]
    B: Float[Tensor, "R r"]
    scale: float


# Writing


def write_adapter(
    model: Model, path: Path | str, base: str | None = None, *, replace: bool = False
) -> None:
    """The model's adapters, and its head if it has one, in a folder that `peft` loads. `base` says
    where the rest is: a path, or the name of a model."""
    path, model = Path(path), uncompiled(model)
    check_consistent(model)
    names = names_of(model)
    pairs = {
        name: pair for name, spot in names.spots.items() if (pair := pair_of(spot.layer, spot.rows))
    }
    if not pairs:
        raise ValueError("model: it has no adapters; attach(model, config) makes them")

    tensors = {}

    for name, pair in pairs.items():
        tensors[f"{PREFIX}{name}.lora_A.weight"], tensors[f"{PREFIX}{name}.lora_B.weight"] = (
            pair.A,
            pair.B,
        )

    if isinstance(model, TaskModel):
        tensors |= {
            f"{PREFIX}{names.head}.{kind}": tensor
            for kind, tensor in model.head.state_dict().items()
        }

    header = {
        TENSORS: checksum(tensors),
        BASE: base_checksum(model),
        OUR_CONFIG: json.dumps(to_json(model.config)),
    }
    if not replace and (path / CONFIG).exists():
        raise ValueError(f"{path}: {CONFIG} is already here; choose an empty folder")

    storage.sweep(path)

    with storage.staging(
        path, sum(tensor.nbytes for tensor in tensors.values()), "the adapter"
    ) as made:
        hf_folder.write_json(made / CONFIG, config_out(model, names, pairs, base))
        hf_folder.write_tensors(made / WEIGHTS, tensors, hf_folder.FORMAT | header)
        for name in (WEIGHTS, CONFIG):
            storage.flush(made / name)

        if (path / CONFIG).exists() and (path / CONFIG).read_bytes() != (
            made / CONFIG
        ).read_bytes():
            (path / CONFIG).unlink()  # the old one must not be read with the new weights

        for name in (WEIGHTS, CONFIG):
            storage.move(made / name, path / name)


def pair_of(layer: Linear, rows: range) -> Pair | None:
    """What all adapters add to some rows, as one: ranks side by side, and zeros where an adapter
    adds nothing.
    """
    adapters = [] if layer.adapters is None else layer.adapters.parts()
    parts = [part for _, part in adapters if part.meets(rows)]
    if not parts:
        return None

    scale = parts[0].scale or 1.0
    B = torch.cat([part.padded(rows) * (part.scale / scale) for part in parts], dim=1)  # (R, r)

    return Pair(torch.cat([part.A for part in parts]).detach(), B.detach(), scale)


def config_out(
    model: Model, names: Names, pairs: dict[str, Pair], base: str | None
) -> dict[str, Any]:
    sizes = {name: (len(pair.A), alpha_of(pair)) for name, pair in pairs.items()}
    ((rank, alpha), _), *others = Counter(sizes.values()).most_common()
    ranks: dict[str, int] = {}
    alphas: dict[str, float] = {}

    for (other_rank, other_alpha), _ in others:
        for end in endings(
            [name for name, size in sizes.items() if size == (other_rank, other_alpha)], names.spots
        ):
            ranks[end], alphas[end] = other_rank, other_alpha

    return {
        "peft_type": "LORA",
        "task_type": task_type(model),
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": next(adapters.dropout for _, _, adapters in lora.adapted(model)),
        "target_modules": endings(pairs, names.spots),
        "rank_pattern": ranks,
        "alpha_pattern": alphas,
        "modules_to_save": [names.head] if isinstance(model, TaskModel) else None,
        "fan_in_fan_out": names.transposed,
        "bias": "none",
        "inference_mode": True,
    }


def alpha_of(pair: Pair) -> float:
    alpha = pair.scale * len(pair.A)
    return round(alpha) if math.isclose(alpha, round(alpha), rel_tol=1e-14) else alpha


def base_checksum(model: Model) -> str:
    """Of the body's weights without their adapters."""
    weights = weights_of(backbone_of(model))
    return checksum({name: weight for name, weight in weights.items() if ".adapters." not in name})


# Reading


def read_adapter(model: Model, path: Path | str, *, allow_nonfinite: bool = False) -> Model:
    """The model with the adapters of a folder. If there is a task's head in it, which the model has
    not, what is returned is a model with that head, around the same weights."""
    path, model = Path(path), uncompiled(model)
    check_fresh(model)
    fields = Fields(hf_folder.read_json(path / CONFIG), str(path / CONFIG))
    weights = open_weights(path, allow_nonfinite)
    tensors = {name: weights[name].clone() for name in weights}
    header = hf_folder.read_metadata(path / WEIGHTS)
    if TENSORS in header and header[TENSORS] != checksum(tensors):
        raise ValueError(
            f"{weights.origin}: damaged: its numbers are not those that were saved; bring back a copy"
        )

    try:
        sizes = Sizes(fields)
        config = from_json(json.loads(header[OUR_CONFIG])) if OUR_CONFIG in header else None
    except ValueError as error:
        raise ValueError(f"{fields.origin}: {error}") from error

    head = names_of(model).head
    own = {
        kind: tensors.pop(name)
        for kind in ("weight", "bias")
        if (name := f"{PREFIX}{head}.{kind}") in tensors
    }
    model = with_head(model, config, head, own, weights.origin)
    names = names_of(model)
    pairs = pairs_in(names, sizes, tensors, weights.origin)
    if BASE in header and same_dtype(model, pairs) and header[BASE] != base_checksum(model):
        raise ValueError(
            f"{path}: this adapter was trained on other weights than those of this base; give it its own"
        )

    for name, pair in pairs.items():
        layer, rows, part = names.spots[name]
        lora.add(layer, part, pair.A, pair.B, rows.start, pair.scale, sizes.dropout)

    return model


def open_weights(path: Path, allow_nonfinite: bool) -> Weights:
    if not (path / WEIGHTS).is_file():
        hf_folder.refuse_pickles_in(path)
        raise ValueError(
            f"{path / WEIGHTS}: there is no such file; an adapter has its numbers in it"
        )

    return Weights(
        hf_folder.open_file(path / WEIGHTS), str(path / WEIGHTS), allow_nonfinite=allow_nonfinite
    )


class Sizes:
    """What an adapter's config says of the computation; all that would make it another is refused."""

    def __init__(self, fields: Fields) -> None:
        if fields.values.get("peft_type") != "LORA":
            raise ValueError(f"peft_type: expected LORA, not {fields.values.get('peft_type')!r}")

        fields.only(bias="none")
        if fields.values.get("init_lora_weights", True) not in (
            True,
            False,
            None,
            "gaussian",
            "eva",
            "orthogonal",
        ):
            beginning = fields.values["init_lora_weights"]
            raise ValueError(
                f"init_lora_weights: {beginning!r} changes the base's weights too; not supported here"
            )

        self.rank, self.alpha = fields.whole("r", 8), fields.number("lora_alpha", 8.0)
        self.dropout = fields.number("lora_dropout", 0.0)
        if not 0 <= self.dropout < 1:
            raise ValueError(
                f"lora_dropout: expected a probability from 0 to below 1, not {self.dropout}"
            )

        self.by_root = fields.truth("use_rslora", False)
        self.ranks, self.alphas = fields.within("rank_pattern"), fields.within("alpha_pattern")

        for rank in (self.rank, *(self.ranks.whole(name, 0) for name in self.ranks.values)):
            if rank < 1:
                raise ValueError(f"r: expected 1 or more, not {rank}")

        for name in self.alphas.values:
            self.alphas.number(name, 0.0)

        self.targets = fields.values.get("target_modules")
        if not (
            self.targets is None or isinstance(self.targets, str) or is_string_list(self.targets)
        ):
            raise ValueError(f"target_modules: expected names or a pattern, not {self.targets!r}")

        for pattern in (*self.ranks.values, *self.alphas.values, self.targets):
            check_pattern(pattern)

        self.some_layers = any(
            fields.values.get(name) for name in ("layers_to_transform", "exclude_modules")
        )
        known = {
            "peft_type",
            "bias",
            "init_lora_weights",
            "r",
            "lora_alpha",
            "lora_dropout",
            "use_rslora",
        }

        known |= {"rank_pattern", "alpha_pattern", "target_modules", *HARMLESS}

        for name, value in fields.values.items():
            if name not in known and value:
                raise ValueError(
                    f"{name}: {value!r} is not supported here; expected a plain LoRA adapter"
                )

    def of(self, module: str) -> tuple[int, float]:
        """Rank and scale of a module."""
        rank = self.ranks.whole(pattern_for(module, self.ranks), self.rank)
        alpha = self.alphas.number(pattern_for(module, self.alphas), self.alpha)
        return rank, alpha / (math.sqrt(rank) if self.by_root else rank)

    def wants(self, module: str) -> bool:
        """Whether a module must have an adapter."""
        if self.targets is None or self.targets == "all-linear" or self.some_layers:
            return False  # what is there, is there
        if isinstance(self.targets, str):
            return bool(re.fullmatch(self.targets, module))

        return any(f".{module}".endswith(f".{target}") for target in self.targets)


def is_string_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def check_pattern(pattern: Any) -> None:
    try:
        re.compile(pattern if isinstance(pattern, str) else "")
    except re.error as error:
        raise ValueError(f"{pattern!r}: not a pattern that can be read ({error})") from error


def pattern_for(module: str, patterns: Fields) -> str:
    return next(
        (each for each in patterns.values if re.fullmatch(rf"(.*\.)?({each})", module)), module
    )


def with_head(
    model: Model, config: Config | None, head: str, own: dict[str, Tensor], origin: str
) -> Model:
    """The model with the head of the file, if there is one."""
    backbone = backbone_of(model)
    dtype = next(backbone.parameters()).dtype
    if isinstance(config, TaskModelConfig) and model.config != config:
        with torch.device("meta"):
            names = build(config.backbone).state_dict().keys()

        weights = {
            f"backbone.{name}": weight
            for name, weight in backbone.state_dict().items()
            if name in names
        }
        weights |= {f"head.{kind}": tensor.to(dtype) for kind, tensor in own.items()}
        return with_weights(config, weights, f"{origin} and its base").train(model.training)

    if not own and not isinstance(config, TaskModelConfig):
        return model
    if not isinstance(model, TaskModel):
        raise ValueError(
            f"{origin}: {head}: this is the head of a task, for a model that has one of the same size"
        )

    expected = {kind: tuple(tensor.shape) for kind, tensor in model.head.state_dict().items()}
    if (found := {kind: tuple(tensor.shape) for kind, tensor in own.items()}) != expected:
        raise ValueError(f"{origin}: {head}: expected {expected}, not {found}")

    model.head.load_state_dict(own)

    return model


def pairs_in(
    names: Names, sizes: Sizes, tensors: dict[str, Tensor], origin: str
) -> dict[str, Pair]:
    """A and B of every module, with the shapes that its place in the model and the config demand."""
    found: dict[tuple[str, str], Tensor] = {}
    for name, tensor in tensors.items():
        parsed = NAME.fullmatch(name)
        module = names.of(legacy.rename_weight(parsed[1])) if parsed else ""
        if not parsed or module not in names.spots or not names.spots[module].part:
            raise ValueError(
                f"{origin}: {name}: there is no place for it in the model's attention and feed-forward"
            )
        if (module, parsed[2]) in found:
            raise ValueError(f"{origin}: {name}: two tensors mean the same; expected one")

        found[module, parsed[2]] = tensor

    wanted = {module for module, _ in found} | {
        name for name, spot in names.spots.items() if sizes.wants(name)
    }
    pairs = {}

    for module in [name for name in names.spots if name in wanted]:
        layer, rows, _ = names.spots[module]
        rank, scale = sizes.of(module)
        for kind, shape in (("A", (rank, layer.in_features)), ("B", (len(rows), rank))):
            if (module, kind) not in found:
                raise ValueError(f"{origin}: {module}.lora_{kind}: this tensor is missing")

            tensor = found[module, kind]
            if tuple(tensor.shape) != shape or tensor.dtype not in FLOATS:
                kinds = f"{tuple(tensor.shape)} of {tensor.dtype}"
                raise ValueError(
                    f"{origin}: {module}.lora_{kind}: expected numbers in the shape {shape}, not {kinds}"
                )

        pairs[module] = Pair(found[module, "A"], found[module, "B"], scale)

    if not pairs:
        raise ValueError(f"{origin}: there is no adapter in it")

    return pairs


def same_dtype(model: Model, pairs: dict[str, Pair]) -> bool:
    """A checksum is of numbers as they were saved: those of a model in half precision are others."""
    return all(pair.A.dtype == next(model.parameters()).dtype for pair in pairs.values())
