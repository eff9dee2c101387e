"""Adapters as `peft` stores them: adapter_config.json and adapter_model.safetensors with A and B.

What `peft` has no field for lies in the metadata of the safetensors file, which it ignores: the
config of our model (with its head's labels), and a checksum of the weights below the adapter.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import torch
from torch import Tensor

from qkv import storage
from qkv.models import legacy
from qkv.models.consistency import check_consistent
from qkv.models.convert import hf_folder
from qkv.models.convert.config_fields import Fields
from qkv.models.convert.hf_folder import CHECKSUM, TENSORS, checksum, verify_checksum
from qkv.models.convert.peft_config import LoraPair, LoraSettings, config_to_peft
from qkv.models.convert.peft_modules import PeftModules, peft_modules
from qkv.models.convert.weight_rules import FLOATS, Weights
from qkv.models.model import Model, backbone_of, uncompiled
from qkv.models.registry import Config, build, from_json, to_json, weights_of, with_weights
from qkv.models.task_model import TaskModelConfig
from qkv.models.without_numbers import without_numbers
from qkv.nn import lora
from qkv.nn.linear.linear import Linear
from qkv.nn.lora import check_fresh

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
OUR_CONFIG = "qkv"
BASE = CHECKSUM + "base"
NAME = re.compile(rf"{re.escape(PREFIX)}(.+)\.lora_([AB])(?:\.default)?\.weight")


# Writing


def write_adapter(
    model: Model, path: Path | str, base: str | None = None, *, replace: bool = False
) -> None:
    """Write the model's adapters, and its task head if it has one, into a folder for `peft`.

    Args:
        model: A model with adapters.
        path: The folder.
        base: The path or name of the model below the adapters.
        replace: Whether an adapter in the folder may be replaced.

    Raises:
        ValueError: If the model has no adapters, or the folder has and `replace` is False.
    """
    path = Path(path)
    model = uncompiled(model)
    check_consistent(model)

    # The tensors under their names.
    names = peft_modules(model)
    pairs = pairs_of(names)
    if not pairs:
        raise ValueError("model: it has no adapters; attach_adapters(model, config) adds them")

    tensors: dict[str, Tensor] = {}
    for name, pair in pairs.items():
        tensors[f"{PREFIX}{name}.lora_A.weight"] = pair.A
        tensors[f"{PREFIX}{name}.lora_B.weight"] = pair.B

    if model.task is not None:
        for kind, tensor in model.head.state_dict().items():
            tensors[f"{PREFIX}{names.head}.{kind}"] = tensor

    metadata = {
        TENSORS: checksum(tensors),
        BASE: base_checksum(model),
        OUR_CONFIG: json.dumps(to_json(model.config)),
    }
    if not replace and (path / CONFIG).exists():
        raise ValueError(f"{path}: {CONFIG} is already here; choose an empty folder")

    # Both files are complete before either is moved into place.
    storage.sweep(path)
    size = sum(tensor.nbytes for tensor in tensors.values())
    with storage.staging(path, size, "the adapter") as staged:
        hf_folder.write_json(staged / CONFIG, config_to_peft(model, names, pairs, base))
        hf_folder.write_tensors(staged / WEIGHTS, tensors, hf_folder.FORMAT | metadata)
        hf_folder.move_files(staged, path, CONFIG)


def pairs_of(names: PeftModules) -> dict[str, LoraPair]:
    """Return A and B of every module that has adapters."""
    pairs = {}
    for name, module in names.modules.items():
        pair = pair_of(module.layer, module.rows)
        if pair is not None:
            pairs[name] = pair

    return pairs


def pair_of(layer: Linear, rows: range) -> LoraPair | None:
    """Return all adapters of some rows as one: ranks side by side, zeros for other rows."""
    if layer.adapters is None:
        return None

    parts = [part for _, part in layer.adapters.parts() if part.meets(rows)]
    if not parts:
        return None

    scale = parts[0].scale or 1.0
    A = torch.cat([part.A for part in parts])  # (r, E)
    B = torch.cat([part.padded(rows) * (part.scale / scale) for part in parts], dim=1)  # (R, r)

    return LoraPair(A.detach(), B.detach(), scale)


def base_checksum(model: Model) -> str:
    """Return the checksum of the backbone's weights without adapters."""
    weights = weights_of(backbone_of(model))
    return checksum({name: weight for name, weight in weights.items() if ".adapters." not in name})


# Reading


def read_adapter(model: Model, path: Path | str, *, allow_nonfinite: bool = False) -> Model:
    """Put the adapters of a folder into a model.

    Args:
        model: The model that the adapters were trained on, without adapters.
        path: The folder that `peft` or `write_adapter` wrote.
        allow_nonfinite: Load NaN and infinite weights instead of raising.

    Returns:
        The model; if the folder holds a task head that it has not, a TaskModel around its weights.

    Raises:
        ValueError: If the adapter is damaged, not supported, or was trained on other weights.
    """
    path = Path(path)
    model = uncompiled(model)
    check_fresh(model)

    # Read and check the two files.
    fields = Fields(hf_folder.read_json(path / CONFIG), str(path / CONFIG))
    weights = open_weights(path, allow_nonfinite)
    tensors = {name: weights[name].clone() for name in weights}
    metadata = hf_folder.read_metadata(path / WEIGHTS)
    if TENSORS in metadata:
        verify_checksum(tensors, metadata[TENSORS], weights.origin)

    try:
        settings = LoraSettings(fields)
        config = None
        if OUR_CONFIG in metadata:
            config = from_json(json.loads(metadata[OUR_CONFIG]))
    except ValueError as error:
        raise ValueError(f"{fields.origin}: {error}") from error

    # Put the head and the adapters into the model.
    head = peft_modules(model).head
    head_weights = pop_head(tensors, head)
    model = with_head(model, config, head, head_weights, weights.origin)
    names = peft_modules(model)
    pairs = pairs_in(names, settings, tensors, weights.origin)
    if BASE in metadata and same_dtype(model, pairs) and metadata[BASE] != base_checksum(model):
        raise ValueError(
            f"{path}: this adapter was trained on other weights than those of this base; "
            "give the base that it was trained on"
        )

    for name, pair in pairs.items():
        layer, rows, projection = names.modules[name]
        lora.add(layer, projection, pair.A, pair.B, rows.start, pair.scale, settings.dropout)

    return model


def open_weights(path: Path, allow_nonfinite: bool) -> Weights:
    file = path / WEIGHTS
    if not file.is_file():
        hf_folder.refuse_pickles_in(path)
        raise ValueError(f"{file}: there is no such file; an adapter has its numbers in it")

    return Weights(hf_folder.open_file(file), str(file), allow_nonfinite=allow_nonfinite)


def pop_head(tensors: dict[str, Tensor], head: str) -> dict[str, Tensor]:
    """Remove a task head's weight and bias from the tensors, and return them."""
    head_weights = {}
    for kind in ("weight", "bias"):
        name = f"{PREFIX}{head}.{kind}"
        if name in tensors:
            head_weights[kind] = tensors.pop(name)

    return head_weights


def with_head(
    model: Model, config: Config | None, head: str, head_weights: dict[str, Tensor], origin: str
) -> Model:
    """Return the model with the task head of the file, if there is one."""
    if isinstance(config, TaskModelConfig) and model.config != config:
        weights = task_model_weights(backbone_of(model), config, head_weights)
        return with_weights(config, weights, f"{origin} and its base").train(model.training)

    if not head_weights and not isinstance(config, TaskModelConfig):
        return model
    if model.task is None:
        raise ValueError(
            f"{origin}: {head}: this is the head of a task, "
            "for a model that has one of the same size"
        )

    expected = shapes_of(model.head.state_dict())
    if shapes_of(head_weights) != expected:
        raise ValueError(f"{origin}: {head}: expected {expected}, not {shapes_of(head_weights)}")

    model.head.load_state_dict(head_weights)

    return model


def task_model_weights(
    backbone: Model, config: TaskModelConfig, head_weights: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Return the state dict of a TaskModel, from a backbone and a head."""
    with without_numbers():
        names = build(config.backbone).state_dict().keys()

    dtype = next(backbone.parameters()).dtype
    weights = {}
    for name, weight in backbone.state_dict().items():
        if name in names:
            weights[f"backbone.{name}"] = weight

    for kind, weight in head_weights.items():
        weights[f"head.{kind}"] = weight.to(dtype)

    return weights


def shapes_of(tensors: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def pairs_in(
    names: PeftModules, settings: LoraSettings, tensors: dict[str, Tensor], origin: str
) -> dict[str, LoraPair]:
    """Return A and B of every module, with the shapes that the model and the config demand."""
    matrices = matrices_in(names, tensors, origin)
    pairs = {}
    for module in names.modules:
        is_present = (module, "A") in matrices or (module, "B") in matrices
        if is_present or settings.requires(module):
            pairs[module] = checked_pair(names, settings, matrices, module, origin)

    if not pairs:
        raise ValueError(f"{origin}: there is no adapter in it")

    return pairs


def matrices_in(
    names: PeftModules, tensors: dict[str, Tensor], origin: str
) -> dict[tuple[str, str], Tensor]:
    """Return the tensors of a file by module and kind, A or B."""
    matrices: dict[tuple[str, str], Tensor] = {}
    for name, tensor in tensors.items():
        parsed = NAME.fullmatch(name)
        module = ""
        if parsed:
            module = names.canonical_name(legacy.rename_weight(parsed[1]))

        if not parsed or module not in names.modules or not names.modules[module].projection:
            raise ValueError(
                f"{origin}: {name}: there is no place for it in the model's attention "
                "and feed-forward"
            )

        key = (module, parsed[2])
        if key in matrices:
            raise ValueError(f"{origin}: {name}: two tensors mean the same; expected one")

        matrices[key] = tensor

    return matrices


def checked_pair(
    names: PeftModules,
    settings: LoraSettings,
    matrices: dict[tuple[str, str], Tensor],
    module: str,
    origin: str,
) -> LoraPair:
    layer, rows, _ = names.modules[module]
    rank, scale = settings.rank_and_scale(module)
    shapes = {"A": (rank, layer.in_features), "B": (len(rows), rank)}

    for kind, shape in shapes.items():
        tensor = matrices.get((module, kind))
        if tensor is None:
            raise ValueError(f"{origin}: {module}.lora_{kind}: this tensor is missing")

        if tuple(tensor.shape) != shape or tensor.dtype not in FLOATS:
            raise ValueError(
                f"{origin}: {module}.lora_{kind}: expected numbers in the shape {shape}, "
                f"not {tuple(tensor.shape)} of {tensor.dtype}"
            )

    return LoraPair(matrices[module, "A"], matrices[module, "B"], scale)


def same_dtype(model: Model, pairs: dict[str, LoraPair]) -> bool:
    """Return whether checksums can be compared: a model in half precision has other numbers."""
    dtype = next(model.parameters()).dtype
    return all(pair.A.dtype == dtype for pair in pairs.values())
