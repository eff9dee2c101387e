"""One checkpoint of a run: its files, its checksums, and its name RUN@STEP, which opens a model.

RUN/run.json                            the model's config and every flag of the run
RUN/checkpoints/step-00000400/
    manifest.json                       step, marks, sizes and checksums of the files below
    state.json                          the run's counters
    tensors.safetensors                 model/..., average/..., optimizer/...
    shard-00001-model-....safetensors   instead, in a run with FSDP: the part of each rank
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv import storage
from qkv.models import legacy
from qkv.models.convert.hf_folder import CONFIG, current, open_file, read_json
from qkv.models.model import Model, backbone_of
from qkv.models.registry import Config, build, from_json
from qkv.models.without_numbers import without_numbers
from qkv.nn.lora import AdapterConfig

RUN = "run.json"
CHECKPOINTS = "checkpoints"
ADAPTER = "adapter"
"""The folder of the exported adapter, in the format of peft."""
STATE = "state.json"
TENSORS = "tensors.safetensors"
MANIFEST = "manifest.json"
NAME = re.compile(r"step-(\d{8,})(\.new)?")
AT_STEP = re.compile(r"(?P<run>.+)@(?P<step>[^@/]+)", re.DOTALL)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files were verified."""

    path: Path
    step: int
    best: bool
    """Whether its validation loss is the best so far."""
    passing: bool
    """Whether it is temporary, saved on interruption."""
    state: dict[str, Any]

    def tensors(
        self, under: str = "", like: Mapping[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        """The tensors whose names begin with `under`, by the rest of their names.

        They are copies on the CPU: the file may be removed meanwhile. With `like`, the parameters
        of a model, each is on the device of its parameter and sharded as it is; a rank reads only
        its own part.
        """
        like = like or {}
        sharded = any(hasattr(parameter, "device_mesh") for parameter in like.values())
        if sharded or not (self.path / TENSORS).is_file():
            tensors = read_shards(self.path, under, like)
        else:
            tensors = {}
            for name, read in open_file(self.path / TENSORS).items():
                if name.startswith(under):
                    parameter = parameter_for(name, under, like)
                    tensors[name] = read().clone()
                    if parameter is not None:
                        tensors[name] = tensors[name].to(parameter.device)

        return {current_name(name, under): tensor for name, tensor in tensors.items()}

    def weights(self) -> dict[str, Tensor]:
        """The weights that are validated: the exponential average if the run keeps one."""
        trained = self.tensors("average/") or self.tensors("model/")
        return self.tensors("frozen/") | trained


def current_name(name: str, under: str) -> str:
    """The name of a stored tensor without its prefix, as this version calls it."""
    return legacy.rename_weight(name.removeprefix(under))


def parameter_for(name: str, under: str, like: Mapping[str, Tensor]) -> Tensor | None:
    """The parameter that a stored tensor is of; an optimizer's state is called PARAMETER|KEY."""
    return like.get(current_name(name, under).partition("|")[0])


def read_shards(path: Path, under: str, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that begin with `under`, put together from the files of all ranks."""
    import torch.distributed.checkpoint as dcp  # takes a second

    reader = dcp.HuggingFaceStorageReader(str(path))
    tensors: dict[str, Any] = {}
    for name, stored in reader.read_metadata().state_dict_metadata.items():
        if not name.startswith(under):
            continue

        assert isinstance(stored, dcp.TensorStorageMetadata)
        dtype = stored.properties.dtype
        parameter = parameter_for(name, under, like)
        if parameter is None:
            tensors[name] = torch.empty(stored.size, dtype=dtype)
        elif parameter.shape == stored.size:
            tensors[name] = torch.empty_like(parameter, dtype=dtype, requires_grad=False)
        else:
            tensors[name] = torch.empty(stored.size, dtype=dtype, device=parameter.device)

    with warnings.catch_warnings(action="ignore"):  # that the process is alone is intended
        dcp.load(tensors, storage_reader=reader, no_dist=True)

    return tensors


def describe(file: Path) -> dict[str, Any]:
    """The size and checksum of a file."""
    return {"bytes": file.stat().st_size, "sha256": storage.sha256_of(file)}


def verify(path: Path, step: int) -> Checkpoint:
    """The checkpoint in this folder; ValueError or OSError names the file that is wrong."""
    refuse_missing(path, MANIFEST)
    manifest = read_json(path / MANIFEST)
    files = manifest.get("files")
    best = manifest.get("best")
    passing = manifest.get("passing")
    marked = isinstance(best, bool) and isinstance(passing, bool)
    if manifest.get("step") != step or not marked or not isinstance(files, dict):
        raise ValueError(f"{path / MANIFEST}: damaged, or the folder of another step")

    here = {file.name for file in path.glob("*.safetensors")}
    listed = {name for name in files if name.endswith(".safetensors")}
    if STATE not in files or not listed:
        raise ValueError(f"{path / MANIFEST}: damaged: it does not list all files")

    for name in sorted({STATE} | here | listed):
        refuse_missing(path, name)
        actual = describe(path / name)
        if actual != files.get(name):
            raise ValueError(
                f"{path / name}: damaged or cut short: it has {actual['bytes']} bytes and a "
                f"checksum that is not the one in {MANIFEST}"
            )

    return Checkpoint(path, step, bool(best), bool(passing), read_json(path / STATE))


def refuse_missing(path: Path, name: str) -> None:
    if not (path / name).is_file():
        raise ValueError(f"{path / name}: this file is missing, and belongs to {MANIFEST}")


def is_marked(path: Path, mark: str) -> bool:
    """Whether the checkpoint in this folder is marked as best, or as passing."""
    try:
        return read_json(path / MANIFEST).get(mark) is True
    except (ValueError, OSError):
        return False


def steps_in(folder: Path) -> list[int]:
    """The steps of all checkpoints in this folder, complete or not, in order."""
    steps = set()
    for path in folder.glob("step-*"):
        match = NAME.fullmatch(path.name)
        if match and path.is_dir():
            steps.add(int(match[1]))

    return sorted(steps)


def checkpoint_path(folder: Path, step: int) -> Path:
    """The folder of a step's checkpoint; if the step was saved again, the newer one."""
    path = folder / f"step-{step:08}"
    newer = path.with_name(path.name + ".new")
    if newer.is_dir():
        return newer

    return path


# A checkpoint by name


def step_of(path: Path) -> int | None:
    """The step, if this is the folder of a run's checkpoint."""
    match = NAME.fullmatch(path.name)
    if match is None or path.parent.name != CHECKPOINTS or not (path / MANIFEST).is_file():
        return None

    return int(match[1])


def run_of(path: Path) -> Path:
    """The folder of the run that a checkpoint's folder belongs to."""
    return path.parent.parent


def at_step(name: Path | str) -> Path | None:
    """The folder of the checkpoint that RUN@STEP names; None if this is not such a name.

    A file or folder that is really called so comes first. RUN alone names a checkpoint if the run
    has no model yet, as with FSDP before its end. ValueError lists the steps that exist if this one
    does not.
    """
    if os.path.lexists(name):
        return without_model(Path(name))

    match = AT_STEP.fullmatch(str(name))
    if match is None or not Path(match["run"]).is_dir():
        return None

    run = Path(match["run"])
    step = match["step"]
    if not re.fullmatch("[0-9]{1,18}", step):
        raise ValueError(
            f"{name}: expected the step of a checkpoint after @, as in {run}@400, not {step!r}"
        )

    steps = steps_in(run / CHECKPOINTS)
    if not steps:
        raise ValueError(f"{name}: {run} has no checkpoints; name the model without @{step}")
    if int(step) not in steps:
        raise ValueError(
            f"{name}: there is no checkpoint of step {int(step)}; {run} has "
            f"{', '.join(map(str, steps))} (--checkpoint-every sets how often one is saved, --keep "
            "how many stay)"
        )

    return checkpoint_path(run / CHECKPOINTS, int(step))


def without_model(run: Path) -> Path | None:
    """The best or else the newest checkpoint of a run that has no model; None for other folders."""
    if not (run / RUN).is_file() or (current(run) / CONFIG).is_file():
        return None

    folder = run / CHECKPOINTS
    saved = [checkpoint_path(folder, step) for step in steps_in(folder)]
    best = [path for path in saved if is_marked(path, "best")]

    return next(reversed(best or saved), None)


def absolute(name: str) -> str:
    """A model's path made absolute, so that it works from any folder; other names are unchanged."""
    if os.path.exists(name) or at_step(name):
        return os.path.abspath(name)

    return name


# A checkpoint as a model


def weights_in(path: Path) -> dict[str, Tensor]:
    """The trained weights of the checkpoint in this folder, whose files are verified."""
    step = step_of(path)
    assert step is not None

    try:
        return verify(path, step).weights()
    except OSError as error:  # a running training may have removed it meanwhile
        raise ValueError(f"{path}: this checkpoint cannot be read ({error})") from error


class Described(NamedTuple):
    """The model that a run trains, from run.json."""

    config: Config
    adapters: AdapterConfig
    """Only meaningful for a run that trains adapters."""
    base: str
    """The model that is fine-tuned."""

    def frozen_weights(self, base: Model) -> dict[str, Tensor]:
        """The base's frozen weights, by their names in the run's model."""
        with without_numbers():
            names = build(self.config).state_dict().keys()

        # A model with a task head contains the base.
        prefix = ""
        if any(name.startswith("backbone.") for name in names):
            prefix = "backbone."
            base = backbone_of(base)

        frozen = {prefix + name: weight for name, weight in base.state_dict().items()}
        return {name: weight for name, weight in frozen.items() if name in names}


def description_of(run: Path) -> Described:
    """The model that a run trains."""
    values = read_json(run / RUN)
    try:
        flags = values["data"]
        options = {name: flags[name] for name in ("rank", "alpha") if name in flags}
        options["projections"] = tuple(flags.get("projections", AdapterConfig.projections))
        adapters = AdapterConfig(**options)
        return Described(from_json(values["model"]), adapters, str(flags.get("model", "")))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{run / RUN}: damaged, or of another version ({error})") from error
